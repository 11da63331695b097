"""Stanford Online Products, iNaturalist 2018, PKU VehicleID, CUB-200-2011, Cars-196 and In-shop Clothes Retrieval.

CUB and Cars were made for classification, with official lists that have all classes in training and test. Metric
learning measures on classes that training has never seen: the first half of the classes trains, the second tests.
"""

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, cast

from aurank.data.manifest import Manifest
from aurank.data.readers.facts import (
    CARS,
    CARS_PARTS,
    CARS_WHOLE,
    CUB,
    INATURALIST,
    INATURALIST_LISTS,
    INSHOP,
    INSHOP_LIST,
    SOP,
    SOP_LISTS,
    VEHICLE_OF_IMAGE,
    VEHICLE_TESTS,
    VEHICLE_TRAIN,
    VEHICLEID,
)
from aurank.data.readers.lines import NUMBER, Role, Row, read_fields, read_mat, read_text
from aurank.data.readers.lists import list_rows
from aurank.data.readers.published import (
    Part,
    Place,
    Reading,
    compare_classes,
    compare_parts,
    read_published,
    summarise,
)
from aurank.data.sources import ImageSource
from aurank.files import reading

TestList = Literal["small", "medium", "large"]
Attribute = Literal["model", "color"]


def read_sop(
    root: Path,
    *,
    path: str | None = None,
    train: str = SOP_LISTS[0],
    test: str = SOP_LISTS[1],
    images: str = "",
    complete: bool = True,
) -> Manifest:
    """Return Stanford Online Products: the class is the product as numbered, the super-label its category, 1 … 12.

    Args:
        path: without it, `Stanford_Online_Products`, that name with ".zip", and `root` itself are tried.
        train, test, images: the lists, and the folder that their paths start from, as the reader "lists" has them.
        complete: True insists on the published sizes; False reads any set in this format.

    Source: Song et al., Deep metric learning via lifted structured feature embedding (CVPR 2016),
        https://arxiv.org/abs/1511.06452.
    """
    examine = functools.partial(examine_sop, train=train, test=test, images=images)
    return read_published(SOP, root, path, examine, complete=complete)


def examine_sop(place: Place, *, train: str = SOP_LISTS[0], test: str = SOP_LISTS[1], images: str = "") -> Reading:
    """Return the lists of Stanford Online Products as found, and what differs."""
    if missing := place.missing((train, test)):
        return Reading(None, missing)
    parts = [
        Part(file, list(list_rows(place.source, split, file)), expected)
        for split, file, expected in zip(("train", "test"), (train, test), SOP.sizes.values(), strict=True)
    ]
    return compare_parts(place, parts, images=images)


def read_inaturalist(root: Path, *, path: str | None = None, complete: bool = True) -> Manifest:
    """Return iNaturalist 2018: the class is "SUPERCATEGORY/CATEGORY"; `super_labels` number the super-categories.

    Args:
        path: without it, `Inaturalist` and `root` itself are tried.
        complete: True insists on the published sizes and on both annotation files, train2018.json and val2018.json,
            and that they agree with the split; False reads a part, with the annotations where they are there.

    The split's lists name images only, so the class is read from the path.

    Source: Van Horn et al. (CVPR 2018), https://arxiv.org/abs/1707.06642, for the images; Brown et al., Smooth-AP (ECCV
        2020), https://arxiv.org/abs/2007.12163, for the split.
    """
    return read_published(INATURALIST, root, path, examine_inaturalist, complete=complete)


def examine_inaturalist(place: Place) -> Reading:
    """Return the split of iNaturalist 2018 as found, and what differs."""
    problems = place.missing(INATURALIST.files)
    if not all(map(place.holds, INATURALIST_LISTS.values())):
        return Reading(None, problems)
    numbers: dict[str, int] = {}
    parts = []
    for split, file in INATURALIST_LISTS.items():
        rows = []
        pattern, form = r"((?:.*/)?([^/]*)/([^/]*)/[^/]*)", "train_val2018/SUPERCATEGORY/CATEGORY/IMAGE.jpg"
        for where, (image, above, category) in read_fields(place.source, file, pattern, form):
            rows.append(Row(where, image, f"{above}/{category}", split, numbers.setdefault(above, len(numbers))))
        parts.append(Part(file, rows, INATURALIST.sizes[file]))
    notes = {file: _annotated(place.source, file) for file in INATURALIST.lines if place.source.exists(file)}
    rows = [row for part in parts for row in part.rows]
    wrong = compare_classes(INATURALIST, rows, notes, whole=len(notes) == len(INATURALIST.lines))
    manifest, differing = compare_parts(place, parts, problems)
    return Reading(manifest, differing + wrong)


def _annotated(source: ImageSource, file: str) -> dict[str, str]:
    """Return the class "SUPERCATEGORY/CATEGORY" of each image in an annotation file of the competition, by path."""
    what = "the competition's annotation file"
    with reading(f"{file} in {source.where}", what, remedy=f"unpack {file}.tar.gz again"):
        content = json.loads(read_text(source, file))
        names = {category["id"]: f"{category['supercategory']}/{category['id']}" for category in content["categories"]}
        name_of = {note["image_id"]: names[note["category_id"]] for note in content["annotations"]}
        return {str(image["file_name"]): name_of[image["id"]] for image in content["images"]}


def read_vehicleid(
    root: Path,
    *,
    path: str | None = None,
    test: TestList = "large",
    attribute: Attribute = "model",
    complete: bool = True,
) -> Manifest:
    """Return PKU VehicleID with one of its test lists: the class is the vehicle as numbered.

    Args:
        path: without it, `VehicleID_V1.0` and `root` itself are tried.
        test: the test list: small, medium or large, of 800, 1,600 or 2,400 vehicles.
        attribute: what the super-label is, the vehicle's model or its color as numbered; −1 where it has none.
        complete: True insists on the published sizes and on the attribute files, and that img2vid.txt agrees with the
            lists; False reads a part, with these files where they are there.

    Source: Liu et al., Deep relative distance learning (CVPR 2016), https://doi.org/10.1109/CVPR.2016.238.
    """
    examine = functools.partial(examine_vehicleid, test=test, attribute=attribute)
    return read_published(VEHICLEID, root, path, examine, complete=complete)


def examine_vehicleid(place: Place, *, test: TestList, attribute: Attribute = "model") -> Reading:
    """Return PKU VehicleID with one of its test lists as found, and what differs."""
    files, values = {"train": VEHICLE_TRAIN, "test": VEHICLE_TESTS[test]}, f"attribute/{attribute}_attr.txt"
    problems = place.missing((*files.values(), VEHICLE_OF_IMAGE, values))
    if not all(map(place.holds, files.values())):
        return Reading(None, problems)

    def pairs(file: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        return read_fields(place.source, file, rf"{NUMBER}\s+{NUMBER}", "two whole numbers with a blank between")

    def path_of(image: str) -> str:
        return f"image/{image.zfill(7)}.jpg"

    value_of = {vehicle: int(value) for _, (vehicle, value) in pairs(values)} if place.holds(values) else None
    parts = []
    for split, file in files.items():
        rows = []
        for where, (image, vehicle) in pairs(file):
            super_label = None if value_of is None else value_of.get(vehicle, -1)
            rows.append(Row(where, path_of(image), vehicle, split, super_label))
        parts.append(Part(file, rows, VEHICLEID.sizes[file]))
    manifest, differing = compare_parts(place, parts, problems)
    if place.holds(VEHICLE_OF_IMAGE):
        known = {VEHICLE_OF_IMAGE: {path_of(image): vehicle for _, (image, vehicle) in pairs(VEHICLE_OF_IMAGE)}}
        differing += compare_classes(VEHICLEID, [row for part in parts for row in part.rows], known, whole=True)
    return Reading(manifest, differing)


def read_cub(root: Path, *, path: str | None = None, complete: bool = True) -> Manifest:
    """Return CUB-200-2011: classes 1 to 100 are "train", 101 to 200 "test"; a class is named as its folder.

    Args:
        path: without it, `CUB_200_2011` and `root` itself are tried.
        complete: True insists on the published sizes; False reads a part.

    Whole images, not the boxes of the birds. `train_test_split.txt` is never read.

    Source: Wah et al., The Caltech-UCSD Birds-200-2011 Dataset (CNS-TR-2011-001), for the images; Song et al. (CVPR
        2016), https://arxiv.org/abs/1511.06452, section 6, for the halves, as `datasets/cub.py` of
        pytorch-metric-learning cuts them.
    """
    return read_published(CUB, root, path, examine_cub, complete=complete)


def examine_cub(place: Place) -> Reading:
    """Return the halves of CUB-200-2011 as found, and what differs."""
    if missing := place.missing(CUB.files):
        return Reading(None, missing)
    names, classes = CUB.files
    form = "the number of an image and what belongs to it"
    class_of = {
        image: number
        for _, (image, number) in read_fields(place.source, classes, rf"{NUMBER}\s+{NUMBER}", f"{form}, a class")
    }
    found: dict[int, list[Row]] = {}
    unknown, others = [], []
    for where, (image, name) in read_fields(place.source, names, rf"{NUMBER}\s+(.+)", form):
        number, folder = class_of.get(image), name.split("/")[0]
        if number is None:
            unknown.append(name)
            continue
        if folder.split(".")[0].lstrip("0") != number:
            others.append(f"{name} is of class {number}")
        found.setdefault(int(number), []).append(Row(where, f"images/{name}", folder, "train"))
    problems = summarise(f"images without a class in {classes}", unknown)
    problems += summarise(f"images of another class in {classes}", others)
    return _in_halves(place, found, problems, classes=200)


def read_cars(root: Path, *, path: str | None = None, complete: bool = True) -> Manifest:
    """Return Cars-196: classes 1 to 98 are "train", 99 to 196 "test"; a class is named by its number.

    Args:
        path: without it, `cars196`, `stanford_cars`, `cars`, `CARS196` and `root` itself are tried.
        complete: True insists on the published sizes; False reads a part.

    Two layouts are read: all images in one folder, and the two folders of the classification split, which both give
    images of both halves. Paths differ between the layouts, and so do the checksums of what was measured. Whole images,
    not the boxes of the cars.

    Source: Krause et al., 3D object representations for fine-grained categorization (3dRR 2013), for the images; Song
        et al. (CVPR 2016), https://arxiv.org/abs/1511.06452, section 6, for the halves, as `datasets/cars196.py` of
        pytorch-metric-learning cuts them; `stanford_cars.py` of torchvision for the layout with devkit.
    """
    return read_published(CARS, root, path, examine_cars, complete=complete)


def examine_cars(place: Place) -> Reading:
    """Return the halves of Cars-196 as found, and what differs."""
    in_parts = not place.holds(CARS_WHOLE) and any(map(place.holds, CARS_PARTS))
    files: Mapping[str, str] = CARS_PARTS if in_parts else {CARS_WHOLE: ""}
    if missing := place.missing(files):
        return Reading(None, missing)
    found: dict[int, list[Row]] = {}
    for file, folder in files.items():
        with reading(f"{file} in {place.source.where}", "a Matlab file with 'annotations'", remedy="get it again"):
            for count, record in enumerate(read_mat(place.source, file, "annotations"), start=1):
                name, number = record["fname" if folder else "relative_im_path"], record["class"]
                if not isinstance(name, str) or number not in range(1, 197):
                    raise ValueError(f"record {count} has file {name!r} and class {number!r}")
                image = f"{folder}/{name}" if folder else name
                found.setdefault(number, []).append(Row(f"{file}, record {count}", image, str(number), "train"))
    return _in_halves(place, found, [], classes=196)


def _in_halves(place: Place, found: Mapping[int, Sequence[Row]], problems: Sequence[str], *, classes: int) -> Reading:
    """Return the classes numbered up to the half as "train", the others as "test"."""
    parts = []
    for (name, expected), split, first in zip(
        place.benchmark.sizes.items(), ("train", "test"), (1, classes // 2 + 1), strict=True
    ):
        half = range(first, first + classes // 2)
        rows = [row._replace(split=split) for number in half for row in found.get(number, ())]
        parts.append(Part(name, rows, expected))
    return compare_parts(place, parts, problems)


def read_inshop(
    root: Path,
    *,
    path: str | None = None,
    partition: str = INSHOP_LIST,
    images: str | None = None,
    complete: bool = True,
) -> Manifest:
    """Return In-shop Clothes Retrieval: the class is the item; queries search the gallery, not each other.

    Args:
        path: without it, `In-shop Clothes Retrieval Benchmark`, `inshop`, `In_shop`, `Inshop_Clothes` and `root` itself
            are tried.
        partition: the list file.
        images: the folder that the list's paths, img/…, start from; without it "Img", else that of Eval. "Img" may also
            hold the larger images of img_highres.zip under the same names: other pixels, the same checksum.
        complete: True insists on the published sizes; False reads a part.

    Source: Liu et al., DeepFashion (CVPR 2016), for images and split; `inshop.py` of mmpretrain for the layout.
    """
    examine = functools.partial(examine_inshop, partition=partition, images=images)
    return read_published(INSHOP, root, path, examine, complete=complete)


def examine_inshop(place: Place, *, partition: str = INSHOP_LIST, images: str | None = None) -> Reading:
    """Return the three parts of In-shop as found, and what differs."""
    if missing := place.missing([partition]):
        return Reading(None, missing)
    header = [r"\d+", r"image_name\s+item_id\s+evaluation_status"]
    pattern, form = r"(\S+)\s+(\S+)\s+(train|query|gallery)", "an image, its item, and train, query or gallery"
    rows: dict[str, list[Row]] = {state: [] for state in INSHOP.sizes}
    for where, (image, item, state) in read_fields(place.source, partition, pattern, form, header=header):
        split, role = ("train", "both") if state == "train" else ("test", state)
        rows[state].append(Row(where, image, item, split, role=cast(Role, role)))
    if images is None:
        listed = [row for held in rows.values() for row in held[:100]]
        images = "Img" if any(place.source.exists(f"Img/{row.path}") for row in listed) else ""
    parts = [Part(f"{state} of {partition}", held, INSHOP.sizes[state]) for state, held in rows.items()]
    return compare_parts(place, parts, images=images)

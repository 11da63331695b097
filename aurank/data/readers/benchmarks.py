"""The readers of published benchmarks; each says what the files of a benchmark hold, and `published` does the rest.

Re-identification sets: queries search a gallery, and gallery images of the query's own class and camera do not count
(`groups` are the cameras). mauprc is what their tools call mAP, recall@k CMC rank-k, and minp mINP.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, cast

import numpy as np

from aurank.data.manifest import Manifest
from aurank.data.readers.listing import NUMBER, Role, Row, class_folders, list_rows, read_fields, read_mat
from aurank.data.readers.published import Location, published
from aurank.files import reading

TestList = Literal["small", "medium", "large"]
Attribute = Literal["model", "color"]
Difficulty = Literal["easy", "medium", "hard"]
_INATURALIST_LISTS = {split: f"Inat_dataset_splits/Inaturalist_{split}_set1.txt" for split in ("train", "test")}
_VEHICLE_TRAIN = "train_test_split/train_list.txt"
_VEHICLE_TESTS = {
    size: f"train_test_split/test_list_{count}.txt"
    for size, count in (("small", 800), ("medium", 1600), ("large", 2400))
}
_CARS_WHOLE = "cars_annos.mat"
_CARS_PARTS = {"devkit/cars_train_annos.mat": "cars_train", "cars_test_annos_withlabels.mat": "cars_test"}
_CLASS_AND_CAMERA = re.compile(r"(\d{4})_c(\d{3}|\d(?=s))\S*\.jpg", re.IGNORECASE)
# Of each difficulty what is sought and what is left out, by the names of the ground truth.
_JUDGED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "easy": {"positives": ("easy",), "ignored": ("junk", "hard")},
    "medium": {"positives": ("easy", "hard"), "ignored": ("junk",)},
    "hard": {"positives": ("hard",), "ignored": ("junk", "easy")},
}


@published("sop")
def read_sop(location: Location) -> Manifest:
    """Read Stanford Online Products: the class is the product as numbered, the super-label its category, 1 … 12."""
    location.require(location.benchmark.files)
    lists = zip(("train", "test"), location.benchmark.files, strict=True)
    return location.build(*(location.part(file, list_rows(location.source, split, file)) for split, file in lists))


@published("grocery")
def read_grocery(location: Location) -> Manifest:
    """Read the Grocery Store Dataset: products of kinds with an even number are "train", the others "test".

    The published lists are for classification and have every product in each of train, val and test; here no product,
    and no kind, is in both. The super-label is the kind as numbered, from 1. Classes go by product, images by path.
    """
    location.require(location.benchmark.files)
    pattern, form = rf"([^,]+), *{NUMBER}, *{NUMBER}", "PATH, PRODUCT, KIND, the last two numbers"
    listed = [
        (int(kind) % 2, int(product), image, int(kind) + 1, where)
        for file in location.benchmark.files
        for where, (image, product, kind) in read_fields(location.source, file, pattern, form)
    ]
    numbers: dict[int, str] = {}  # of the products, those that train first
    splits: tuple[list[Row], list[Row]] = ([], [])
    for odd, product, image, kind, where in sorted(listed):
        label = numbers.setdefault(product, str(len(numbers) + 1))
        splits[odd].append(Row(where, image, label, ("train", "test")[odd], kind))
    parts = list(map(location.part, location.benchmark.sizes, splits))
    return location.build(*parts, images="dataset", class_names=class_folders([*splits[0], *splits[1]]))


@published("inaturalist2018")
def read_inaturalist(location: Location) -> Manifest:
    """Read iNaturalist 2018: the class is "SUPERCATEGORY/CATEGORY"; `super_labels` number the super-categories.

    The split's lists name images only, so the class is read from the path.
    """
    location.require(_INATURALIST_LISTS.values())
    numbers: dict[str, int] = {}
    parts = []
    for split, file in _INATURALIST_LISTS.items():
        pattern, form = r"((?:.*/)?([^/]*)/([^/]*)/[^/]*)", "train_val2018/SUPERCATEGORY/CATEGORY/IMAGE.jpg"
        rows = (
            Row(where, image, f"{above}/{category}", split, numbers.setdefault(above, len(numbers)))
            for where, (image, above, category) in read_fields(location.source, file, pattern, form)
        )
        parts.append(location.part(file, rows))
    return location.build(*parts)


@published("vehicleid", each="test")
def read_vehicleid(location: Location, *, test: TestList = "large", attribute: Attribute = "model") -> Manifest:
    """Read PKU VehicleID with one of its test lists: the class is the vehicle as numbered.

    The attribute file has to be there; a part may lack it.

    Args:
        test: the test list: small, medium or large, of 800, 1,600 or 2,400 vehicles.
        attribute: what the super-label is, the vehicle's model or its color as numbered; −1 where it has none.
    """
    files, values = {"train": _VEHICLE_TRAIN, "test": _VEHICLE_TESTS[test]}, f"attribute/{attribute}_attr.txt"
    location.require(files.values(), [values])

    def pairs(file: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        return read_fields(location.source, file, rf"{NUMBER}\s+{NUMBER}", "two whole numbers with a blank between")

    def path_of(image: str) -> str:
        return f"image/{image.zfill(7)}.jpg"

    value_of = {vehicle: int(value) for _, (vehicle, value) in pairs(values)} if location.holds(values) else None
    parts = []
    for split, file in files.items():
        rows = (
            Row(where, path_of(image), vehicle, split, None if value_of is None else value_of.get(vehicle, -1))
            for where, (image, vehicle) in pairs(file)
        )
        parts.append(location.part(file, rows))
    return location.build(*parts)


@published("cub200")
def read_cub(location: Location) -> Manifest:
    """Read CUB-200-2011: classes 1 to 100 are "train", 101 to 200 "test"; a class is named as its folder."""
    location.require(location.benchmark.files)
    names, classes = location.benchmark.files
    form = "the number of an image and what belongs to it"
    numbered = read_fields(location.source, classes, rf"{NUMBER}\s+{NUMBER}", f"{form}, a class")
    class_of = {image: number for _, (image, number) in numbered}
    rows: dict[int, list[Row]] = {}
    for where, (image, name) in read_fields(location.source, names, rf"{NUMBER}\s+(.+)", form):
        if image in class_of:
            rows.setdefault(int(class_of[image]), []).append(Row(where, f"images/{name}", name.split("/")[0], "train"))
    return _in_halves(location, rows, classes=200)


@published("cars196")
def read_cars(location: Location) -> Manifest:
    """Read Cars-196: classes 1 to 98 are "train", 99 to 196 "test"; a class is named by its number.

    Two layouts are read: all images in one folder, and the two folders of the classification split; paths differ.
    """
    in_parts = not location.holds(_CARS_WHOLE) and any(map(location.holds, _CARS_PARTS))
    files: Mapping[str, str] = _CARS_PARTS if in_parts else {_CARS_WHOLE: ""}
    location.require(files)
    rows: dict[int, list[Row]] = {}
    for file, folder in files.items():
        with reading(f"{file} in {location.source.where}", "a Matlab file with 'annotations'", remedy="get it again"):
            for count, record in enumerate(read_mat(location.source, file, "annotations"), start=1):
                name, number = record["fname" if folder else "relative_im_path"], record["class"]
                image = f"{folder}/{name}" if folder else name
                rows.setdefault(number, []).append(Row(f"{file}, record {count}", image, str(number), "train"))
    return _in_halves(location, rows, classes=196)


def _in_halves(location: Location, rows: Mapping[int, Sequence[Row]], *, classes: int) -> Manifest:
    parts = []
    for name, split, first in zip(location.benchmark.sizes, ("train", "test"), (1, classes // 2 + 1), strict=True):
        half = range(first, first + classes // 2)
        parts.append(
            location.part(name, (row._replace(split=split) for number in half for row in rows.get(number, ())))
        )
    return location.build(*parts)


@published("inshop")
def read_inshop(location: Location) -> Manifest:
    """Read In-shop Clothes Retrieval: the class is the item; queries search the gallery, not each other.

    "Img" may also hold the larger images of img_highres.zip under the same names: other pixels, the same checksum.
    """
    (file,) = location.benchmark.files
    location.require([file])
    header = [r"\d+", r"image_name\s+item_id\s+evaluation_status"]
    pattern, form = r"(\S+)\s+(\S+)\s+(train|query|gallery)", "an image, its item, and train, query or gallery"
    rows: dict[str, list[Row]] = {state: [] for state in location.benchmark.sizes}
    for where, (image, item, state) in read_fields(location.source, file, pattern, form, header=header):
        split, role = ("train", "both") if state == "train" else ("test", state)
        rows[state].append(Row(where, image, item, split, role=cast(Role, role)))
    listed = [row for part in rows.values() for row in part[:100]]
    images = "Img" if any(location.source.exists(f"Img/{row.path}") for row in listed) else ""
    return location.build(*(location.part(f"{state} of {file}", rows[state], state) for state in rows), images=images)


@published("market1501")
def read_market(location: Location) -> Manifest:
    """Read Market-1501 or VeRi-776: the class is the person or vehicle as numbered, `groups` the cameras.

    Of Market-1501 junk (class −1) is left out, as no query may find it; distractors (class 0000) stay in the gallery.
    Queries of VeRi-776 search images, as in fast-reid, not tracks. They are in the gallery too, where their camera
    excludes them.
    """
    location.require(location.benchmark.files)
    roles: tuple[Role, ...] = ("both", "query", "gallery")
    parts = []
    for folder, role in zip(location.benchmark.sizes, roles, strict=True):
        rows, split = [], "train" if role == "both" else "test"
        for name in location.inside(folder).names():
            if match := _CLASS_AND_CAMERA.fullmatch(name):
                image = f"{folder}/{name}"
                rows.append(Row(image, image, match[1], split, group=int(match[2]), role=role))
        parts.append(location.part(folder, rows))
    return location.build(*parts)


read_veri = published("veri776")(read_market.read)


@published("roxford5k", each="difficulty")
def read_roxford(location: Location, *, difficulty: Difficulty = "medium") -> Manifest:
    """Read ROxford5k or RParis6k, all of it "test": 70 queries cut to their box, and a gallery that holds none of them.

    `positives` and `ignored` list the images for each query; each image is its own class. A query without a positive of
    that difficulty is skipped. Boxes are rounded to pixels, as Pillow's `crop` does.

    Args:
        difficulty: what is sought: "easy" and "hard" one kind of images, the other left out with the junk; "medium"
            both kinds, without the junk.
    """
    (file,) = location.benchmark.files
    location.require([file])
    pairs: dict[str, list[tuple[int, int]]] = {"positives": [], "ignored": []}
    queries, gallery = [], []
    with reading(f"{file} in {location.source.where}", "the ground truth, a Matlab file", remedy="get it again"):
        names, images, judged = (read_mat(location.source, file, name) for name in ("qimlist", "imlist", "gnd"))
        for row, (name, record) in enumerate(zip(names, judged, strict=True)):
            where, path = f"query {row + 1}", f"jpg/{name}.jpg"
            x1, y1, x2, y2 = (round(float(value)) for value in np.ravel(record["bbx"]))
            box = max(0, x1), max(0, y1), x2, y2
            queries.append(Row(f"{file}, {where}", path, path, "test", role="query", box=box))
            for column, kinds in _JUDGED[difficulty].items():
                numbers = np.concatenate([np.ravel(record[kind]) for kind in kinds])  # Matlab's numbers are fractions
                pairs[column] += [(row, int(number) - 1) for number in numbers]
        for row, name in enumerate(images):
            path = f"jpg/{name}.jpg"
            gallery.append(Row(f"{file}, image {row + 1}", path, path, "test", role="gallery"))
    parts = [location.part("queries", queries), location.part("images", gallery)]
    return location.build(*parts, pairs=pairs)


read_rparis = published("rparis6k", each="difficulty")(read_roxford.read)

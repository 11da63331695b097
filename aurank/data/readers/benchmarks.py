"""The readers of published benchmarks; each says what the files at a Place hold, and `published` does the rest.

Re-identification sets: queries search a gallery, and gallery images of the query's own class and camera do not count
(`groups` are the cameras). mauprc is what their tools call mAP, recall@k CMC rank-k, and minp mINP.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, cast

import numpy as np

from aurank.data.readers.listing import NUMBER, Role, Row, class_folders, list_rows, read_fields, read_mat
from aurank.data.readers.published import Contents, Place, published, summarise
from aurank.errors import UserError
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
_INSHOP_LIST = "Eval/list_eval_partition.txt"
# Of the names of files in two sets: class and camera, and an example.
_NAMES = {
    "market1501": (re.compile(r"(-1|\d{4})_c(\d)s\d_.*"), "0002_c1s1_000451_03.jpg"),
    "veri776": (re.compile(r"(\d{4})_c(\d{3})_.*"), "0002_c002_00030600_0.jpg"),
}
# Of each difficulty what is sought and what is left out, by the names of the ground truth.
_JUDGED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "easy": {"positives": ("easy",), "ignored": ("junk", "hard")},
    "medium": {"positives": ("easy", "hard"), "ignored": ("junk",)},
    "hard": {"positives": ("hard",), "ignored": ("junk", "easy")},
}


@published("sop")
def read_sop(place: Place, *, train: str = "Ebay_train.txt", test: str = "Ebay_test.txt", images: str = "") -> Contents:
    """Read Stanford Online Products: the class is the product as numbered, the super-label its category, 1 … 12.

    Args:
        train, test, images: the lists, and the folder that their paths start from, as the reader "lists" has them.

    Source: Song et al., Deep metric learning via lifted structured feature embedding (CVPR 2016),
        https://arxiv.org/abs/1511.06452.
    """
    place.require((train, test))
    lists = zip(("train", "test"), (train, test), place.benchmark.sizes, strict=True)
    parts = [place.part(file, list_rows(place.source, split, file), size) for split, file, size in lists]
    return Contents(parts, images=images)


@published("grocery")
def read_grocery(place: Place) -> Contents:
    """Read the Grocery Store Dataset: products of kinds with an even number are "train", the others "test".

    The published lists are for classification and have every product in each of train, val and test; here no product,
    and no kind, is in both. The super-label is the kind as numbered, from 1. Classes go by product, images by path.

    Source: Klasson et al., A hierarchical grocery store image dataset with visual and semantic labels (WACV 2019),
        https://arxiv.org/abs/1901.00711.
    """
    place.require(place.benchmark.files)
    pattern, form = rf"([^,]+), *{NUMBER}, *{NUMBER}", "PATH, PRODUCT, KIND, the last two numbers"
    listed = [
        (int(kind) % 2, int(product), image, int(kind) + 1, where)
        for file in place.benchmark.files
        for where, (image, product, kind) in read_fields(place.source, file, pattern, form)
    ]
    numbers: dict[int, str] = {}  # of the products, those that train first
    splits: tuple[list[Row], list[Row]] = ([], [])
    for odd, product, image, kind, where in sorted(listed):
        label = numbers.setdefault(product, str(len(numbers) + 1))
        splits[odd].append(Row(where, image, label, ("train", "test")[odd], kind))
    parts = list(map(place.part, place.benchmark.sizes, splits))
    return Contents(parts, images="dataset", class_names=class_folders([*splits[0], *splits[1]]))


@published("inaturalist2018")
def read_inaturalist(place: Place) -> Contents:
    """Read iNaturalist 2018: the class is "SUPERCATEGORY/CATEGORY"; `super_labels` number the super-categories.

    The split's lists name images only, so the class is read from the path.

    Source: Van Horn et al. (CVPR 2018), https://arxiv.org/abs/1707.06642, for the images; Brown et al., Smooth-AP (ECCV
        2020), https://arxiv.org/abs/2007.12163, for the split.
    """
    place.require(_INATURALIST_LISTS.values())
    numbers: dict[str, int] = {}
    parts = []
    for split, file in _INATURALIST_LISTS.items():
        pattern, form = r"((?:.*/)?([^/]*)/([^/]*)/[^/]*)", "train_val2018/SUPERCATEGORY/CATEGORY/IMAGE.jpg"
        rows = (
            Row(where, image, f"{above}/{category}", split, numbers.setdefault(above, len(numbers)))
            for where, (image, above, category) in read_fields(place.source, file, pattern, form)
        )
        parts.append(place.part(file, rows))
    return Contents(parts)


@published("vehicleid", each="test")
def read_vehicleid(place: Place, *, test: TestList = "large", attribute: Attribute = "model") -> Contents:
    """Read PKU VehicleID with one of its test lists: the class is the vehicle as numbered.

    The attribute file has to be there; a part may lack it.

    Args:
        test: the test list: small, medium or large, of 800, 1,600 or 2,400 vehicles.
        attribute: what the super-label is, the vehicle's model or its color as numbered; −1 where it has none.

    Source: Liu et al., Deep relative distance learning (CVPR 2016), https://doi.org/10.1109/CVPR.2016.238.
    """
    files, values = {"train": _VEHICLE_TRAIN, "test": _VEHICLE_TESTS[test]}, f"attribute/{attribute}_attr.txt"
    problems = place.require(files.values(), [values])

    def pairs(file: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        return read_fields(place.source, file, rf"{NUMBER}\s+{NUMBER}", "two whole numbers with a blank between")

    def path_of(image: str) -> str:
        return f"image/{image.zfill(7)}.jpg"

    value_of = {vehicle: int(value) for _, (vehicle, value) in pairs(values)} if place.holds(values) else None
    parts = []
    for split, file in files.items():
        rows = (
            Row(where, path_of(image), vehicle, split, None if value_of is None else value_of.get(vehicle, -1))
            for where, (image, vehicle) in pairs(file)
        )
        parts.append(place.part(file, rows))
    return Contents(parts, problems)


@published("cub200")
def read_cub(place: Place) -> Contents:
    """Read CUB-200-2011: classes 1 to 100 are "train", 101 to 200 "test"; a class is named as its folder.

    Source: Wah et al., The Caltech-UCSD Birds-200-2011 Dataset (CNS-TR-2011-001), for the images; Song et al. (CVPR
        2016), https://arxiv.org/abs/1511.06452, section 6, for the halves, as `datasets/cub.py` of
        pytorch-metric-learning cuts them.
    """
    place.require(place.benchmark.files)
    names, classes = place.benchmark.files
    form = "the number of an image and what belongs to it"
    numbered = read_fields(place.source, classes, rf"{NUMBER}\s+{NUMBER}", f"{form}, a class")
    class_of = {image: number for _, (image, number) in numbered}
    rows: dict[int, list[Row]] = {}
    unknown, others = [], []
    for where, (image, name) in read_fields(place.source, names, rf"{NUMBER}\s+(.+)", form):
        number, folder = class_of.get(image), name.split("/")[0]
        if number is None:
            unknown.append(name)
            continue
        if folder.split(".")[0].lstrip("0") != number:
            others.append(f"{name} is of class {number}")
        rows.setdefault(int(number), []).append(Row(where, f"images/{name}", folder, "train"))
    problems = summarise(f"images without a class in {classes}", unknown)
    problems += summarise(f"images of another class in {classes}", others)
    return _in_halves(place, rows, problems, classes=200)


@published("cars196")
def read_cars(place: Place) -> Contents:
    """Read Cars-196: classes 1 to 98 are "train", 99 to 196 "test"; a class is named by its number.

    Two layouts are read: all images in one folder, and the two folders of the classification split; paths differ.

    Source: Krause et al., 3D object representations for fine-grained categorization (3dRR 2013), for the images; Song
        et al. (CVPR 2016), https://arxiv.org/abs/1511.06452, section 6, for the halves, as `datasets/cars196.py` of
        pytorch-metric-learning cuts them; `stanford_cars.py` of torchvision for the layout with devkit.
    """
    in_parts = not place.holds(_CARS_WHOLE) and any(map(place.holds, _CARS_PARTS))
    files: Mapping[str, str] = _CARS_PARTS if in_parts else {_CARS_WHOLE: ""}
    place.require(files)
    rows: dict[int, list[Row]] = {}
    for file, folder in files.items():
        with reading(f"{file} in {place.source.where}", "a Matlab file with 'annotations'", remedy="get it again"):
            for count, record in enumerate(read_mat(place.source, file, "annotations"), start=1):
                name, number = record["fname" if folder else "relative_im_path"], record["class"]
                if not isinstance(name, str) or number not in range(1, 197):
                    raise ValueError(f"record {count} has file {name!r} and class {number!r}")
                image = f"{folder}/{name}" if folder else name
                rows.setdefault(number, []).append(Row(f"{file}, record {count}", image, str(number), "train"))
    return _in_halves(place, rows, [], classes=196)


def _in_halves(place: Place, rows: Mapping[int, Sequence[Row]], problems: Sequence[str], *, classes: int) -> Contents:
    parts = []
    for name, split, first in zip(place.benchmark.sizes, ("train", "test"), (1, classes // 2 + 1), strict=True):
        half = range(first, first + classes // 2)
        parts.append(place.part(name, (row._replace(split=split) for number in half for row in rows.get(number, ()))))
    return Contents(parts, problems)


@published("inshop")
def read_inshop(place: Place, *, partition: str = _INSHOP_LIST, images: str | None = None) -> Contents:
    """Read In-shop Clothes Retrieval: the class is the item; queries search the gallery, not each other.

    Args:
        partition: the list file.
        images: the folder that the list's paths, img/…, start from; without it "Img", else that of Eval. "Img" may also
            hold the larger images of img_highres.zip under the same names: other pixels, the same checksum.

    Source: Liu et al., DeepFashion (CVPR 2016), for images and split; `inshop.py` of mmpretrain for the layout.
    """
    place.require([partition])
    header = [r"\d+", r"image_name\s+item_id\s+evaluation_status"]
    pattern, form = r"(\S+)\s+(\S+)\s+(train|query|gallery)", "an image, its item, and train, query or gallery"
    rows: dict[str, list[Row]] = {state: [] for state in place.benchmark.sizes}
    for where, (image, item, state) in read_fields(place.source, partition, pattern, form, header=header):
        split, role = ("train", "both") if state == "train" else ("test", state)
        rows[state].append(Row(where, image, item, split, role=cast(Role, role)))
    if images is None:
        listed = [row for held in rows.values() for row in held[:100]]
        images = "Img" if any(place.source.exists(f"Img/{row.path}") for row in listed) else ""
    return Contents([place.part(f"{state} of {partition}", rows[state], state) for state in rows], images=images)


@published("market1501")
def read_market(place: Place) -> Contents:
    """Read Market-1501: the class is the person as numbered, `groups` the six cameras.

    Junk (class −1) is left out, as no query may find it. Distractors (class 0000) stay in the gallery.

    Source: Zheng et al., Scalable Person Re-identification: A Benchmark (ICCV 2015). Its own Matlab code integrates
        precision by trapezoids (`trapezoid_ap`); torchreid and fast-reid take the AP that mauprc is. Layout and junk:
        `market1501.py` of torchreid (https://github.com/KaiyangZhou/deep-person-reid).
    """
    return _of_folders(place)


@published("veri776")
def read_veri(place: Place) -> Contents:
    """Read VeRi-776: the class is the vehicle as numbered, `groups` the twenty cameras.

    Queries search images, as in fast-reid, not tracks. They are in the gallery too, where their camera excludes them.

    Source: Liu et al., Large-scale vehicle re-identification in urban surveillance videos (ICME 2016). Layout:
        `veri.py` of fast-reid (https://github.com/JDAI-CV/fast-reid).
    """
    return _of_folders(place)


def _of_folders(place: Place) -> Contents:
    place.require(place.benchmark.files)
    pattern, example = _NAMES[place.benchmark.name]
    roles: tuple[Role, ...] = ("both", "query", "gallery")
    parts = []
    for folder, role in zip(place.benchmark.sizes, roles, strict=True):
        inside, rows = place.inside(folder), []
        for name in inside.names():
            if not name.lower().endswith(".jpg"):
                continue
            if (match := pattern.fullmatch(name)) is None:
                raise UserError(f"{inside.where}: image {name!r} is not named like {example}; remove or rename it")
            if match[1] != "-1":  # images that no query may find
                image, split = f"{folder}/{name}", "train" if role == "both" else "test"
                rows.append(Row(image, image, match[1], split, group=int(match[2]), role=role))
        parts.append(place.part(folder, rows))
    return Contents(parts)


@published("roxford5k", each="difficulty")
def read_roxford(place: Place, *, difficulty: Difficulty = "medium") -> Contents:
    """Read ROxford5k or RParis6k, all of it "test": 70 queries cut to their box, and a gallery that holds none of them.

    `positives` and `ignored` list the images for each query; each image is its own class. A query without a positive of
    that difficulty is skipped. Boxes are rounded to pixels, as Pillow's `crop` does.

    Args:
        difficulty: what is sought: "easy" and "hard" one kind of images, the other left out with the junk; "medium"
            both kinds, without the junk.

    Source: Radenović et al., Revisiting Oxford and Paris (CVPR 2018), https://arxiv.org/abs/1803.11285; `dataset.py`,
        `example_process_images.py` and `example_evaluate.py` of https://github.com/filipradenovic/revisitop.
    """
    (file,) = place.benchmark.files
    place.require([file])
    pairs: dict[str, list[tuple[int, int]]] = {"positives": [], "ignored": []}
    queries, gallery = [], []
    with reading(f"{file} in {place.source.where}", "the ground truth, a Matlab file", remedy="get it again"):
        names, others, judged = (read_mat(place.source, file, name) for name in ("qimlist", "imlist", "gnd"))
        for row, (name, record) in enumerate(zip(names, judged, strict=True)):
            where, path = f"query {row + 1}", f"jpg/{name}.jpg"
            x1, y1, x2, y2 = (round(float(value)) for value in np.ravel(record["bbx"]))
            if not (x1 < x2 and y1 < y2):
                raise ValueError(f"nothing lies in the box {x1},{y1},{x2},{y2} of {where}")
            box = max(0, x1), max(0, y1), x2, y2
            queries.append(Row(f"{file}, {where}", path, path, "test", role="query", box=box))
            for column, kinds in _JUDGED[difficulty].items():
                images = np.concatenate([np.ravel(record[kind]) for kind in kinds])  # Matlab's numbers are fractions
                if not np.isin(images, np.arange(1, len(others) + 1)).all():
                    raise ValueError(f"{where} names images that are not from 1 to {len(others)}")
                pairs[column] += [(row, int(image) - 1) for image in images]
        for row, name in enumerate(others):
            path = f"jpg/{name}.jpg"
            gallery.append(Row(f"{file}, image {row + 1}", path, path, "test", role="gallery"))
    parts = [place.part("queries", queries), place.part("images", gallery)]
    return Contents(parts, positives=pairs["positives"], ignored=pairs["ignored"])


read_rparis = published("rparis6k", each="difficulty")(read_roxford.read)

"""CUB-200-2011 and Cars-196 in halves of classes: the first half trains, the second tests.

Both were made for classification, with official lists that have all classes in training and test. Metric learning
measures on classes that training has never seen, so these lists are not used, and numbers by them are others.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from aurank.data.manifest import Manifest
from aurank.data.readers import published
from aurank.data.readers._rows import Row, is_number, read_lines, read_mat
from aurank.data.sources import ImageSource
from aurank.errors import UserError

_HALVES = "classes, not the official lists, which are for classification: numbers by those cannot be compared"
_CUB_ORIGIN = "https://data.caltech.edu/records/65de6-vp158 (CUB_200_2011.tgz)"
_CUB_IMAGES, _CUB_CLASSES = "images.txt", "image_class_labels.txt"

# Sizes: of the halves as papers on metric learning state them; 11,788 images together is official. The md5 is the one
# that public loaders agree on.
CUB = published.Benchmark(
    name="cub200",
    title="CUB-200-2011",
    folders=("CUB_200_2011", "CUB_200_2011/CUB_200_2011", "."),
    layout="CUB_200_2011/{images.txt, image_class_labels.txt, images/001.Black_footed_Albatross/IMAGE.jpg}",
    origin=_CUB_ORIGIN,
    terms="non-commercial research and education only; the photographers keep their rights",
    files=(
        published.OfficialFile(_CUB_IMAGES, "the images", _CUB_ORIGIN),
        published.OfficialFile(_CUB_CLASSES, "the class of each image", _CUB_ORIGIN),
        published.OfficialFile("train_test_split.txt", "the split for classification", _CUB_ORIGIN, needed=False),
    ),
    sizes={
        "classes 1 to 100": published.SplitSize(5_864, 100),
        "classes 101 to 200": published.SplitSize(5_924, 100),
    },
    archives={"CUB_200_2011.tgz": "97eceeb196236b17998738112f37df78"},
    remark=f"it is split by {_HALVES}",
)

_CARS_ORIGIN = (
    "a copy (https://ai.stanford.edu/~jkrause/cars/car_dataset.html is gone) of car_ims.tgz and cars_annos.mat, or of "
    "car_devkit.tgz, cars_train.tgz, cars_test.tgz and cars_test_annos_withlabels.mat"
)
_CARS_WHOLE = "cars_annos.mat"
_CARS_PARTS = {"devkit/cars_train_annos.mat": "cars_train", "cars_test_annos_withlabels.mat": "cars_test"}
# Sizes: as for CUB, 16,185 images together.
CARS = published.Benchmark(
    name="cars196",
    title="Cars-196",
    folders=("cars196", "stanford_cars", "cars", "CARS196", "."),
    layout="cars196/{cars_annos.mat, car_ims/000001.jpg}, or stanford_cars/{devkit/cars_train_annos.mat, "
    "cars_test_annos_withlabels.mat, cars_train/00001.jpg, cars_test/00001.jpg}",
    origin=_CARS_ORIGIN,
    terms="non-commercial research only (ImageNet's terms)",
    files=(
        published.OfficialFile(_CARS_WHOLE, "all annotations, with car_ims", _CARS_ORIGIN, needed=False),
        published.OfficialFile(
            "devkit/cars_train_annos.mat", "the annotations of cars_train", _CARS_ORIGIN, needed=False
        ),
        published.OfficialFile(
            "cars_test_annos_withlabels.mat", "the annotations of cars_test", _CARS_ORIGIN, needed=False
        ),
    ),
    sizes={"classes 1 to 98": published.SplitSize(8_054, 98), "classes 99 to 196": published.SplitSize(8_131, 98)},
    remark=f"it is split by {_HALVES}",
)


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
    return published.read_published(CUB, root, path, examine_cub, complete=complete)


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
    return published.read_published(CARS, root, path, examine_cars, complete=complete)


def examine_cub(place: published.Place) -> published.Reading:
    """Return the halves of CUB-200-2011 as found, and what differs."""
    problems = place.missing(file for file in CUB.files if file.needed)
    if problems:
        return published.Reading(None, problems)
    class_of = {image: number for _, image, number in _pairs(place.source, _CUB_CLASSES)}
    found: dict[int, list[Row]] = {}
    unknown, others = [], []
    for where, image, name in _pairs(place.source, _CUB_IMAGES):
        number, folder = class_of.get(image), name.split("/")[0]
        if number is None or not is_number(number):
            unknown.append(name)
            continue
        if folder.split(".")[0].lstrip("0") != number:
            others.append(f"{name} is of class {number}")
        found.setdefault(int(number), []).append(Row(where, f"images/{name}", folder, "train"))
    problems += published.summarise(f"images without a class in {_CUB_CLASSES}", unknown)
    problems += published.summarise(f"images of another class in {_CUB_CLASSES}", others)
    return _in_halves(place, found, problems, classes=200)


def examine_cars(place: published.Place) -> published.Reading:
    """Return the halves of Cars-196 as found, and what differs."""
    source = place.source
    parts = {} if source.exists(_CARS_WHOLE) else _CARS_PARTS
    needed = set(parts) if any(map(source.exists, parts)) else {_CARS_WHOLE}
    problems = place.missing(file for file in CARS.files if file.path in needed)
    if problems:
        return published.Reading(None, problems)
    found: dict[int, list[Row]] = {}
    for file, folder in (parts or {_CARS_WHOLE: ""}).items():
        for place_in_file, record in enumerate(read_mat(source, file, "annotations"), start=1):
            where = f"{file}, record {place_in_file}"
            name, number = record.get("fname" if folder else "relative_im_path"), record.get("class")
            if not isinstance(name, str) or not isinstance(number, int) or not 1 <= number <= 196:
                raise UserError(f"{where}: expected a file and a class from 1 to 196, got {name!r} and {number!r}")
            path = f"{folder}/{name}" if folder else name
            found.setdefault(number, []).append(Row(where, path, str(number), "train"))
    return _in_halves(place, found, problems, classes=196)


def _in_halves(
    place: published.Place, found: Mapping[int, Sequence[Row]], problems: Sequence[str], *, classes: int
) -> published.Reading:
    """Return the classes numbered up to the half as "train", the others as "test"."""
    parts = []
    for (name, expected), split, first in zip(
        place.benchmark.sizes.items(), ("train", "test"), (1, classes // 2 + 1), strict=True
    ):
        half = range(first, first + classes // 2)
        rows = [row._replace(split=split) for number in half for row in found.get(number, ())]
        parts.append(published.Part(name, rows, expected))
    return published.examine_parts(place, parts, problems)


def _pairs(source: ImageSource, file: str) -> Iterator[tuple[str, str, str]]:
    """Yield where each line is, the number of its image, and what the file has of it."""
    for where, line in read_lines(source, file):
        fields = line.split(maxsplit=1)
        if len(fields) != 2 or not is_number(fields[0]):
            raise UserError(f"{where}: expected the number of an image and what belongs to it, got {line!r}")
        yield where, fields[0], fields[1]

"""Re-identification sets with cameras: Market-1501, MSMT17, VeRi-776 and VERI-Wild.

In all of them queries search a gallery, and gallery images of the query's own class and camera do not count (`groups`
are the cameras). mauprc is then what their tools call mAP, recall@k CMC rank-k, and minp mINP.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from aurank.data.manifest import Manifest
from aurank.data.readers import published
from aurank.data.readers._rows import Row, is_number, read_lines
from aurank.data.sources import ImageSource, holds_folder, open_source
from aurank.errors import UserError

WildList = Literal["small", "medium", "large"]
Role = Literal["both", "query", "gallery"]


class _Folders(NamedTuple):
    """Where a set that names class and camera in its file names has the images of each role."""

    pattern: re.Pattern[str]  # of a file's name: class, camera
    example: str
    role_of: Mapping[str, Role]  # "both" is training
    junk: str = ""  # the class of images that no query may find


def _folders(names: Iterable[str], origin: str) -> tuple[published.OfficialFile, ...]:
    holds = ("the training images", "the queries", "the gallery")
    return tuple(published.OfficialFile(f"{name}/", what, origin) for name, what in zip(names, holds, strict=True))


_MARKET_ORIGIN = "https://zheng-lab.cecs.anu.edu.au/Project/project_reid.html (Market-1501-v15.09.15.zip)"
# Sizes: those of torchreid's market1501.py, junk left out; the md5 is that of open-reid's market1501.py.
MARKET = published.Benchmark(
    name="market1501",
    title="Market-1501",
    folders=(
        "Market-1501-v15.09.15",
        "Market-1501-v15.09.15.zip",
        "market1501/Market-1501-v15.09.15",
        "market1501",
        ".",
    ),
    layout="Market-1501-v15.09.15/{bounding_box_train, query, bounding_box_test}/0002_c1s1_000451_03.jpg",
    origin=_MARKET_ORIGIN,
    terms="research only",
    files=_folders(("bounding_box_train", "query", "bounding_box_test"), _MARKET_ORIGIN),
    sizes={
        "bounding_box_train": published.SplitSize(12_936, 751),
        "query": published.SplitSize(3_368, 750),
        "bounding_box_test": published.SplitSize(15_913, 751),
    },
    archives={"Market-1501-v15.09.15.zip": "65005ab7d12ec1c44de4eeafe813e68a"},
)
_VERI_ORIGIN = "https://vehiclereid.github.io/VeRi/ (on written request)"
# Sizes: those of fast-reid's veri.py and of the set's own evaluation script: 576 vehicles train, 200 test.
VERI = published.Benchmark(
    name="veri776",
    title="VeRi-776",
    folders=("VeRi", "veri", "VeRi_with_plate", "."),
    layout="VeRi/{image_train, image_query, image_test}/0002_c002_00030600_0.jpg",
    origin=_VERI_ORIGIN,
    terms="non-commercial research only",
    files=_folders(("image_train", "image_query", "image_test"), _VERI_ORIGIN),
    sizes={
        "image_train": published.SplitSize(37_778, 576),
        "image_query": published.SplitSize(1_678, 200),
        "image_test": published.SplitSize(11_579, 200),
    },
)
_FOLDERS = {
    MARKET.name: _Folders(
        re.compile(r"(-1|\d{4})_c(\d)s\d_.*"),
        "0002_c1s1_000451_03.jpg",
        {"bounding_box_train": "both", "query": "query", "bounding_box_test": "gallery"},
        junk="-1",
    ),
    VERI.name: _Folders(
        re.compile(r"(\d{4})_c(\d{3})_.*"),
        "0002_c002_00030600_0.jpg",
        {"image_train": "both", "image_query": "query", "image_test": "gallery"},
    ),
}

_MSMT_ORIGIN = "https://www.pkuvmc.com/dataset.html (on written request)"
_MSMT_LISTS = {
    "list_train.txt": "the training list",
    "list_val.txt": "the rest of it",
    "list_query.txt": "the queries",
    "list_gallery.txt": "the gallery",
}
_MSMT_TRAIN = "list_train.txt and list_val.txt"
# Sizes: those of torchreid's msmt17.py.
MSMT = published.Benchmark(
    name="msmt17",
    title="MSMT17",
    folders=("MSMT17_V1", "MSMT17_V2", "msmt17/MSMT17_V1", "msmt17/MSMT17_V2", "MSMT17", "."),
    layout="MSMT17_V1/{list_train.txt, list_val.txt, list_query.txt, list_gallery.txt, "
    "train/0000/0000_000_01_0303morning_0008_0.jpg, test/…}; in MSMT17_V2 mask_train_v2 and mask_test_v2",
    origin=_MSMT_ORIGIN,
    terms="non-commercial research only, images may not be passed on",
    files=tuple(published.OfficialFile(path, holds, _MSMT_ORIGIN) for path, holds in _MSMT_LISTS.items()),
    sizes={
        _MSMT_TRAIN: published.SplitSize(32_621, 1_041),
        "list_query.txt": published.SplitSize(11_659, 3_060),
        "list_gallery.txt": published.SplitSize(82_161, 3_060),
    },
)

_WILD_ORIGIN = "https://github.com/PKU-IMRE/VERI-Wild"
_WILD_FOLDER = "train_test_split"
_WILD_COUNTS = {"small": 3000, "medium": 5000, "large": 10000}
_WILD_TRAIN, _WILD_CAMERAS = f"{_WILD_FOLDER}/train_list.txt", f"{_WILD_FOLDER}/vehicle_info.txt"
_WILD_TESTS = {
    size: (f"{_WILD_FOLDER}/test_{count}_query.txt", f"{_WILD_FOLDER}/test_{count}.txt")
    for size, count in _WILD_COUNTS.items()
}
# Sizes: the totals of fast-reid's veriwild.py (41,861, 69,389 and 138,517), of which one image a vehicle is the query.
WILD = published.Benchmark(
    name="veriwild",
    title="VERI-Wild",
    folders=("VERI-Wild", "veri-wild", "VeRi-Wild", "."),
    layout="VERI-Wild/{images/00001/000001.jpg, train_test_split/{train_list, vehicle_info, test_3000, "
    "test_3000_query, test_5000, test_5000_query, test_10000, test_10000_query}.txt}",
    origin=_WILD_ORIGIN,
    terms="research only",
    files=(
        published.OfficialFile(_WILD_TRAIN, "the training list", _WILD_ORIGIN),
        published.OfficialFile(_WILD_CAMERAS, "the camera of each image", _WILD_ORIGIN),
        *(
            published.OfficialFile(path, f"the {what} of the {size} test", _WILD_ORIGIN)
            for size, files in _WILD_TESTS.items()
            for path, what in zip(files, ("queries", "gallery"), strict=True)
        ),
    ),
    sizes={
        _WILD_TRAIN: published.SplitSize(277_797, 30_671),
        **{
            path: published.SplitSize(images, _WILD_COUNTS[size])
            for size, total in (("small", 41_861), ("medium", 69_389), ("large", 138_517))
            for path, images in zip(_WILD_TESTS[size], (_WILD_COUNTS[size], total - _WILD_COUNTS[size]), strict=True)
        },
    },
)


def read_market(root: Path, *, path: str | None = None, complete: bool = True) -> Manifest:
    """Return Market-1501: the class is the person as numbered, `groups` the six cameras.

    Args:
        path: without it, `Market-1501-v15.09.15`, that name with ".zip", `market1501` and `root` itself are tried.
        complete: True insists on the published sizes; False reads a part.

    Junk (class −1: parts of persons, false alarms) is left out, as no query may find it. Distractors (class 0000) stay
    in the gallery, as images of nobody that is looked for.

    Source: Zheng et al., Scalable Person Re-identification: A Benchmark (ICCV 2015). Its own Matlab code integrates
        precision by trapezoids (`trapezoid_ap`); torchreid and fast-reid take the AP that mauprc is. Layout and junk:
        `market1501.py` of torchreid (https://github.com/KaiyangZhou/deep-person-reid).
    """
    return published.read_published(MARKET, root, path, examine_folders, complete=complete)


def read_veri(root: Path, *, path: str | None = None, complete: bool = True) -> Manifest:
    """Return VeRi-776: the class is the vehicle as numbered, `groups` the twenty cameras.

    Args:
        path: without it, `VeRi`, `veri`, `VeRi_with_plate` and `root` itself are tried.
        complete: True insists on the published sizes; False reads a part.

    Queries search images, as in fast-reid. The paper's own search of tracks by images is another measure. The queries
    are in the gallery as well, where their own camera leaves them out.

    Source: Liu et al., Large-scale vehicle re-identification in urban surveillance videos (ICME 2016). Layout:
        `veri.py` of fast-reid (https://github.com/JDAI-CV/fast-reid).
    """
    return published.read_published(VERI, root, path, examine_folders, complete=complete)


def read_msmt(root: Path, *, path: str | None = None, validation: bool = False, complete: bool = True) -> Manifest:
    """Return MSMT17: the class is "train/PERSON" or "test/PERSON", for both count from 0; `groups` are 15 cameras.

    Args:
        path: without it, `MSMT17_V1`, `MSMT17_V2`, both in `msmt17`, `MSMT17` and `root` itself are tried.
        validation: True makes `list_val.txt`, 2,373 images of the persons that train, the split "val"; False adds it to
            training, which makes the published 32,621 images. Tools differ in that: torchreid leaves it out.
        complete: True insists on the published sizes; False reads a part.

    Source: Wei et al., Person Transfer GAN to Bridge Domain Gap (CVPR 2018), https://arxiv.org/abs/1711.08565. Layout
        of both versions, of which the second has blurred faces: `msmt17.py` of torchreid and of fast-reid.
    """
    examine = functools.partial(examine_msmt, validation=validation)
    return published.read_published(MSMT, root, path, examine, complete=complete)


def read_wild(root: Path, *, path: str | None = None, test: WildList = "large", complete: bool = True) -> Manifest:
    """Return VERI-Wild with one of its test lists: the class is the vehicle as numbered, `groups` 174 cameras.

    Args:
        path: without it, `VERI-Wild`, `veri-wild`, `VeRi-Wild` and `root` itself are tried.
        test: small, medium or large: 3,000, 5,000 or 10,000 vehicles with one query each.
        complete: True insists on the published sizes; False reads a part.

    Source: Lou et al., VERI-Wild (CVPR 2019). Layout and the camera's part in it: `veriwild.py` of fast-reid, which
        leaves gallery images of a query's vehicle and camera out.
    """
    if test not in get_args(WildList):
        raise UserError(f"veriwild: test must be one of {', '.join(get_args(WildList))}, got {test!r}")
    return published.read_published(WILD, root, path, functools.partial(examine_wild, test=test), complete=complete)


def examine_folders(place: published.Place) -> published.Reading:
    """Return Market-1501 or VeRi-776 as found in its three folders, and what differs."""
    known = _FOLDERS[place.benchmark.name]
    missing = place.missing(place.benchmark.files)
    if missing:
        return published.Reading(None, missing)
    parts = []
    for folder, role in known.role_of.items():
        rows = list(_folder_rows(place, folder, role, known))
        parts.append(published.Part(folder, rows, place.benchmark.sizes[folder]))
    return published.examine_parts(place, parts, [])


def _folder_rows(place: published.Place, folder: str, role: Role, known: _Folders) -> Iterator[Row]:
    inside = open_source(place.path, prefix=f"{place.prefix}/{folder}".lstrip("/"))
    split = "train" if role == "both" else "test"
    for name in inside.names():
        if not name.lower().endswith(".jpg"):
            continue
        found = known.pattern.fullmatch(name)
        if found is None:
            raise UserError(f"{inside.where}: image {name!r} is not named like {known.example}; remove or rename it")
        if found[1] != known.junk:
            yield Row(f"{folder}/{name}", f"{folder}/{name}", found[1], split, group=int(found[2]), role=role)


def examine_msmt(place: published.Place, *, validation: bool = False) -> published.Reading:
    """Return MSMT17 as found, and what differs."""
    missing = place.missing(MSMT.files)
    if missing:
        return published.Reading(None, missing)
    is_second = holds_folder(place.source, "mask_train_v2")
    train, test = ("mask_train_v2", "mask_test_v2") if is_second else ("train", "test")
    training = list(_msmt_rows(place.source, "list_train.txt", train, "train"))
    training += _msmt_rows(place.source, "list_val.txt", train, "val" if validation else "train")
    parts = [published.Part(_MSMT_TRAIN, training, MSMT.sizes[_MSMT_TRAIN])]
    roles: Mapping[str, Role] = {"list_query.txt": "query", "list_gallery.txt": "gallery"}
    for file, role in roles.items():
        rows = list(_msmt_rows(place.source, file, test, "test", role))
        parts.append(published.Part(file, rows, MSMT.sizes[file]))
    return published.examine_parts(place, parts, [])


def _msmt_rows(source: ImageSource, file: str, folder: str, split: str, role: Role = "both") -> Iterator[Row]:
    kind = "test" if split == "test" else "train"
    for where, line in read_lines(source, file):
        fields = line.split()
        camera = fields[0].split("/")[-1].split("_")[2:3]
        if len(fields) != 2 or not is_number(fields[1]) or not camera or not is_number(camera[0]):
            expected = "an image such as 0000/0000_000_01_0303morning_0008_0.jpg and the number of its person"
            raise UserError(f"{where}: expected {expected}, got {line!r}")
        yield Row(where, f"{folder}/{fields[0]}", f"{kind}/{fields[1]}", split, group=int(camera[0]), role=role)


def examine_wild(place: published.Place, *, test: WildList) -> published.Reading:
    """Return VERI-Wild with one of its test lists as found, and what differs."""
    roles: dict[str, Role] = {_WILD_TRAIN: "both", _WILD_TESTS[test][0]: "query", _WILD_TESTS[test][1]: "gallery"}
    missing = place.missing(file for file in WILD.files if file.path in {*roles, _WILD_CAMERAS})
    if missing:
        return published.Reading(None, missing)
    camera_of = dict(_wild_cameras(place.source))
    unknown: list[str] = []
    parts = []
    for file, role in roles.items():
        rows = []
        for where, image in read_lines(place.source, file):
            if image.count("/") != 1:
                raise UserError(f"{where}: expected VEHICLE/IMAGE, such as 00001/000001, got {image!r}")
            camera = camera_of.get(image)
            unknown += [] if camera is not None else [image]
            split = "train" if role == "both" else "test"
            rows.append(Row(where, f"images/{image}.jpg", image.split("/")[0], split, group=camera, role=role))
        parts.append(published.Part(file, rows, WILD.sizes[file]))
    return published.examine_parts(
        place, parts, published.summarise(f"images without a camera in {_WILD_CAMERAS}", unknown)
    )


def _wild_cameras(source: ImageSource) -> Iterator[tuple[str, int]]:
    """Yield each image, VEHICLE/IMAGE, with its camera."""
    lines = read_lines(source, _WILD_CAMERAS)
    next(lines, None)  # the header: id/image;Camera ID;Time;Model;Type;Color
    for where, line in lines:
        fields = line.split(";")
        if len(fields) < 2 or not is_number(fields[1].strip()):
            raise UserError(f"{where}: expected VEHICLE/IMAGE;CAMERA;…, got {line!r}")
        yield fields[0].strip(), int(fields[1])

"""Re-identification sets with cameras: Market-1501, MSMT17, VeRi-776 and VERI-Wild.

In all of them queries search a gallery, and gallery images of the query's own class and camera do not count (`groups`
are the cameras). mauprc is then what their tools call mAP, recall@k CMC rank-k, and minp mINP.
"""

import functools
import re
from pathlib import Path
from typing import Literal

from aurank.data.manifest import Manifest
from aurank.data.readers.facts import MARKET, MSMT, MSMT_TRAIN, VERI, WILD, WILD_CAMERAS, WILD_TESTS, WILD_TRAIN
from aurank.data.readers.lines import NUMBER, Role, Row, read_fields
from aurank.data.readers.published import Part, Place, Reading, compare_parts, read_published, summarise
from aurank.errors import UserError

WildList = Literal["small", "medium", "large"]
# What the name of a file says, its class and camera; and an example.
_NAMES = {
    MARKET.name: (re.compile(r"(-1|\d{4})_c(\d)s\d_.*"), "0002_c1s1_000451_03.jpg"),
    VERI.name: (re.compile(r"(\d{4})_c(\d{3})_.*"), "0002_c002_00030600_0.jpg"),
}
_JUNK = "-1"  # the class of images that no query may find


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
    return read_published(MARKET, root, path, examine_folders, complete=complete)


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
    return read_published(VERI, root, path, examine_folders, complete=complete)


def examine_folders(place: Place) -> Reading:
    """Return Market-1501 or VeRi-776 as found in its three folders, and what differs."""
    if missing := place.missing(place.benchmark.files):
        return Reading(None, missing)
    pattern, example = _NAMES[place.benchmark.name]
    roles: tuple[Role, ...] = ("both", "query", "gallery")
    parts = []
    for (folder, expected), role in zip(place.benchmark.sizes.items(), roles, strict=True):
        inside, rows = place.inside(folder), []
        for name in inside.names():
            if not name.lower().endswith(".jpg"):
                continue
            if (found := pattern.fullmatch(name)) is None:
                raise UserError(f"{inside.where}: image {name!r} is not named like {example}; remove or rename it")
            if found[1] != _JUNK:
                image, split = f"{folder}/{name}", "train" if role == "both" else "test"
                rows.append(Row(image, image, found[1], split, group=int(found[2]), role=role))
        parts.append(Part(folder, rows, expected))
    return compare_parts(place, parts)


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
    return read_published(MSMT, root, path, examine, complete=complete)


def examine_msmt(place: Place, *, validation: bool = False) -> Reading:
    """Return MSMT17 as found, and what differs."""
    if missing := place.missing(MSMT.files):
        return Reading(None, missing)
    folders = {"train": "train", "test": "test"}
    if place.holds("mask_train_v2/"):
        folders = {"train": "mask_train_v2", "test": "mask_test_v2"}

    def rows_of(file: str, kind: str, split: str, role: Role = "both") -> list[Row]:
        pattern = rf"((?:\S*/)?[^/\s_]*_[^/\s_]*_{NUMBER}(?:_[^/\s]*)?)\s+{NUMBER}"
        form = "an image such as 0000/0000_000_01_0303morning_0008_0.jpg and the number of its person"
        return [
            Row(where, f"{folders[kind]}/{image}", f"{kind}/{person}", split, group=int(camera), role=role)
            for where, (image, camera, person) in read_fields(place.source, file, pattern, form)
        ]

    training = rows_of("list_train.txt", "train", "train")
    training += rows_of("list_val.txt", "train", "val" if validation else "train")
    rows = {
        MSMT_TRAIN: training,
        "list_query.txt": rows_of("list_query.txt", "test", "test", "query"),
        "list_gallery.txt": rows_of("list_gallery.txt", "test", "test", "gallery"),
    }
    return compare_parts(place, [Part(name, held, MSMT.sizes[name]) for name, held in rows.items()])


def read_wild(root: Path, *, path: str | None = None, test: WildList = "large", complete: bool = True) -> Manifest:
    """Return VERI-Wild with one of its test lists: the class is the vehicle as numbered, `groups` 174 cameras.

    Args:
        path: without it, `VERI-Wild`, `veri-wild`, `VeRi-Wild` and `root` itself are tried.
        test: small, medium or large: 3,000, 5,000 or 10,000 vehicles with one query each.
        complete: True insists on the published sizes; False reads a part.

    Source: Lou et al., VERI-Wild (CVPR 2019). Layout and the camera's part in it: `veriwild.py` of fast-reid, which
        leaves gallery images of a query's vehicle and camera out.
    """
    return read_published(WILD, root, path, functools.partial(examine_wild, test=test), complete=complete)


def examine_wild(place: Place, *, test: WildList) -> Reading:
    """Return VERI-Wild with one of its test lists as found, and what differs."""
    roles: dict[str, Role] = {WILD_TRAIN: "both", WILD_TESTS[test][0]: "query", WILD_TESTS[test][1]: "gallery"}
    if missing := place.missing((*roles, WILD_CAMERAS)):
        return Reading(None, missing)
    source = place.source
    # The header: id/image;Camera ID;Time;Model;Type;Color
    cameras = read_fields(
        source, WILD_CAMERAS, rf"([^;]*);\s*{NUMBER}\s*(?:;.*)?", "VEHICLE/IMAGE;CAMERA;…", header=[".*"]
    )
    camera_of = {image.strip(): int(camera) for _, (image, camera) in cameras}
    unknown: list[str] = []
    parts = []
    for file, role in roles.items():
        rows = []
        for where, (image, vehicle) in read_fields(
            source, file, "(([^/]*)/[^/]*)", "VEHICLE/IMAGE, such as 00001/000001"
        ):
            camera = camera_of.get(image)
            unknown += [] if camera is not None else [image]
            split = "train" if role == "both" else "test"
            rows.append(Row(where, f"images/{image}.jpg", vehicle, split, group=camera, role=role))
        parts.append(Part(file, rows, WILD.sizes[file]))
    return compare_parts(place, parts, summarise(f"images without a camera in {WILD_CAMERAS}", unknown))

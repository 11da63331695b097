"""Readers of Stanford Online Products, iNaturalist 2018 and PKU VehicleID in their official layouts."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from aurank.data.manifest import Manifest, build_manifest, first_seen
from aurank.data.readers.benchmarks.facts import (
    BENCHMARKS,
    INATURALIST_TEST,
    INATURALIST_TRAIN,
    VEHICLEID_ATTRIBUTES,
    VEHICLEID_IMAGES,
    VEHICLEID_LISTS,
    VEHICLEID_TRAIN,
    OfficialFile,
)
from aurank.data.readers.benchmarks.places import Place, disagreements, found, wrong_lines, wrong_size
from aurank.data.readers.table import DIGITS, check_listing, lists, read_text
from aurank.data.sources import ImageSource
from aurank.errors import UserError, first_line

TestList = Literal["small", "medium", "large"]
Attribute = Literal["model", "color"]

_SUBSET = "data.params.complete=false reads it as the part that it is"


@dataclass(frozen=True)
class Reading:
    """What was read of a benchmark, and all that differs from its published form, one line each."""

    manifest: Manifest | None  # None where a list is missing
    problems: tuple[str, ...]


def sop(
    root: Path,
    *,
    path: str | None = None,
    train: str = "Ebay_train.txt",
    test: str = "Ebay_test.txt",
    images: str = "",
    complete: bool = True,
) -> Manifest:
    """Returns Stanford Online Products: the class is the product as numbered, the super-label its category, 1 … 12.

    Args:
        root: the data folder.
        path: the folder or zip archive below it; without it, `Stanford_Online_Products`, that name with ".zip", and
            `root` itself are tried.
        train, test, images: the lists, and the folder that their paths start from, as `lists` has them.
        complete: True insists on the published sizes; False reads any set in this format.

    Source: Song et al., Deep metric learning via lifted structured feature embedding (CVPR 2016).
    """
    place = found(BENCHMARKS["sop"], root, path)
    return _whole(place, examine_sop(place, train=train, test=test, images=images), complete=complete)


def examine_sop(
    place: Place, *, train: str = "Ebay_train.txt", test: str = "Ebay_test.txt", images: str = ""
) -> Reading:
    """Returns the lists of Stanford Online Products as found, and what differs."""
    origin = place.benchmark.origin
    files = [OfficialFile(train, "the training list", origin), OfficialFile(test, "the test list", origin)]
    lacking = place.missing(files)
    if lacking:
        return Reading(None, tuple(lacking))
    inside = f"{place.prefix}/" if place.prefix else ""
    manifest = lists(place.root, path=str(place.path), train=inside + train, test=inside + test, images=inside + images)
    sizes = place.benchmark.sizes
    problems = [
        *wrong_size(train, manifest, "train", sizes["Ebay_train.txt"]),
        *wrong_size(test, manifest, "test", sizes["Ebay_test.txt"]),
    ]
    return Reading(dataclasses.replace(manifest, name="sop"), tuple(problems))


def inaturalist2018(root: Path, *, path: str | None = None, complete: bool = True) -> Manifest:
    """Returns iNaturalist 2018 in the retrieval split of Smooth-AP: the class is "SUPERCATEGORY/CATEGORY".

    Args:
        root: the data folder.
        path: the folder below it; without it, `Inaturalist` and `root` itself are tried.
        complete: True insists on the published sizes and on both annotation files, train2018.json and val2018.json,
            and that they agree with the split; False reads a part, with the annotations where they are there.

    The split's lists name images only, so the class is read from the path. `super_labels` number the super-categories.
    Sources: Van Horn et al. (CVPR 2018) for the images; Brown et al., Smooth-AP (ECCV 2020) for the split.
    """
    place = found(BENCHMARKS["inaturalist2018"], root, path)
    return _whole(place, examine_inaturalist(place), complete=complete)


def examine_inaturalist(place: Place) -> Reading:
    """Returns the split of iNaturalist 2018 as found, and what differs."""
    source = place.source
    problems = place.missing(place.benchmark.files)
    if not (source.exists(INATURALIST_TRAIN) and source.exists(INATURALIST_TEST)):
        return Reading(None, tuple(problems))
    rows: list[tuple[str, str, str, str]] = []  # split, where, path, class
    for split, file in (("train", INATURALIST_TRAIN), ("test", INATURALIST_TEST)):
        for number, line in enumerate(read_text(source, file).splitlines(), start=1):
            if line.strip():
                where, image = f"{file}, line {number}", line.strip()
                rows.append((split, where, image, _species(image, where)))
    paths = [row[2] for row in rows]
    labels = [row[3] for row in rows]
    check_listing(source, [row[1] for row in rows], paths, labels)
    super_categories = first_seen(label.split("/")[0] for label in labels)
    manifest = build_manifest(
        "inaturalist2018",
        source,
        paths=paths,
        labels=labels,
        splits=[row[0] for row in rows],
        super_labels=[super_categories[label.split("/")[0]] for label in labels],
    )
    sizes = place.benchmark.sizes
    problems += wrong_size(INATURALIST_TRAIN, manifest, "train", sizes[INATURALIST_TRAIN])
    problems += wrong_size(INATURALIST_TEST, manifest, "test", sizes[INATURALIST_TEST])
    problems += _annotation_problems(place, paths, labels)
    return Reading(manifest, tuple(problems))


def _species(image: str, where: str) -> str:
    parts = image.split("/")
    if len(parts) < 3:
        raise UserError(f"{where}: expected train_val2018/SUPERCATEGORY/CATEGORY/IMAGE.jpg, got {image!r}")
    return f"{parts[-3]}/{parts[-2]}"


def _annotation_problems(place: Place, paths: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Returns how the annotation files, those that are there, differ from their published size and from the lists."""
    present = [file for file in ("train2018.json", "val2018.json") if place.source.exists(file)]
    annotated: dict[str, str] = {}
    problems = []
    for file in present:
        classes = _annotations(place.source, file)
        problems += wrong_lines(file, len(classes), place.benchmark)
        annotated |= classes
    if len(present) == 2:  # one alone does not know all images
        unknown = [path for path in paths if path not in annotated]
        problems += disagreements("images of the split lists that neither annotation file holds", unknown)
        different = [
            f"{path} is {annotated[path]}"
            for path, label in zip(paths, labels, strict=True)
            if annotated.get(path, label) != label
        ]
        problems += disagreements("images of another class in the annotation files", different)
    return problems


def _annotations(source: ImageSource, file: str) -> dict[str, str]:
    """Returns the class "SUPERCATEGORY/CATEGORY" of each image in an annotation file of the competition, by path."""
    try:
        content = json.loads(read_text(source, file))
        names = {category["id"]: category["supercategory"] for category in content["categories"]}
        category_of = {note["image_id"]: note["category_id"] for note in content["annotations"]}
        return {
            str(image["file_name"]): f"{names[category_of[image['id']]]}/{category_of[image['id']]}"
            for image in content["images"]
        }
    # Not JSON, nested without end, or other things where these should be.
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{file} in {source.where} is not the competition's annotation file ({type(error).__name__}: "
            f"{first_line(error)}); unpack {file}.tar.gz again"
        ) from None


def vehicleid(
    root: Path,
    *,
    path: str | None = None,
    test: TestList = "large",
    attribute: Attribute = "model",
    complete: bool = True,
) -> Manifest:
    """Returns PKU VehicleID with one of its test lists: the class is the vehicle as numbered.

    Args:
        root: the data folder.
        path: the folder below it; without it, `VehicleID_V1.0` and `root` itself are tried.
        test: the test list: small, medium or large, of 800, 1,600 or 2,400 vehicles.
        attribute: what the super-label is, the vehicle's model or its color as numbered; −1 where it has none.
        complete: True insists on the published sizes and on the attribute files, and that img2vid.txt agrees with the
            lists; False reads a part, with these files where they are there.

    Source: Liu et al., Deep relative distance learning (CVPR 2016).
    """
    for name, value, known in (("test", test, TestList), ("attribute", attribute, Attribute)):
        if value not in get_args(known):
            raise UserError(f"vehicleid: {name} must be one of {', '.join(get_args(known))}, got {value!r}")
    place = found(BENCHMARKS["vehicleid"], root, path)
    return _whole(place, examine_vehicleid(place, test=test, attribute=attribute), complete=complete)


def examine_vehicleid(place: Place, *, test: TestList, attribute: Attribute = "model") -> Reading:
    """Returns PKU VehicleID with one of its test lists as found, and what differs."""
    source = place.source
    files = {"train": VEHICLEID_TRAIN, "test": VEHICLEID_LISTS[test]}
    read = {*files.values(), VEHICLEID_IMAGES, VEHICLEID_ATTRIBUTES[attribute]}
    problems = place.missing([file for file in place.benchmark.files if file.path in read])
    if not all(source.exists(file) for file in files.values()):
        return Reading(None, tuple(problems))
    rows = [(split, *pair) for split, file in files.items() for pair in _pairs(source, file)]
    paths = [f"image/{image.zfill(7)}.jpg" for _, _, image, _ in rows]
    vehicles = [vehicle for _, _, _, vehicle in rows]
    check_listing(source, [where for _, where, _, _ in rows], paths, vehicles)
    manifest = build_manifest(
        "vehicleid",
        source,
        paths=paths,
        labels=vehicles,
        splits=[row[0] for row in rows],
        super_labels=_super_labels(source, VEHICLEID_ATTRIBUTES[attribute], vehicles),
    )
    for split, file in files.items():
        problems += wrong_size(file, manifest, split, place.benchmark.sizes[file])
    problems += _identity_problems(place, paths, vehicles)
    return Reading(manifest, tuple(problems))


def _pairs(source: ImageSource, file: str) -> list[tuple[str, str, str]]:
    """Returns, for each line of a file of two numbers, where it stands and the two as written."""
    found = []
    for number, line in enumerate(read_text(source, file).splitlines(), start=1):
        fields = line.split()
        if not fields:
            continue
        if len(fields) != 2 or not all(field.isdecimal() and len(field) <= DIGITS for field in fields):
            raise UserError(f"{file}, line {number}: expected two whole numbers with a blank between, got {line!r}")
        found.append((f"{file}, line {number}", fields[0], fields[1]))
    return found


def _super_labels(source: ImageSource, file: str, vehicles: Sequence[str]) -> list[int] | None:
    """Returns the attribute of each image's vehicle, −1 where it has none; None without the file."""
    if not source.exists(file):
        return None
    values = {vehicle: int(value) for _, vehicle, value in _pairs(source, file)}
    return [values.get(vehicle, -1) for vehicle in vehicles]


def _identity_problems(place: Place, paths: Sequence[str], vehicles: Sequence[str]) -> list[str]:
    """Returns how img2vid.txt, if it is there, differs from its published size and from the lists."""
    if not place.source.exists(VEHICLEID_IMAGES):
        return []
    pairs = _pairs(place.source, VEHICLEID_IMAGES)
    vehicle_of = {f"image/{image.zfill(7)}.jpg": vehicle for _, image, vehicle in pairs}
    different = [
        f"{path} is {vehicle_of.get(path, 'absent')}"
        for path, vehicle in zip(paths, vehicles, strict=True)
        if vehicle_of.get(path) != vehicle
    ]
    return [
        *wrong_lines(VEHICLEID_IMAGES, len(pairs), place.benchmark),
        *disagreements(f"images of another vehicle in {VEHICLEID_IMAGES}", different),
    ]


def _whole(place: Place, reading: Reading, *, complete: bool) -> Manifest:
    """Returns the manifest. Raises UserError where there is none, or `complete` and something differs."""
    if reading.manifest is None:
        raise place.error(reading.problems, remedy=f"Get it from {place.benchmark.origin}")
    if complete and reading.problems:
        remark = f" ({place.benchmark.remark})" if place.benchmark.remark else ""
        raise place.error(reading.problems, remedy=f"Get the rest from {place.benchmark.origin}, or {_SUBSET}{remark}")
    return reading.manifest

"""PKU VehicleID."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

from aurank.data.manifest import Manifest
from aurank.data.readers import published
from aurank.data.readers._rows import Row, is_number, read_lines
from aurank.data.sources import ImageSource
from aurank.errors import UserError

TestList = Literal["small", "medium", "large"]
Attribute = Literal["model", "color"]

_ORIGIN = "https://www.pkuml.org/resources/pku-vehicleid.html (on written request)"
_TRAIN = "train_test_split/train_list.txt"
_LIST = "train_test_split/test_list_{}.txt"
_TESTS: Mapping[str, str] = {"small": _LIST.format(800), "medium": _LIST.format(1600), "large": _LIST.format(2400)}
_VEHICLES = "attribute/img2vid.txt"
_ATTRIBUTES = {attribute: f"attribute/{attribute}_attr.txt" for attribute in get_args(Attribute)}
_HOLDS = {
    _TRAIN: "the training list",
    **{path: f"the {size} test list" for size, path in _TESTS.items()},
    _VEHICLES: "the vehicle of each image",
    **{path: f"the {attribute} of each vehicle" for attribute, path in _ATTRIBUTES.items()},
}
_NEVER_READ = {
    **{_LIST.format(count): "a larger test list" for count in (3200, 6000, 13164)},
    "attribute/model_names.txt": "the names of 250 models",
    "attribute/color_names.txt": "the names of 7 colours",
}

# Sizes: fast-reid's documentation, that of the small list counted again; entries of img2vid.txt: the set's README.
VEHICLEID = published.Benchmark(
    name="vehicleid",
    title="PKU VehicleID",
    folders=("VehicleID_V1.0", "."),
    layout="VehicleID_V1.0/{image/0279029.jpg, attribute/{img2vid, model_attr, color_attr}.txt, "
    "train_test_split/{train_list, test_list_800, test_list_1600, test_list_2400}.txt}",
    origin=_ORIGIN,
    terms="research only, non-commercial",
    files=(
        *(published.OfficialFile(path, holds, _ORIGIN) for path, holds in _HOLDS.items()),
        *(published.OfficialFile(path, holds, _ORIGIN, needed=False) for path, holds in _NEVER_READ.items()),
    ),
    sizes={
        _TRAIN: published.SplitSize(113_346, 13_164),
        _TESTS["small"]: published.SplitSize(6_493, 800),
        _TESTS["medium"]: published.SplitSize(13_377, 1_600),
        _TESTS["large"]: published.SplitSize(19_777, 2_400),
    },
    lines={_VEHICLES: 221_567},
    remark="its first lists, 110,178 training images of 13,134 vehicles, were replaced after vehicles with forged "
    "plates were found",
)


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
    for name, value, known in (("test", test, TestList), ("attribute", attribute, Attribute)):
        if value not in get_args(known):
            raise UserError(f"vehicleid: {name} must be one of {', '.join(get_args(known))}, got {value!r}")
    examine = functools.partial(examine_vehicleid, test=test, attribute=attribute)
    return published.read_published(VEHICLEID, root, path, examine, complete=complete)


def examine_vehicleid(place: published.Place, *, test: TestList, attribute: Attribute = "model") -> published.Reading:
    """Return PKU VehicleID with one of its test lists as found, and what differs."""
    files, values = {"train": _TRAIN, "test": _TESTS[test]}, _ATTRIBUTES[attribute]
    wanted = [file for file in VEHICLEID.files if file.path in {*files.values(), _VEHICLES, values}]

    @functools.cache
    def value_of() -> dict[str, int]:
        return {vehicle: int(value) for _, vehicle, value in _pairs(place.source, values)}

    def rows_of(source: ImageSource, split: str, file: str) -> Iterator[Row]:
        has_values = source.exists(values)
        for where, image, vehicle in _pairs(source, file):
            yield Row(where, _path(image), vehicle, split, value_of().get(vehicle, -1) if has_values else None)

    return published.examine_lists(place, files, wanted, rows_of, compare=_compare_vehicles)


def _path(image: str) -> str:
    return f"image/{image.zfill(7)}.jpg"


def _pairs(source: ImageSource, file: str) -> Iterator[tuple[str, str, str]]:
    """Yield, for each line of a file of two numbers, where it is and the two as written."""
    for where, line in read_lines(source, file):
        fields = line.split()
        if len(fields) != 2 or not all(map(is_number, fields)):
            raise UserError(f"{where}: expected two whole numbers with a blank between, got {line!r}")
        yield where, fields[0], fields[1]


def _compare_vehicles(place: published.Place, rows: Sequence[Row]) -> list[str]:
    """Return how img2vid.txt, if it is there, differs from its published size and from the lists."""
    if not place.source.exists(_VEHICLES):
        return []
    pairs = list(_pairs(place.source, _VEHICLES))
    vehicle_of = {_path(image): vehicle for _, image, vehicle in pairs}
    others = [row.path for row in rows if vehicle_of.get(row.path) != row.label]
    different = [f"{path} is {vehicle_of.get(path, 'absent')}" for path in others]
    problems = published.wrong_lines(_VEHICLES, len(pairs), VEHICLEID.lines[_VEHICLES])
    return problems + published.summarise(f"images of another vehicle in {_VEHICLES}", different)

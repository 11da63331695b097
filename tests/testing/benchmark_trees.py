"""Small trees in the official layouts of the benchmarks, and their sizes in place of the published ones."""

import json
from collections import Counter
from pathlib import Path

import pytest
from testing import retrieval_trees
from testing.data_trees import write_tree

from aurank.data import BENCHMARKS
from aurank.data.readers.facts import SplitSize

# (image_id, class_id, super_class_id, path)
SOP_TRAIN = [
    (1, 1, 1, "bicycle_final/111085122871_0.JPG"),
    (2, 1, 1, "bicycle_final/111085122871_1.JPG"),
    (3, 2, 12, "toaster_final/111157129195_0.JPG"),
    (4, 2, 12, "toaster_final/111157129195_1.JPG"),
]
SOP_TEST = [
    (59552, 11319, 1, "bicycle_final/251952414262_0.JPG"),
    (59553, 11319, 1, "bicycle_final/251952414262_1.JPG"),
    (59554, 11319, 1, "bicycle_final/251952414262_2.JPG"),
    (59555, 11320, 5, "fan_final/111194782300_0.JPG"),
    (59556, 11320, 5, "fan_final/111194782300_1.JPG"),
]
INATURALIST_TRAIN = [f"train_val2018/{name}.jpg" for name in ("Plantae/6000/a1", "Plantae/6000/b2", "Aves/3000/c3")]
INATURALIST_TEST = [
    f"train_val2018/{name}.jpg" for name in ("Aves/3001/d4", "Aves/3001/e5", "Fungi/17/f6", "Fungi/17/g7")
]
# (image, vehicle)
VEHICLE_TRAIN = [("0000001", 30), ("0000002", 30), ("0000010", 7), ("0000011", 7)]
VEHICLE_TEST = {
    "small": [("0279029", 23781), ("0279030", 23781), ("0279031", 23781), ("0000100", 901), ("0000101", 901)],
    "medium": [("0279029", 23781), ("0279030", 23781), ("0000200", 902), ("0000201", 902), ("0000202", 902)],
    "large": [("0000300", 903), ("0000301", 903), ("0000302", 904), ("0000303", 904)],
}
VEHICLE_COUNTS = {"small": 800, "medium": 1600, "large": 2400}


def sop_tree(root: Path) -> Path:
    """Writes Stanford Online Products below `root`; returns its folder."""
    folder = write_tree(root / "Stanford_Online_Products", [row[3] for row in SOP_TRAIN + SOP_TEST])
    for name, rows in (("train", SOP_TRAIN), ("test", SOP_TEST), ("info", SOP_TRAIN + SOP_TEST)):
        lines = ["image_id class_id super_class_id path", *(" ".join(map(str, row)) for row in rows)]
        (folder / f"Ebay_{name}.txt").write_text("\n".join(lines) + "\n")
    return folder


def inaturalist_tree(root: Path) -> Path:
    """Writes iNaturalist 2018 below `root`, split and annotations cut differently; returns its folder."""
    paths = INATURALIST_TRAIN + INATURALIST_TEST
    folder = write_tree(root / "Inaturalist", paths)
    (folder / "Inat_dataset_splits").mkdir()
    for name, rows in (("train", INATURALIST_TRAIN), ("test", INATURALIST_TEST)):
        (folder / f"Inat_dataset_splits/Inaturalist_{name}_set1.txt").write_text("\n".join(rows) + "\n")
    for name, rows in (("train", paths[1:]), ("val", paths[:1])):
        (folder / f"{name}2018.json").write_text(json.dumps(annotations(rows)))
    return folder


def annotations(paths: list[str]) -> dict[str, list[dict[str, object]]]:
    """Returns the content of an annotation file for these images, with ids that are not row numbers."""
    categories = {int(path.split("/")[2]): path.split("/")[1] for path in INATURALIST_TRAIN + INATURALIST_TEST}
    ids = {path: 1000 + 7 * row for row, path in enumerate(paths)}
    return {
        "images": [{"id": ids[path], "width": 8, "height": 8, "file_name": path} for path in paths],
        "annotations": [
            {"id": row, "image_id": ids[path], "category_id": int(path.split("/")[2])}
            for row, path in enumerate(reversed(paths))
        ],
        "categories": [{"id": key, "name": f"name{key}", "supercategory": value} for key, value in categories.items()],
    }


def vehicleid_tree(root: Path) -> Path:
    """Writes PKU VehicleID below `root`; returns its folder."""
    lists = {"train_list": VEHICLE_TRAIN} | {
        f"test_list_{VEHICLE_COUNTS[size]}": VEHICLE_TEST[size] for size in VEHICLE_TEST
    }
    vehicle_of = dict(pair for rows in lists.values() for pair in rows)
    folder = write_tree(root / "VehicleID_V1.0", [f"image/{image}.jpg" for image in vehicle_of])
    files = {f"train_test_split/{name}": rows for name, rows in lists.items()}
    files["attribute/img2vid"] = list(vehicle_of.items())
    files["attribute/model_attr"] = [("30", 12), ("7", 249), ("23781", 0), ("901", 12)]
    files["attribute/color_attr"] = [("30", 6), ("901", 2)]
    for name, pairs in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.txt").write_text("".join(f"{first} {second}\n" for first, second in pairs))
    return folder


TREES = {"sop": sop_tree, "inaturalist2018": inaturalist_tree, "vehicleid": vehicleid_tree, **retrieval_trees.TREES}


def size_of(classes: list[object]) -> SplitSize:
    return SplitSize(len(classes), len(Counter(classes)))


def publish_small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the sizes of the small trees the published ones, so that the trees are complete."""
    sizes = {
        "sop": {
            "Ebay_train.txt": size_of([row[1] for row in SOP_TRAIN]),
            "Ebay_test.txt": size_of([row[1] for row in SOP_TEST]),
        },
        "inaturalist2018": {
            "Inat_dataset_splits/Inaturalist_train_set1.txt": size_of([row.split("/")[2] for row in INATURALIST_TRAIN]),
            "Inat_dataset_splits/Inaturalist_test_set1.txt": size_of([row.split("/")[2] for row in INATURALIST_TEST]),
        },
        "vehicleid": {"train_test_split/train_list.txt": size_of([row[1] for row in VEHICLE_TRAIN])}
        | {
            f"train_test_split/test_list_{VEHICLE_COUNTS[size]}.txt": size_of([row[1] for row in rows])
            for size, rows in VEHICLE_TEST.items()
        },
        **retrieval_trees.SIZES,
    }
    lines = {"train2018.json": 6, "val2018.json": 1, "attribute/img2vid.txt": 16}
    for name, benchmark in BENCHMARKS.items():  # changed in place: the reader has the same object
        for file, size in sizes[name].items():
            monkeypatch.setitem(benchmark.sizes, file, size)
        for file in benchmark.lines:
            monkeypatch.setitem(benchmark.lines, file, lines[file])

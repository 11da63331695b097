"""Small data sets in the official layouts."""

import io
import json
import os
import pickle
import zipfile
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat
from testing.inputs import add_to_tar

from aurank.data import BENCHMARKS, ArraySource, Manifest, build_manifest

# Real archives lie where aurank itself looks: in $AURANK_DATA, else in ./data.
REAL_DATA = Path(os.environ.get("AURANK_DATA") or "data").expanduser()


def real_archive(name: str) -> Path:
    """Returns the data folder that holds the archive, or skips the test."""
    if not (REAL_DATA / name).is_file():
        pytest.skip(f"{name} is not in {REAL_DATA}")
    return REAL_DATA


def pixels(seed: int, height: int = 6, width: int = 5, channels: int = 3) -> np.ndarray:
    """Returns a random image, uint8 [height, width, channels]."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def write_image(path: Path, image: Any) -> None:
    """Writes an image of Pillow, or pixels of any type, into folders that are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = image if isinstance(image, Image.Image) else Image.fromarray(np.asarray(image).astype(np.uint8))
    drawn.save(path)


def png(seed: int, **shape: int) -> bytes:
    """Returns the bytes of a random PNG."""
    buffer = io.BytesIO()
    Image.fromarray(pixels(seed, **shape)).save(buffer, "PNG")
    return buffer.getvalue()


def write_tree(root: Path, names: Iterable[str], **shape: int) -> Path:
    """Writes random PNGs, whatever their names end in, and returns the root."""
    for seed, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(png(seed, **shape))
    return root


def zip_tree(root: Path, file: Path, *, prefix: str = "") -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted(root.rglob("*")):
            if path.is_file():
                archive.write(path, prefix + path.relative_to(root).as_posix())
    return file


def omniglot_zip(file: Path, alphabets: int = 10) -> None:
    """Writes drawings in the layout of Omniglot: alphabets of four characters, every fifth of them for evaluation."""
    with zipfile.ZipFile(file, "w") as archive:
        for place in range(16 * alphabets):
            alphabet, character, drawing = place // 16, place // 4 % 4 + 1, place % 4 + 1
            split = "evaluation" if alphabet % 5 == 4 else "background"
            name = f"images_{split}/Alphabet{alphabet}/character{character:02}/{place // 4:04}_{drawing:02}.png"
            archive.writestr(name, png(place, height=20, width=20))


# Kinds of products, numbered from 0, with their aisle and number of products: even ones train
KINDS = dict.fromkeys(("Apple", "Pear", "Plum", "Kiwi", "Lemon", "Melon"), ("Fruit", 5))


def grocery_tree(
    root: Path, kinds: dict[str, tuple[str, int]] = KINDS, images: int = 6, content: bytes | None = None
) -> Path:
    """Writes the layout of the Grocery Store data set; the published lists have every product in each."""
    folder = root / "GroceryStoreDataset-master/dataset"
    classes = ["Class Name (str),Class ID (int),Coarse Class Name (str),Coarse Class ID (int),Icon,Text"]
    lists: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    for number, (kind, (aisle, count)) in enumerate(kinds.items()):
        for place in range(count):
            name, product = f"Brand-{place}-{kind}" if count > 1 else kind, len(classes) - 1
            classes.append(f"{name},{product},{kind},{number},,")
            for index in range(images):
                part = list(lists)[index % 3]
                path = folder / f"{part}/{aisle}/{kind}/{name}/{name}_{index:03d}.jpg"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(png(images * product + index) if content is None else content)
                lists[part].append(f"{path.relative_to(folder).as_posix()}, {product}, {number}")
    for file, lines in ({f"{part}.txt": lines for part, lines in lists.items()} | {"classes.csv": classes}).items():
        (folder / file).write_text("\n".join(lines) + "\n")
    return folder.parent


def array_manifest(sizes: dict[str, list[int]], *, height: int = 12, width: int = 10, channels: int = 3) -> Manifest:
    """Returns a manifest of random images in memory: for each split, the number of images of each of its classes."""
    paths, labels, splits = [], [], []
    for split, counts in sizes.items():
        for label, count in enumerate(counts):
            for index in range(count):
                paths.append(f"{split}/{label}/{index}")
                labels.append(f"{split}{label}")
                splits.append(split)
    images = {path: pixels(row, height, width, channels) for row, path in enumerate(paths)}
    return build_manifest("arrays", ArraySource(images), paths=paths, labels=labels, splits=splits)


# (class, image)
CUB = [
    (1, "001.Black_footed_Albatross/Black_Footed_Albatross_0046_18.jpg"),
    (1, "001.Black_footed_Albatross/Black_Footed_Albatross_0009_34.jpg"),
    (100, "100.Brown_Pelican/Brown_Pelican_0122_94022.jpg"),
    (100, "100.Brown_Pelican/Brown_Pelican_0083_94388.jpg"),
    (101, "101.White_Pelican/White_Pelican_0090_97197.jpg"),
    (101, "101.White_Pelican/White_Pelican_0020_97412.jpg"),
    (200, "200.Common_Yellowthroat/Common_Yellowthroat_0003_190521.jpg"),
    (200, "200.Common_Yellowthroat/Common_Yellowthroat_0055_190967.jpg"),
    (200, "200.Common_Yellowthroat/Common_Yellowthroat_0049_190708.jpg"),
]
# (class, whether the classification split tests it), in the order of the files
CARS = [(1, 0), (1, 1), (98, 0), (98, 1), (98, 1), (99, 0), (99, 1), (196, 0), (196, 1)]
INSHOP = [
    ("WOMEN/Dresses/id_00000002/02_1_front.jpg", "train"),
    ("WOMEN/Dresses/id_00000002/02_2_side.jpg", "train"),
    ("MEN/Denim/id_00000080/01_1_front.jpg", "train"),
    ("MEN/Denim/id_00000080/01_3_back.jpg", "train"),
    ("WOMEN/Skirts/id_00000001/01_1_front.jpg", "query"),
    ("WOMEN/Skirts/id_00000001/01_2_side.jpg", "gallery"),
    ("WOMEN/Skirts/id_00000001/01_3_back.jpg", "gallery"),
    ("WOMEN/Shorts/id_00000003/01_1_front.jpg", "query"),
    ("WOMEN/Shorts/id_00000003/01_2_side.jpg", "query"),
    ("WOMEN/Shorts/id_00000003/03_1_front.jpg", "gallery"),
]
MARKET = {
    "bounding_box_train": ["0002_c1s1_000451_03", "0002_c2s1_000301_01", "0007_c3s3_077419_03", "0007_c1s6_028546_01"],
    "query": ["0001_c1s1_001051_00", "0001_c2s1_000301_00", "0003_c1s6_015971_00"],
    "bounding_box_test": [
        *("-1_c1s1_000401_03", "0000_c1s1_000151_01", "0000_c4s6_000001_02", "0001_c1s1_001051_03"),
        *("0001_c2s1_000301_02", "0001_c6s3_077467_01", "0003_c3s3_064744_01", "0003_c1s6_015996_04"),
    ],
}
VERI = {
    "image_train": ["0001_c001_00016450_0", "0001_c003_00016460_0", "0004_c001_00085910_0", "0004_c002_00085930_0"],
    "image_query": ["0002_c002_00030600_0", "0005_c003_00077625_0"],
    "image_test": ["0002_c002_00030600_0", "0002_c002_00030605_0", "0002_c004_00084250_0", "0005_c008_00077625_0"],
}
# Queries with their box, and by kind the images, counted from 1, of a gallery of eight
LANDMARKS = {
    "all_souls_000013": ([0.2, 1.4, 4.0, 5.0], {"easy": [1, 2], "hard": [3], "junk": [4, 8]}),
    "radcliffe_camera_000519": ([1.0, 0.0, 5.0, 3.0], {"easy": [5], "hard": [], "junk": [1]}),
    "bodleian_000273": ([0.0, 0.0, 3.0, 6.0], {"easy": [], "hard": [6, 7], "junk": []}),
}
GALLERY = [f"oxford_{number:06d}" for number in range(1, 9)]


def cub_tree(root: Path) -> Path:
    folder = write_tree(root / "CUB_200_2011", [f"images/{name}" for _, name in CUB])
    lines = {"images": [name for _, name in CUB], "image_class_labels": [str(number) for number, _ in CUB]}
    lines["train_test_split"] = [str(row % 2) for row in range(len(CUB))]
    for name, values in lines.items():
        text = "".join(f"{row} {value}\n" for row, value in enumerate(values, start=1))
        (folder / f"{name}.txt").write_text(text)
    return folder


def cars_tree(root: Path) -> Path:
    names = [f"car_ims/{row:06d}.jpg" for row in range(1, len(CARS) + 1)]
    folder = write_tree(root / "cars196", names)
    write_annotations(folder / "cars_annos.mat", names, [number for number, _ in CARS], field="relative_im_path")
    return folder


def cars_tree_of_two_folders(root: Path) -> Path:
    folder = root / "stanford_cars"
    for part, file in ((0, "devkit/cars_train_annos.mat"), (1, "cars_test_annos_withlabels.mat")):
        numbers = [number for number, tests in CARS if tests == part]
        names = [f"{row:05d}.jpg" for row in range(1, len(numbers) + 1)]
        write_tree(folder / ("cars_test" if part else "cars_train"), names)
        write_annotations(folder / file, names, numbers, field="fname")
    return folder


def write_annotations(file: Path, names: list[str], numbers: list[int], *, field: str) -> None:
    """Writes annotations as the development kit of the cars has them."""
    kinds = [("bbox_x1", "O"), ("bbox_y1", "O"), ("bbox_x2", "O"), ("bbox_y2", "O"), ("class", "O"), (field, "O")]
    records = np.empty((1, len(names)), dtype=kinds)
    for row, (name, number) in enumerate(zip(names, numbers, strict=True)):
        records[0, row] = (1, 1, 5, 6, number, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    savemat(file, {"annotations": records})


def inshop_tree(root: Path) -> Path:
    folder = root / "In-shop Clothes Retrieval Benchmark"
    write_tree(folder / "Img/img", [name for name, _ in INSHOP])
    (folder / "Eval").mkdir()
    rows = [f"img/{name}    {name.split('/')[2]}   {state}" for name, state in INSHOP]
    lines = [str(len(rows)), "image_name item_id evaluation_status", *rows]
    (folder / "Eval/list_eval_partition.txt").write_text("\n".join(lines) + "\n")
    return folder


def market_tree(root: Path) -> Path:
    names = [f"{folder}/{name}.jpg" for folder, found in MARKET.items() for name in found]
    folder = write_tree(root / "Market-1501-v15.09.15", names)
    (folder / "bounding_box_test/Thumbs.db").write_bytes(b"")
    return folder


def veri_tree(root: Path) -> Path:
    return write_tree(root / "VeRi", [f"{folder}/{name}.jpg" for folder, found in VERI.items() for name in found])


def landmark_tree(root: Path, name: str = "roxford5k") -> Path:
    folder = write_tree(root / name, [f"jpg/{image}.jpg" for image in (*LANDMARKS, *GALLERY)])
    truth = np.empty((1, len(LANDMARKS)), dtype=[(key, "O") for key in ("bbx", "easy", "hard", "junk")])
    for row, (box, judged) in enumerate(LANDMARKS.values()):
        kinds = (np.array([judged[kind]], dtype=np.float64) for kind in judged)
        truth[0, row] = (np.array([box]), *kinds)
    names = {"qimlist": list(LANDMARKS), "imlist": GALLERY}
    cells = {key: np.array([values], dtype=object) for key, values in names.items()}
    savemat(folder / f"gnd_{name}.mat", {"gnd": truth, **cells})
    return folder


RETRIEVAL_TREES = {
    "roxford5k": landmark_tree,
    "rparis6k": partial(landmark_tree, name="rparis6k"),
    "cub200": cub_tree,
    "cars196": cars_tree,
    "inshop": inshop_tree,
    "market1501": market_tree,
    "veri776": veri_tree,
}


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
    folder = write_tree(root / "Stanford_Online_Products", [row[3] for row in SOP_TRAIN + SOP_TEST])
    for name, rows in (("train", SOP_TRAIN), ("test", SOP_TEST), ("info", SOP_TRAIN + SOP_TEST)):
        lines = ["image_id class_id super_class_id path", *(" ".join(map(str, row)) for row in rows)]
        (folder / f"Ebay_{name}.txt").write_text("\n".join(lines) + "\n")
    return folder


def inaturalist_tree(root: Path) -> Path:
    folder = write_tree(root / "Inaturalist", INATURALIST_TRAIN + INATURALIST_TEST)
    (folder / "Inat_dataset_splits").mkdir()
    for name, rows in (("train", INATURALIST_TRAIN), ("test", INATURALIST_TEST)):
        (folder / f"Inat_dataset_splits/Inaturalist_{name}_set1.txt").write_text("\n".join(rows) + "\n")
    return folder


def vehicleid_tree(root: Path) -> Path:
    lists = {"train_list": VEHICLE_TRAIN} | {
        f"test_list_{VEHICLE_COUNTS[size]}": VEHICLE_TEST[size] for size in VEHICLE_TEST
    }
    vehicle_of = dict(pair for rows in lists.values() for pair in rows)
    folder = write_tree(root / "VehicleID_V1.0", [f"image/{image}.jpg" for image in vehicle_of])
    files = {f"train_test_split/{name}": rows for name, rows in lists.items()}
    files["attribute/model_attr"] = [("30", 12), ("7", 249), ("23781", 0), ("901", 12)]
    files["attribute/color_attr"] = [("30", 6), ("901", 2)]
    for name, pairs in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.txt").write_text("".join(f"{first} {second}\n" for first, second in pairs))
    return folder


def imagenet_tree(root: Path) -> Path:
    names = [f"{label}/{label}_{image}.JPEG" for label in ("n01440764", "n01443537", "n01484850") for image in range(8)]
    return write_tree(root / "imagenet", [f"{split}/{name}" for split in ("train", "val") for name in names], height=64)


def cifar_tree(root: Path) -> Path:
    """Writes CIFAR-10's pickles with 2 images of each class in each; its test of what they are has to be off."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for seed, name in enumerate([*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]):
        labels = np.random.default_rng(seed).permutation(20) % 10
        data = np.random.default_rng(seed).integers(0, 256, (20, 3072), np.uint8)
        (folder / name).write_bytes(pickle.dumps({"data": data, "labels": labels.tolist()}))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [f"class{label}" for label in range(10)]}))
    return folder


def stl10_tree(root: Path) -> Path:
    folder = root / "stl10_binary"
    folder.mkdir(parents=True)
    for seed, name in enumerate(("train", "test", "unlabeled")):
        np.random.default_rng(seed).integers(0, 256, (20, 3, 96, 96), np.uint8).tofile(folder / f"{name}_X.bin")
        if name != "unlabeled":
            (np.arange(20, dtype=np.uint8) % 10 + 1).tofile(folder / f"{name}_y.bin")
    (folder / "class_names.txt").write_text("\n".join(f"class{label}" for label in range(10)) + "\n")
    return folder


def cc3m_tree(root: Path) -> Path:
    """Writes shards as img2dataset does: 20 pairs for training and 10 for validation."""
    for folder, shards in (("cc3m_train", 2), ("cc3m_val", 1)):
        (root / "cc3m" / folder).mkdir(parents=True)
        for key in range(10 * shards):
            text = f"a photo of thing {key % 15}"
            about = json.dumps({"caption": text, "status": "success"})
            content = {"jpg": png(key, height=64, width=64), "txt": text.encode(), "json": about.encode()}
            named = {f"{key:09}.{ending}": data for ending, data in content.items()}
            add_to_tar(root / f"cc3m/{folder}/{key // 10:05}.tar", named)
    return root / "cc3m"


TRAINING_TREES = (imagenet_tree, cifar_tree, stl10_tree, cc3m_tree)
TREES = {
    "sop": sop_tree,
    "grocery": grocery_tree,
    "inaturalist2018": inaturalist_tree,
    "vehicleid": vehicleid_tree,
    **RETRIEVAL_TREES,
}


# Images and classes of each part of them, in the order of the published sizes
SIZES = {
    "sop": [(4, 2), (5, 2)],
    "grocery": [(90, 15), (90, 15)],
    "inaturalist2018": [(3, 2), (4, 2)],
    "vehicleid": [(4, 2), (5, 2), (5, 2), (4, 2)],
    "roxford5k": [(3, 3), (8, 8)],
    "rparis6k": [(3, 3), (8, 8)],
    "market1501": [(4, 2), (3, 2), (7, 3)],
    "veri776": [(4, 2), (2, 2), (4, 2)],
    "cub200": [(4, 2), (5, 2)],
    "cars196": [(5, 2), (4, 2)],
    "inshop": [(4, 2), (3, 2), (3, 2)],
}


def publish_small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the sizes of the small trees the published ones, so that the trees are complete."""
    for name, benchmark in BENCHMARKS.items():  # changed in place: the reader has the same object
        for part, size in zip(list(benchmark.sizes), SIZES[name], strict=True):
            monkeypatch.setitem(benchmark.sizes, part, size)

"""Small trees in the official layouts of the sets beside the three benchmarks, and their sizes."""

from pathlib import Path

import numpy as np
from scipy.io import savemat
from testing.data_trees import write_tree

from aurank.data.readers.facts import SplitSize

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
# (image, person): the persons of training and test both count from 0
MSMT = {
    "list_train.txt": [("0000/0000_000_01_0303morning_0008_0", 0), ("0000/0000_001_05_0303noon_0010_1", 0)],
    "list_val.txt": [("0000/0000_046_14_0302afternoon_0963_1", 0), ("0001/0001_000_11_0303morning_0015_0", 1)],
    "list_query.txt": [("0000/0000_000_01_0303morning_0031_0", 0), ("0001/0001_001_02_0303morning_0032_0", 1)],
    "list_gallery.txt": [
        *(("0000/0000_002_01_0303morning_0033_0", 0), ("0000/0000_003_07_0303morning_0034_0", 0)),
        *(("0001/0001_004_02_0303noon_0035_0", 1), ("0001/0001_005_15_0303noon_0036_0", 1)),
    ],
}
# (vehicle/image, camera)
WILD = {
    "train_list": [("00002/000010", 3), ("00002/000011", 4), ("00004/000012", 3), ("00004/000013", 9)],
    **{
        f"test_{count}{part}": [(f"{vehicle:05d}/{100 * vehicle + image:06d}", camera) for image, camera in rows]
        for count, vehicle in ((3000, 1), (5000, 3), (10000, 5))
        for part, rows in (("_query", [(1, 20)]), ("", [(2, 20), (3, 174), (4, 7)]))
    },
}
# Queries with their box, and by kind the images, counted from 1, of a gallery of eight
LANDMARKS = {
    "all_souls_000013": ([0.2, 1.4, 4.0, 5.0], {"easy": [1, 2], "hard": [3], "junk": [4, 8]}),
    "radcliffe_camera_000519": ([1.0, 0.0, 5.0, 3.0], {"easy": [5], "hard": [], "junk": [1]}),
    "bodleian_000273": ([0.0, 0.0, 3.0, 6.0], {"easy": [], "hard": [6, 7], "junk": []}),
}
GALLERY = [f"oxford_{number:06d}" for number in range(1, 9)]
INDEX = [f"{number:x}b{number:x}0123456789abc" for number in range(1, 7)]
# Test images: what they seek in the index, counted from 0, and their usage
GLD = {
    "00a0000000000001": ([0, 3], "Private"),
    "00a0000000000002": (None, "Ignored"),
    "0ff0000000000003": ([1], "Public"),
    "0ff0000000000004": ([5, 2, 4], "Private"),
}
SIZES = {
    "gldv2": {"public": SplitSize(1, 1), "private": SplitSize(2, 2), "index": SplitSize(6, 6)},
    **{name: {"queries": SplitSize(3, 3), "images": SplitSize(8, 8)} for name in ("roxford5k", "rparis6k")},
    "market1501": {
        "bounding_box_train": SplitSize(4, 2),
        "query": SplitSize(3, 2),
        "bounding_box_test": SplitSize(7, 3),
    },
    "veri776": {"image_train": SplitSize(4, 2), "image_query": SplitSize(2, 2), "image_test": SplitSize(4, 2)},
    "msmt17": {
        "list_train.txt and list_val.txt": SplitSize(4, 2),
        "list_query.txt": SplitSize(2, 2),
        "list_gallery.txt": SplitSize(4, 2),
    },
    "veriwild": {
        f"train_test_split/{name}.txt": SplitSize(len(rows), len({image.split("/")[0] for image, _ in rows}))
        for name, rows in WILD.items()
    },
    "cub200": {"classes 1 to 100": SplitSize(4, 2), "classes 101 to 200": SplitSize(5, 2)},
    "cars196": {"classes 1 to 98": SplitSize(5, 2), "classes 99 to 196": SplitSize(4, 2)},
    "inshop": {"train": SplitSize(4, 2), "query": SplitSize(3, 2), "gallery": SplitSize(3, 2)},
}


def cub_tree(root: Path) -> Path:
    """Writes CUB-200-2011 below `root`; returns its folder."""
    folder = write_tree(root / "CUB_200_2011", [f"images/{name}" for _, name in CUB])
    lines = {"images": [name for _, name in CUB], "image_class_labels": [str(number) for number, _ in CUB]}
    lines["train_test_split"] = [str(row % 2) for row in range(len(CUB))]
    for name, values in lines.items():
        text = "".join(f"{row} {value}\n" for row, value in enumerate(values, start=1))
        (folder / f"{name}.txt").write_text(text)
    return folder


def cars_tree(root: Path) -> Path:
    """Writes Cars-196 below `root`, all images in one folder; returns its folder."""
    names = [f"car_ims/{row:06d}.jpg" for row in range(1, len(CARS) + 1)]
    folder = write_tree(root / "cars196", names)
    write_annotations(folder / "cars_annos.mat", names, [number for number, _ in CARS], field="relative_im_path")
    return folder


def cars_tree_of_two_folders(root: Path) -> Path:
    """Writes Cars-196 below `root` in the folders of the classification split; returns its folder."""
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
    """Writes In-shop Clothes Retrieval below `root`; returns its folder."""
    folder = root / "In-shop Clothes Retrieval Benchmark"
    write_tree(folder / "Img/img", [name for name, _ in INSHOP])
    (folder / "Eval").mkdir()
    rows = [f"img/{name}    {name.split('/')[2]}   {state}" for name, state in INSHOP]
    lines = [str(len(rows)), "image_name item_id evaluation_status", *rows]
    (folder / "Eval/list_eval_partition.txt").write_text("\n".join(lines) + "\n")
    return folder


def market_tree(root: Path) -> Path:
    """Writes Market-1501 below `root`; returns its folder."""
    names = [f"{folder}/{name}.jpg" for folder, found in MARKET.items() for name in found]
    folder = write_tree(root / "Market-1501-v15.09.15", names)
    (folder / "bounding_box_test/Thumbs.db").write_bytes(b"")
    return folder


def veri_tree(root: Path) -> Path:
    """Writes VeRi-776 below `root`; returns its folder."""
    names = [f"{folder}/{name}.jpg" for folder, found in VERI.items() for name in found]
    return write_tree(root / "VeRi", names)


def msmt_tree(root: Path, *, train: str = "train", test: str = "test") -> Path:
    """Writes MSMT17 below `root`; returns its folder."""
    folder = root / ("MSMT17_V1" if train == "train" else "MSMT17_V2")
    for file, rows in MSMT.items():
        inside = test if file in ("list_query.txt", "list_gallery.txt") else train
        write_tree(folder / inside, [f"{image}.jpg" for image, _ in rows])
        (folder / file).write_text("".join(f"{image}.jpg {person}\n" for image, person in rows))
    return folder


def wild_tree(root: Path) -> Path:
    """Writes VERI-Wild below `root`; returns its folder."""
    camera_of = dict(pair for rows in WILD.values() for pair in rows)
    folder = write_tree(root / "VERI-Wild", [f"images/{image}.jpg" for image in camera_of])
    (folder / "train_test_split").mkdir()
    for name, rows in WILD.items():
        (folder / f"train_test_split/{name}.txt").write_text("".join(f"{image}\n" for image, _ in rows))
    lines = [f"{image};{camera};2018-03-11 10:46:20;ford;suv;white" for image, camera in camera_of.items()]
    text = "\n".join(["id/image;Camera ID;Time;Model;Type;Color", *lines])
    (folder / "train_test_split/vehicle_info.txt").write_text(text + "\n")
    return folder


def landmark_tree(root: Path, name: str = "roxford5k") -> Path:
    """Writes a revisited set below `root`; returns its folder."""
    folder = write_tree(root / name, [f"jpg/{image}.jpg" for image in (*LANDMARKS, *GALLERY)])
    truth = np.empty((1, len(LANDMARKS)), dtype=[(key, "O") for key in ("bbx", "easy", "hard", "junk")])
    for row, (box, judged) in enumerate(LANDMARKS.values()):
        kinds = (np.array([judged[kind]], dtype=np.float64) for kind in judged)
        truth[0, row] = (np.array([box]), *kinds)
    names = {"qimlist": list(LANDMARKS), "imlist": GALLERY}
    cells = {key: np.array([values], dtype=object) for key, values in names.items()}
    savemat(folder / f"gnd_{name}.mat", {"gnd": truth, **cells})
    return folder


def paris_tree(root: Path) -> Path:
    """Writes RParis6k below `root`; returns its folder."""
    return landmark_tree(root, "rparis6k")


def gld_tree(root: Path) -> Path:
    """Writes the retrieval part of Google Landmarks v2 below `root`; returns its folder."""
    sides = {"test": GLD, "index": INDEX}
    names = [f"{side}/{'/'.join(name[:3])}/{name}.jpg" for side, images in sides.items() for name in images]
    folder = write_tree(root / "gldv2", names)
    (folder / "index/index.csv").write_text("\n".join(["id", *INDEX]) + "\n")
    lines = ["id,images,Usage"]
    for name, (sought, usage) in GLD.items():
        lines.append(f"{name},{'None' if sought is None else ' '.join(INDEX[one] for one in sought)},{usage}")
    (folder / "test/retrieval_solution_v2.1.csv").write_text("\n".join(lines) + "\n")
    return folder


TREES = {
    "gldv2": gld_tree,
    "roxford5k": landmark_tree,
    "rparis6k": paris_tree,
    "cub200": cub_tree,
    "cars196": cars_tree,
    "inshop": inshop_tree,
    "market1501": market_tree,
    "veri776": veri_tree,
    "msmt17": msmt_tree,
    "veriwild": wild_tree,
}

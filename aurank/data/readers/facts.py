"""What is published of each benchmark: its files, sizes, layout, origin and terms."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class SplitSize(NamedTuple):
    """Images and classes of one list as published."""

    images: int
    classes: int

    def __str__(self) -> str:
        return f"{self.images:,} images of {self.classes:,} classes"


@dataclass(frozen=True)
class Benchmark:
    """The facts about one benchmark.

    Attributes:
        folders: places tried below the data folder, "." being that folder itself; ".zip" is an archive.
        files: what each file that is read holds; a path that ends in "/" is a folder of images.
        either: the same of files of which one layout has some, another the others.
        sizes: published, by list file or folder.
        lines: the published number of entries of other files.
        archives: the published md5 checksums of what is downloaded.
    """

    name: str
    title: str
    folders: tuple[str, ...]
    layout: str
    origin: str
    terms: str
    files: Mapping[str, str]
    sizes: Mapping[str, SplitSize]
    either: Mapping[str, str] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)
    archives: Mapping[str, str] = field(default_factory=dict)
    remark: str = ""


# Sizes: Song et al. (CVPR 2016). Three public loaders agree on the md5.
SOP = Benchmark(
    name="sop",
    title="Stanford Online Products",
    folders=("Stanford_Online_Products", "Stanford_Online_Products.zip", "."),
    layout="Stanford_Online_Products/{Ebay_train.txt, Ebay_test.txt, bicycle_final/111085122871_0.JPG, …}, "
    "12 folders of images",
    origin="https://cvgl.stanford.edu/projects/lifted_struct/ (Stanford_Online_Products.zip, also linked at "
    "https://github.com/rksltnl/Deep-Metric-Learning-CVPR16)",
    terms="MIT licence",
    files={"Ebay_train.txt": "the training list", "Ebay_test.txt": "the test list"},
    sizes={"Ebay_train.txt": SplitSize(59_551, 11_318), "Ebay_test.txt": SplitSize(60_502, 11_316)},
    archives={"Stanford_Online_Products.zip": "7f73d41a2f44250d4779881525aea32e"},
)

# Sizes: Brown et al. (ECCV 2020) for the split, the competition's page for the annotations.
INATURALIST_LISTS = {split: f"Inat_dataset_splits/Inaturalist_{split}_set1.txt" for split in ("train", "test")}
INATURALIST = Benchmark(
    name="inaturalist2018",
    title="iNaturalist 2018",
    folders=("Inaturalist", "."),
    layout="Inaturalist/{train_val2018/Plantae/6000/HASH.jpg, train2018.json, val2018.json, "
    f"{INATURALIST_LISTS['train']}, {INATURALIST_LISTS['test']}}}",
    origin="https://github.com/visipedia/inat_comp/tree/master/2018#Data (train_val2018.tar.gz, 120 GB, "
    "train2018.json.tar.gz, val2018.json.tar.gz) and https://github.com/Andrew-Brown1/Smooth_AP, section Data (a zip "
    "of the split lists, unpacked into the same folder)",
    terms="non-commercial research and education only, images may not be passed on",
    files={
        INATURALIST_LISTS["train"]: "the training split",
        INATURALIST_LISTS["test"]: "the test split",
        "train2018.json": "the annotations",
        "val2018.json": "the validation annotations",
    },
    sizes={
        INATURALIST_LISTS["train"]: SplitSize(325_846, 5_690),
        INATURALIST_LISTS["test"]: SplitSize(136_093, 2_452),
    },
    lines={"train2018.json": 437_513, "val2018.json": 24_426},
    archives={
        "train_val2018.tar.gz": "b1c6952ce38f31868cc50ea72d066cc3",
        "train2018.json.tar.gz": "bfa29d89d629cbf04d826a720c0a68b0",
        "val2018.json.tar.gz": "f2ed8bfe3e9901cdefceb4e53cd3775d",
    },
)

# Sizes: fast-reid's documentation, that of the small list counted again; entries of img2vid.txt: the set's README.
VEHICLE_TRAIN, VEHICLE_OF_IMAGE = "train_test_split/train_list.txt", "attribute/img2vid.txt"
VEHICLE_TESTS = {
    size: f"train_test_split/test_list_{count}.txt"
    for size, count in (("small", 800), ("medium", 1600), ("large", 2400))
}
VEHICLEID = Benchmark(
    name="vehicleid",
    title="PKU VehicleID",
    folders=("VehicleID_V1.0", "."),
    layout="VehicleID_V1.0/{image/0279029.jpg, attribute/{img2vid, model_attr, color_attr}.txt, "
    "train_test_split/{train_list, test_list_800, test_list_1600, test_list_2400}.txt}",
    origin="https://www.pkuml.org/resources/pku-vehicleid.html (on written request)",
    terms="research only, non-commercial",
    files={
        VEHICLE_TRAIN: "the training list",
        **{path: f"the {size} test list" for size, path in VEHICLE_TESTS.items()},
        VEHICLE_OF_IMAGE: "the vehicle of each image",
        "attribute/model_attr.txt": "the model of each vehicle",
        "attribute/color_attr.txt": "the color of each vehicle",
    },
    sizes={
        VEHICLE_TRAIN: SplitSize(113_346, 13_164),
        VEHICLE_TESTS["small"]: SplitSize(6_493, 800),
        VEHICLE_TESTS["medium"]: SplitSize(13_377, 1_600),
        VEHICLE_TESTS["large"]: SplitSize(19_777, 2_400),
    },
    lines={VEHICLE_OF_IMAGE: 221_567},
    remark="its first lists, 110,178 training images of 13,134 vehicles, were replaced after vehicles with forged "
    "plates were found",
)

# Sizes: of the halves as papers on metric learning state them; 11,788 and 16,185 images together are official.
# Public loaders agree on the md5.
_HALVES = (
    "it is split by classes, not the official lists, which are for classification: numbers by those cannot be compared"
)
CUB = Benchmark(
    name="cub200",
    title="CUB-200-2011",
    folders=("CUB_200_2011", "CUB_200_2011/CUB_200_2011", "."),
    layout="CUB_200_2011/{images.txt, image_class_labels.txt, images/001.Black_footed_Albatross/IMAGE.jpg}",
    origin="https://data.caltech.edu/records/65de6-vp158 (CUB_200_2011.tgz)",
    terms="non-commercial research and education only; the photographers keep their rights",
    files={"images.txt": "the images", "image_class_labels.txt": "the class of each image"},
    sizes={"classes 1 to 100": SplitSize(5_864, 100), "classes 101 to 200": SplitSize(5_924, 100)},
    archives={"CUB_200_2011.tgz": "97eceeb196236b17998738112f37df78"},
    remark=_HALVES,
)
CARS_WHOLE = "cars_annos.mat"
CARS_PARTS = {"devkit/cars_train_annos.mat": "cars_train", "cars_test_annos_withlabels.mat": "cars_test"}
CARS = Benchmark(
    name="cars196",
    title="Cars-196",
    folders=("cars196", "stanford_cars", "cars", "CARS196", "."),
    layout="cars196/{cars_annos.mat, car_ims/000001.jpg}, or stanford_cars/{devkit/cars_train_annos.mat, "
    "cars_test_annos_withlabels.mat, cars_train/00001.jpg, cars_test/00001.jpg}",
    origin="a copy (https://ai.stanford.edu/~jkrause/cars/car_dataset.html is gone) of car_ims.tgz and cars_annos.mat, "
    "or of car_devkit.tgz, cars_train.tgz, cars_test.tgz and cars_test_annos_withlabels.mat",
    terms="non-commercial research only (ImageNet's terms)",
    files={},
    sizes={"classes 1 to 98": SplitSize(8_054, 98), "classes 99 to 196": SplitSize(8_131, 98)},
    either={
        CARS_WHOLE: "all annotations, with car_ims",
        **{file: f"the annotations of {folder}" for file, folder in CARS_PARTS.items()},
    },
    remark=_HALVES,
)

# Sizes: of the paper's section 5 and the set's page; the images also those that mmpretrain's inshop.py counts.
INSHOP_LIST = "Eval/list_eval_partition.txt"
INSHOP = Benchmark(
    name="inshop",
    title="In-shop Clothes Retrieval",
    folders=("In-shop Clothes Retrieval Benchmark", "inshop", "In_shop", "Inshop_Clothes", "."),
    layout="In-shop Clothes Retrieval Benchmark/{Eval/list_eval_partition.txt, "
    "Img/img/WOMEN/Dresses/id_00000002/02_1_front.jpg}, or img beside Eval",
    origin="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html (Img/img.zip, "
    "Eval/list_eval_partition.txt)",
    terms="non-commercial research only, images may not be passed on",
    files={INSHOP_LIST: "which images are for training, queries and gallery"},
    sizes={
        "train": SplitSize(25_882, 3_997),
        "query": SplitSize(14_218, 3_985),
        "gallery": SplitSize(12_612, 3_985),
    },
)

# Sizes: those of torchreid's market1501.py, junk left out; the md5 is that of open-reid's market1501.py.
MARKET = Benchmark(
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
    origin="https://zheng-lab.cecs.anu.edu.au/Project/project_reid.html (Market-1501-v15.09.15.zip)",
    terms="research only",
    files={
        "bounding_box_train/": "the training images",
        "query/": "the queries",
        "bounding_box_test/": "the gallery",
    },
    sizes={
        "bounding_box_train": SplitSize(12_936, 751),
        "query": SplitSize(3_368, 750),
        "bounding_box_test": SplitSize(15_913, 751),
    },
    archives={"Market-1501-v15.09.15.zip": "65005ab7d12ec1c44de4eeafe813e68a"},
)
# Sizes: those of fast-reid's veri.py and of the set's own evaluation script: 576 vehicles train, 200 test.
VERI = Benchmark(
    name="veri776",
    title="VeRi-776",
    folders=("VeRi", "veri", "VeRi_with_plate", "."),
    layout="VeRi/{image_train, image_query, image_test}/0002_c002_00030600_0.jpg",
    origin="https://vehiclereid.github.io/VeRi/ (on written request)",
    terms="non-commercial research only",
    files={"image_train/": "the training images", "image_query/": "the queries", "image_test/": "the gallery"},
    sizes={
        "image_train": SplitSize(37_778, 576),
        "image_query": SplitSize(1_678, 200),
        "image_test": SplitSize(11_579, 200),
    },
)
# Sizes: those of torchreid's msmt17.py.
MSMT = Benchmark(
    name="msmt17",
    title="MSMT17",
    folders=("MSMT17_V1", "MSMT17_V2", "msmt17/MSMT17_V1", "msmt17/MSMT17_V2", "MSMT17", "."),
    layout="MSMT17_V1/{list_train.txt, list_val.txt, list_query.txt, list_gallery.txt, "
    "train/0000/0000_000_01_0303morning_0008_0.jpg, test/…}; in MSMT17_V2 mask_train_v2 and mask_test_v2",
    origin="https://www.pkuvmc.com/dataset.html (on written request)",
    terms="non-commercial research only, images may not be passed on",
    files={
        "list_train.txt": "the training list",
        "list_val.txt": "the rest of it",
        "list_query.txt": "the queries",
        "list_gallery.txt": "the gallery",
    },
    sizes={
        "list_train.txt and list_val.txt": SplitSize(32_621, 1_041),
        "list_query.txt": SplitSize(11_659, 3_060),
        "list_gallery.txt": SplitSize(82_161, 3_060),
    },
)
# Sizes: the totals of fast-reid's veriwild.py, of which one image a vehicle is the query.
WILD_TRAIN, WILD_CAMERAS = "train_test_split/train_list.txt", "train_test_split/vehicle_info.txt"
_WILD_SIZES = {"small": (41_861, 3_000), "medium": (69_389, 5_000), "large": (138_517, 10_000)}
WILD_TESTS = {
    size: (f"train_test_split/test_{vehicles}_query.txt", f"train_test_split/test_{vehicles}.txt")
    for size, (_, vehicles) in _WILD_SIZES.items()
}
WILD = Benchmark(
    name="veriwild",
    title="VERI-Wild",
    folders=("VERI-Wild", "veri-wild", "VeRi-Wild", "."),
    layout="VERI-Wild/{images/00001/000001.jpg, train_test_split/{train_list, vehicle_info, test_3000, "
    "test_3000_query, test_5000, test_5000_query, test_10000, test_10000_query}.txt}",
    origin="https://github.com/PKU-IMRE/VERI-Wild",
    terms="research only",
    files={
        WILD_TRAIN: "the training list",
        WILD_CAMERAS: "the camera of each image",
        **{query: f"the queries of the {size} test" for size, (query, _) in WILD_TESTS.items()},
        **{gallery: f"the gallery of the {size} test" for size, (_, gallery) in WILD_TESTS.items()},
    },
    sizes={
        WILD_TRAIN: SplitSize(277_797, 30_671),
        **{WILD_TESTS[size][0]: SplitSize(vehicles, vehicles) for size, (_, vehicles) in _WILD_SIZES.items()},
        **{
            WILD_TESTS[size][1]: SplitSize(images - vehicles, vehicles)
            for size, (images, vehicles) in _WILD_SIZES.items()
        },
    },
)


def _revisited(name: str, title: str, archives: str, gallery: int) -> Benchmark:
    return Benchmark(
        name=name,
        title=title,
        folders=(name, f"datasets/{name}", f"revisitop/{name}", "."),
        layout=f"{name}/{{gnd_{name}.mat, jpg/IMAGE.jpg}}",
        origin=f"https://www.robots.ox.ac.uk/~vgg/data/{archives}, all images in one folder jpg, and "
        f"http://cmp.felk.cvut.cz/revisitop/data/datasets/{name}/gnd_{name}.mat",
        terms="the photographers keep their rights (Flickr)",
        files={f"gnd_{name}.mat": "the ground truth"},
        sizes={"queries": SplitSize(70, 70), "images": SplitSize(gallery, gallery)},
        remark=f"the copy gnd_{name}.pkl of the ground truth is not read, because reading such a file runs code in it",
    )


# Sizes: section 3 of Radenović et al. (CVPR 2018): 5,063 and 6,392 images, of which 70 each are queries.
ROXFORD = _revisited("roxford5k", "ROxford5k", "oxbuildings/oxbuild_images.tgz", 4_993)
RPARIS = _revisited("rparis6k", "RParis6k", "parisbuildings/paris_1.tgz and paris_2.tgz", 6_322)
# Sizes: the index as its page counts it; the queries that are not ignored as papers that report both count them.
GLD_INDEX, GLD_SOLUTION = "index/index.csv", "test/retrieval_solution_v2.1.csv"
GLD = Benchmark(
    name="gldv2",
    title="Google Landmarks v2, retrieval",
    folders=("gldv2", "gldv2_dataset", "google-landmark", "."),
    layout="gldv2/{index/index.csv, test/retrieval_solution_v2.1.csv, index/0/1/2/0123456789abcdef.jpg, test/0/1/2/…}",
    origin="https://github.com/cvdfoundation/google-landmark",
    terms="annotations CC BY 4.0; images of index and test CC-0 or public domain",
    files={GLD_INDEX: "the list of the index", GLD_SOLUTION: "the ground truth of retrieval"},
    sizes={"public": SplitSize(379, 379), "private": SplitSize(750, 750), "index": SplitSize(761_757, 761_757)},
)

BENCHMARKS: Mapping[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (SOP, INATURALIST, VEHICLEID, CUB, CARS, INSHOP, MARKET, MSMT, VERI, WILD, ROXFORD, RPARIS, GLD)
}

"""What the three benchmarks are as published: files, counts, checksums, layout, and where to get them."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class OfficialFile:
    """One text file of a benchmark: its path, what it holds and where to get it.

    `lines` is the number of its entries where that is published, `needed` is False for a file that aurank never reads.
    """

    path: str
    holds: str
    origin: str
    lines: int | None = None
    needed: bool = True


@dataclass(frozen=True)
class SplitSize:
    """Images and classes of one list as published."""

    images: int
    classes: int

    def __str__(self) -> str:
        return f"{self.images:,} images of {self.classes:,} classes"


@dataclass(frozen=True)
class Benchmark:
    """The facts about one benchmark.

    `folders` are the places tried below the data folder, "." being the data folder itself, a name that ends in ".zip"
    an archive read as it is. `sizes` are the published ones, by the list file. `archives` are the published md5
    checksums of what is downloaded. `terms` says who may use it.
    """

    name: str
    title: str
    folders: tuple[str, ...]
    layout: str
    origin: str
    terms: str
    files: tuple[OfficialFile, ...]
    sizes: Mapping[str, SplitSize]
    archives: Mapping[str, str] = field(default_factory=dict)
    remark: str = ""


_SOP_ORIGIN = (
    "https://cvgl.stanford.edu/projects/lifted_struct/ (Stanford_Online_Products.zip, also linked at "
    "https://github.com/rksltnl/Deep-Metric-Learning-CVPR16)"
)
_SOP_KINDS = (
    *("bicycle", "cabinet", "chair", "coffee_maker", "fan", "kettle"),
    *("lamp", "mug", "sofa", "stapler", "table", "toaster"),
)

# Sizes: Song et al. (CVPR 2016). The md5 is the one that three public loaders agree on.
SOP = Benchmark(
    name="sop",
    title="Stanford Online Products",
    folders=("Stanford_Online_Products", "Stanford_Online_Products.zip", "."),
    layout="Stanford_Online_Products/{Ebay_train.txt, Ebay_test.txt, bicycle_final/111085122871_0.JPG, …}, "
    "12 folders of images",
    origin=_SOP_ORIGIN,
    terms="MIT licence",
    files=(
        OfficialFile("Ebay_train.txt", "the training list", _SOP_ORIGIN),
        OfficialFile("Ebay_test.txt", "the test list", _SOP_ORIGIN),
        OfficialFile("Ebay_info.txt", "both lists in one", _SOP_ORIGIN, needed=False),
        *(
            OfficialFile(f"{kind}_final.txt", f"the list of {kind.replace('_', ' ')}s", _SOP_ORIGIN, needed=False)
            for kind in _SOP_KINDS
        ),
    ),
    sizes={"Ebay_train.txt": SplitSize(59_551, 11_318), "Ebay_test.txt": SplitSize(60_502, 11_316)},
    archives={"Stanford_Online_Products.zip": "7f73d41a2f44250d4779881525aea32e"},
)

_INATURALIST_ORIGIN = "https://github.com/visipedia/inat_comp/tree/master/2018#Data"
_INATURALIST_SPLITS = (
    "https://github.com/Andrew-Brown1/Smooth_AP, section Data (a zip of the split lists, unpacked into the same folder)"
)
INATURALIST_TRAIN = "Inat_dataset_splits/Inaturalist_train_set1.txt"
INATURALIST_TEST = "Inat_dataset_splits/Inaturalist_test_set1.txt"

# Sizes: Brown et al. (ECCV 2020) for the split, the competition's page for the annotations.
INATURALIST = Benchmark(
    name="inaturalist2018",
    title="iNaturalist 2018",
    folders=("Inaturalist", "."),
    layout="Inaturalist/{train_val2018/Plantae/6000/HASH.jpg, train2018.json, val2018.json, "
    f"{INATURALIST_TRAIN}, {INATURALIST_TEST}}}",
    origin=f"{_INATURALIST_ORIGIN} (train_val2018.tar.gz, 120 GB, train2018.json.tar.gz, val2018.json.tar.gz) and "
    f"{_INATURALIST_SPLITS}",
    terms="non-commercial research and education only, images may not be passed on",
    files=(
        OfficialFile(INATURALIST_TRAIN, "the training split", _INATURALIST_SPLITS),
        OfficialFile(INATURALIST_TEST, "the test split", _INATURALIST_SPLITS),
        OfficialFile(
            "train2018.json", "the annotations", f"{_INATURALIST_ORIGIN} (train2018.json.tar.gz)", lines=437_513
        ),
        OfficialFile(
            "val2018.json", "the validation annotations", f"{_INATURALIST_ORIGIN} (val2018.json.tar.gz)", lines=24_426
        ),
    ),
    sizes={INATURALIST_TRAIN: SplitSize(325_846, 5_690), INATURALIST_TEST: SplitSize(136_093, 2_452)},
    archives={
        "train_val2018.tar.gz": "b1c6952ce38f31868cc50ea72d066cc3",
        "train2018.json.tar.gz": "bfa29d89d629cbf04d826a720c0a68b0",
        "val2018.json.tar.gz": "f2ed8bfe3e9901cdefceb4e53cd3775d",
    },
)

_VEHICLEID_ORIGIN = "https://www.pkuml.org/resources/pku-vehicleid.html (on written request)"
VEHICLEID_LISTS = {
    "small": "train_test_split/test_list_800.txt",
    "medium": "train_test_split/test_list_1600.txt",
    "large": "train_test_split/test_list_2400.txt",
}
VEHICLEID_TRAIN = "train_test_split/train_list.txt"
VEHICLEID_IMAGES = "attribute/img2vid.txt"
VEHICLEID_ATTRIBUTES = {"model": "attribute/model_attr.txt", "color": "attribute/color_attr.txt"}

# Sizes: fast-reid's documentation, that of the small list counted again; entries of img2vid.txt: the set's README.
VEHICLEID = Benchmark(
    name="vehicleid",
    title="PKU VehicleID",
    folders=("VehicleID_V1.0", "."),
    layout="VehicleID_V1.0/{image/0279029.jpg, attribute/{img2vid, model_attr, color_attr}.txt, "
    "train_test_split/{train_list, test_list_800, test_list_1600, test_list_2400}.txt}",
    origin=_VEHICLEID_ORIGIN,
    terms="research only, non-commercial",
    files=(
        OfficialFile(VEHICLEID_TRAIN, "the training list", _VEHICLEID_ORIGIN),
        *(OfficialFile(path, f"the {size} test list", _VEHICLEID_ORIGIN) for size, path in VEHICLEID_LISTS.items()),
        *(
            OfficialFile(
                f"train_test_split/test_list_{count}.txt", "a larger test list", _VEHICLEID_ORIGIN, needed=False
            )
            for count in (3200, 6000, 13164)
        ),
        OfficialFile(VEHICLEID_IMAGES, "the vehicle of each image", _VEHICLEID_ORIGIN, lines=221_567),
        *(
            OfficialFile(path, f"the {attribute} of each vehicle", _VEHICLEID_ORIGIN)
            for attribute, path in VEHICLEID_ATTRIBUTES.items()
        ),
        OfficialFile("attribute/model_names.txt", "the names of 250 models", _VEHICLEID_ORIGIN, needed=False),
        OfficialFile("attribute/color_names.txt", "the names of 7 colours", _VEHICLEID_ORIGIN, needed=False),
    ),
    sizes={
        VEHICLEID_TRAIN: SplitSize(113_346, 13_164),
        VEHICLEID_LISTS["small"]: SplitSize(6_493, 800),
        VEHICLEID_LISTS["medium"]: SplitSize(13_377, 1_600),
        VEHICLEID_LISTS["large"]: SplitSize(19_777, 2_400),
    },
    remark="its first lists, 110,178 training images of 13,134 vehicles, were replaced after vehicles with forged "
    "plates were found",
)

BENCHMARKS = {benchmark.name: benchmark for benchmark in (SOP, INATURALIST, VEHICLEID)}

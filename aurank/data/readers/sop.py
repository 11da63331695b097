"""Stanford Online Products."""

import functools
from pathlib import Path

from aurank.data.manifest import Manifest
from aurank.data.readers import published
from aurank.data.readers.lists import list_rows

_ORIGIN = (
    "https://cvgl.stanford.edu/projects/lifted_struct/ (Stanford_Online_Products.zip, also linked at "
    "https://github.com/rksltnl/Deep-Metric-Learning-CVPR16)"
)
_KINDS = [
    "bicycle",
    "cabinet",
    "chair",
    "coffee_maker",
    "fan",
    "kettle",
    "lamp",
    "mug",
    "sofa",
    "stapler",
    "table",
    "toaster",
]

# Sizes: Song et al. (CVPR 2016). The md5 is the one that three public loaders agree on.
SOP = published.Benchmark(
    name="sop",
    title="Stanford Online Products",
    folders=("Stanford_Online_Products", "Stanford_Online_Products.zip", "."),
    layout="Stanford_Online_Products/{Ebay_train.txt, Ebay_test.txt, bicycle_final/111085122871_0.JPG, …}, "
    "12 folders of images",
    origin=_ORIGIN,
    terms="MIT licence",
    files=(
        published.OfficialFile("Ebay_train.txt", "the training list", _ORIGIN),
        published.OfficialFile("Ebay_test.txt", "the test list", _ORIGIN),
        published.OfficialFile("Ebay_info.txt", "both lists in one", _ORIGIN, needed=False),
        *(
            published.OfficialFile(f"{kind}_final.txt", f"the list of {kind.replace('_', ' ')}s", _ORIGIN, needed=False)
            for kind in _KINDS
        ),
    ),
    sizes={"Ebay_train.txt": published.SplitSize(59_551, 11_318), "Ebay_test.txt": published.SplitSize(60_502, 11_316)},
    archives={"Stanford_Online_Products.zip": "7f73d41a2f44250d4779881525aea32e"},
)


def read_sop(
    root: Path,
    *,
    path: str | None = None,
    train: str = "Ebay_train.txt",
    test: str = "Ebay_test.txt",
    images: str = "",
    complete: bool = True,
) -> Manifest:
    """Return Stanford Online Products: the class is the product as numbered, the super-label its category, 1 … 12.

    Args:
        root: the data folder.
        path: the folder or zip archive below it; without it, `Stanford_Online_Products`, that name with ".zip", and
            `root` itself are tried.
        train, test, images: the lists, and the folder that their paths start from, as the reader "lists" has them.
        complete: True insists on the published sizes; False reads any set in this format.

    Source: Song et al., Deep metric learning via lifted structured feature embedding (CVPR 2016),
        https://arxiv.org/abs/1511.06452.
    """
    examine = functools.partial(examine_sop, train=train, test=test, images=images)
    return published.read_published(SOP, root, path, examine, complete=complete)


def examine_sop(
    place: published.Place, *, train: str = "Ebay_train.txt", test: str = "Ebay_test.txt", images: str = ""
) -> published.Reading:
    """Return the lists of Stanford Online Products as found, and what differs."""
    wanted = [
        published.OfficialFile(train, "the training list", _ORIGIN),
        published.OfficialFile(test, "the test list", _ORIGIN),
    ]
    sizes = {"train": SOP.sizes["Ebay_train.txt"], "test": SOP.sizes["Ebay_test.txt"]}
    return published.examine_lists(place, {"train": train, "test": test}, wanted, list_rows, images=images, sizes=sizes)

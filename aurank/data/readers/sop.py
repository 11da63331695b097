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
_LISTS = ("Ebay_train.txt", "Ebay_test.txt")
_KINDS = (
    *("bicycle", "cabinet", "chair", "coffee_maker", "fan", "kettle"),
    *("lamp", "mug", "sofa", "stapler", "table", "toaster"),
)
_NEVER_READ = {
    "Ebay_info.txt": "both lists in one",
    **{f"{kind}_final.txt": f"the list of {kind.replace('_', ' ')}s" for kind in _KINDS},
}


def _wanted(train: str, test: str) -> list[published.OfficialFile]:
    lists = {train: "the training list", test: "the test list"}
    return [published.OfficialFile(path, holds, _ORIGIN) for path, holds in lists.items()]


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
        *_wanted(*_LISTS),
        *(published.OfficialFile(path, holds, _ORIGIN, needed=False) for path, holds in _NEVER_READ.items()),
    ),
    sizes={_LISTS[0]: published.SplitSize(59_551, 11_318), _LISTS[1]: published.SplitSize(60_502, 11_316)},
    archives={"Stanford_Online_Products.zip": "7f73d41a2f44250d4779881525aea32e"},
)


def read_sop(
    root: Path,
    *,
    path: str | None = None,
    train: str = _LISTS[0],
    test: str = _LISTS[1],
    images: str = "",
    complete: bool = True,
) -> Manifest:
    """Return Stanford Online Products: the class is the product as numbered, the super-label its category, 1 … 12.

    Args:
        path: without it, `Stanford_Online_Products`, that name with ".zip", and `root` itself are tried.
        train, test, images: the lists, and the folder that their paths start from, as the reader "lists" has them.
        complete: True insists on the published sizes; False reads any set in this format.

    Source: Song et al., Deep metric learning via lifted structured feature embedding (CVPR 2016),
        https://arxiv.org/abs/1511.06452.
    """
    examine = functools.partial(examine_sop, train=train, test=test, images=images)
    return published.read_published(SOP, root, path, examine, complete=complete)


def examine_sop(
    place: published.Place, *, train: str = _LISTS[0], test: str = _LISTS[1], images: str = ""
) -> published.Reading:
    """Return the lists of Stanford Online Products as found, and what differs."""
    files, sizes = {"train": train, "test": test}, dict(zip(("train", "test"), SOP.sizes.values(), strict=True))
    return published.examine_lists(place, files, _wanted(train, test), list_rows, images=images, sizes=sizes)

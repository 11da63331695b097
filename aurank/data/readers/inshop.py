"""In-shop Clothes Retrieval of DeepFashion."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, cast

from aurank.data.manifest import Manifest
from aurank.data.readers import published
from aurank.data.readers._rows import Row, is_number, read_lines
from aurank.errors import UserError

_ORIGIN = "https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html"
_LIST = "Eval/list_eval_partition.txt"
_HEADER = "image_name item_id evaluation_status"
_STATES = ("train", "query", "gallery")

# Sizes: of the paper's section 5 and the set's page; the images also those that mmpretrain's inshop.py counts.
INSHOP = published.Benchmark(
    name="inshop",
    title="In-shop Clothes Retrieval",
    folders=("In-shop Clothes Retrieval Benchmark", "inshop", "In_shop", "Inshop_Clothes", "."),
    layout="In-shop Clothes Retrieval Benchmark/{Eval/list_eval_partition.txt, "
    "Img/img/WOMEN/Dresses/id_00000002/02_1_front.jpg}, or img beside Eval",
    origin=f"{_ORIGIN} (Img/img.zip, Eval/list_eval_partition.txt)",
    terms="non-commercial research only, images may not be passed on",
    files=(published.OfficialFile(_LIST, "which images are for training, queries and gallery", _ORIGIN),),
    sizes={
        "train": published.SplitSize(25_882, 3_997),
        "query": published.SplitSize(14_218, 3_985),
        "gallery": published.SplitSize(12_612, 3_985),
    },
)


def read_inshop(
    root: Path, *, path: str | None = None, partition: str = _LIST, images: str | None = None, complete: bool = True
) -> Manifest:
    """Return In-shop Clothes Retrieval: the class is the item; queries search the gallery, not each other.

    Args:
        path: without it, `In-shop Clothes Retrieval Benchmark`, `inshop`, `In_shop`, `Inshop_Clothes` and `root` itself
            are tried.
        partition: the list file.
        images: the folder that the list's paths, img/…, start from; without it "Img", else that of Eval. "Img" may also
            hold the larger images of img_highres.zip under the same names: other pixels, the same checksum.
        complete: True insists on the published sizes; False reads a part.

    Source: Liu et al., DeepFashion (CVPR 2016), for images and split; `inshop.py` of mmpretrain for the layout.
    """
    examine = functools.partial(examine_inshop, partition=partition, images=images)
    return published.read_published(INSHOP, root, path, examine, complete=complete)


def examine_inshop(place: published.Place, *, partition: str = _LIST, images: str | None = None) -> published.Reading:
    """Return the three parts of In-shop as found, and what differs."""
    problems = place.missing([INSHOP.files[0]._replace(path=partition)])
    if problems:
        return published.Reading(None, problems)
    lines = read_lines(place.source, partition)
    where, count = next(lines, (f"{partition}, line 1", ""))
    _, header = next(lines, ("", ""))
    if not is_number(count) or header.split() != _HEADER.split():
        raise UserError(
            f"{where}: expected the number of images, then the header {_HEADER!r}; got {count!r}, {header!r}"
        )
    rows = list(_rows(lines))
    if int(count) != len(rows):
        problems.append(f"{partition} has {len(rows):,} images, but says {int(count):,} in its first line")
    if images is None:
        images = "Img" if any(place.source.exists(f"Img/{row.path}") for row in rows[:100]) else ""
    parts = []
    for state, expected in INSHOP.sizes.items():
        own = [row for row in rows if row.split == state or row.role == state]
        parts.append(published.Part(f"{state} of {partition}", own, expected))
    return published.examine_parts(place, parts, problems, images=images)


def _rows(lines: Iterator[tuple[str, str]]) -> Iterator[Row]:
    for where, line in lines:
        fields = line.split()
        if len(fields) != 3 or fields[2] not in _STATES:
            raise UserError(f"{where}: expected {_HEADER}, the last one of {', '.join(_STATES)}; got {line!r}")
        image, item, state = fields
        role = cast(Literal["both", "query", "gallery"], "both" if state == "train" else state)
        yield Row(where, image, item, "train" if state == "train" else "test", role=role)

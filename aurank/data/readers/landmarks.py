"""Landmarks whose ground truth lists images for each query: the revisited Oxford and Paris, and Google Landmarks v2."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from aurank.data.manifest import Manifest
from aurank.data.readers.facts import GLD, GLD_INDEX, GLD_SOLUTION, ROXFORD, RPARIS
from aurank.data.readers.lines import Row, read_fields, read_mat
from aurank.data.readers.published import Part, Place, Reading, compare_parts, read_published, summarise
from aurank.files import reading

Usage = Literal["public", "private"]
Difficulty = Literal["easy", "medium", "hard"]
# Of each difficulty what is sought and what is left out, by the names of the ground truth.
_JUDGED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "easy": {"positives": ("easy",), "ignored": ("junk", "hard")},
    "medium": {"positives": ("easy", "hard"), "ignored": ("junk",)},
    "hard": {"positives": ("hard",), "ignored": ("junk", "easy")},
}


def read_gld(root: Path, *, path: str | None = None, usage: Usage = "private", complete: bool = True) -> Manifest:
    """Return the retrieval part of Google Landmarks v2.1, all of it "test": queries, and the index as gallery.

    Args:
        path: without it, `gldv2`, `gldv2_dataset`, `google-landmark` and `root` itself are tried.
        usage: the queries marked "private", by which methods are compared, or "public", for validation. Test images
            that are ignored, which are most of them, are left out.
        complete: True insists on the published sizes; False reads a part.

    `positives` list the index images of each query; labels say nothing: each image is its own class. The measure,
    mAP@100, is `map@100(min)`: divided by min(100, R), where mauprc divides by R and has no cut-off.

    Source: Weyand et al., Google Landmarks Dataset v2 (CVPR 2020), https://arxiv.org/abs/2004.01804; layout and files:
        https://github.com/cvdfoundation/google-landmark; the measure: `MeanAveragePrecision` in `metrics.py`, and the
        lists: `dataset_file_io.py`, of delf/python/datasets/google_landmarks_dataset in tensorflow/models.
    """
    return read_published(GLD, root, path, functools.partial(examine_gld, usage=usage), complete=complete)


def examine_gld(place: Place, *, usage: Usage) -> Reading:
    """Return the queries of one usage and the index as found, and what differs."""
    if missing := place.missing(GLD.files):
        return Reading(None, missing)
    image_id = r"([^\W_]{3,})"
    form = "the id of an image, such as 0123456789abcdef"
    gallery: dict[str, Row] = {}
    for where, (image,) in read_fields(place.source, GLD_INDEX, image_id, form, header=["id"]):
        path = _path_of("index", image)
        gallery[image] = Row(where, path, path, "test", role="gallery")
    number = {image: row for row, image in enumerate(gallery)}
    queries: list[Row] = []
    pairs, unknown = [], []
    pattern, form = f"{image_id},([^,]*),(Public|Private|Ignored)", f"{form}, the images sought, and its Usage"
    for where, (image, sought, used) in read_fields(
        place.source, GLD_SOLUTION, pattern, form, header=["id,images,Usage"]
    ):
        if used.lower() != usage:
            continue
        pairs += [(len(queries), number[one]) for one in sought.split() if one in number]
        unknown += [f"{one}, {where}" for one in sought.split() if one not in number]
        path = _path_of("test", image)
        queries.append(Row(where, path, path, "test", role="query"))
    parts = [
        Part(f"{usage} queries of {GLD_SOLUTION}", queries, GLD.sizes[usage]),
        Part(GLD_INDEX, list(gallery.values()), GLD.sizes["index"]),
    ]
    read = compare_parts(place, parts, summarise(f"images sought that are not in {GLD_INDEX}", unknown))
    return _with_pairs(read, len(queries), {"positives": pairs})


def _path_of(folder: str, image: str) -> str:
    return f"{folder}/{image[0]}/{image[1]}/{image[2]}/{image}.jpg"


def _with_pairs(read: Reading, queries: int, columns: Mapping[str, Sequence[tuple[int, int]]]) -> Reading:
    """Return what was read with columns of pairs: a query, and an image of the gallery, which follows the queries."""
    assert read.manifest is not None
    pairs = {
        name: np.array(found, dtype=np.int64).reshape(-1, 2) + np.array([0, queries]) for name, found in columns.items()
    }
    return read._replace(
        manifest=dataclasses.replace(read.manifest, positives=pairs["positives"], ignored=pairs.get("ignored"))
    )


def read_roxford(
    root: Path, *, path: str | None = None, difficulty: Difficulty = "medium", complete: bool = True
) -> Manifest:
    """Return ROxford5k, all of it "test": 70 queries cut to their box, and a gallery that holds none of them.

    Args:
        path: without it, `roxford5k`, that folder in `datasets` and in `revisitop`, and `root` itself are tried.
        difficulty: what is sought: "easy" and "hard" one kind of images, the other left out with the junk; "medium"
            both kinds, without the junk.
        complete: True insists on the published sizes; False reads a part.

    `positives` and `ignored` list the images for each query; labels say nothing: each image is its own class. A query
    without a positive of that difficulty is skipped. Boxes are rounded to pixels, as Pillow's `crop` does.

    Source: Radenović et al., Revisiting Oxford and Paris (CVPR 2018), https://arxiv.org/abs/1803.11285; `dataset.py`,
        `example_process_images.py` and `example_evaluate.py` of https://github.com/filipradenovic/revisitop.
    """
    examine = functools.partial(examine_revisited, difficulty=difficulty)
    return read_published(ROXFORD, root, path, examine, complete=complete)


def read_rparis(
    root: Path, *, path: str | None = None, difficulty: Difficulty = "medium", complete: bool = True
) -> Manifest:
    """Return RParis6k, which is in all like `read_roxford`."""
    examine = functools.partial(examine_revisited, difficulty=difficulty)
    return read_published(RPARIS, root, path, examine, complete=complete)


def examine_revisited(place: Place, *, difficulty: Difficulty) -> Reading:
    """Return one of the two sets as found, and what differs."""
    if missing := place.missing(place.benchmark.files):
        return Reading(None, missing)
    (file,) = place.benchmark.files
    pairs: dict[str, list[tuple[int, int]]] = {"positives": [], "ignored": []}
    queries, gallery = [], []
    with reading(f"{file} in {place.source.where}", "the ground truth, a Matlab file", remedy="get it again"):
        names, others, judged = (read_mat(place.source, file, name) for name in ("qimlist", "imlist", "gnd"))
        for row, (name, record) in enumerate(zip(names, judged, strict=True)):
            where, path = f"query {row + 1}", f"jpg/{name}.jpg"
            x1, y1, x2, y2 = (round(float(value)) for value in np.ravel(record["bbx"]))
            if not (x1 < x2 and y1 < y2):
                raise ValueError(f"nothing lies in the box {x1},{y1},{x2},{y2} of {where}")
            box = max(0, x1), max(0, y1), x2, y2
            queries.append(Row(f"{file}, {where}", path, path, "test", role="query", box=box))
            for column, kinds in _JUDGED[difficulty].items():
                images = np.concatenate([np.ravel(record[kind]) for kind in kinds])  # Matlab's numbers are fractions
                if not np.isin(images, np.arange(1, len(others) + 1)).all():
                    raise ValueError(f"{where} names images that are not from 1 to {len(others)}")
                pairs[column] += [(row, int(image) - 1) for image in images]
        for row, name in enumerate(others):
            path = f"jpg/{name}.jpg"
            gallery.append(Row(f"{file}, image {row + 1}", path, path, "test", role="gallery"))
    sizes = place.benchmark.sizes
    parts = [Part("queries", queries, sizes["queries"]), Part("images", gallery, sizes["images"])]
    return _with_pairs(compare_parts(place, parts), len(queries), pairs)

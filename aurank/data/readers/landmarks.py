"""The revisited Oxford and Paris: queries cut to their box, and for each of them the images sought and left out."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np

from aurank.data.manifest import Manifest
from aurank.data.readers import published
from aurank.data.readers._rows import Row, read_mat, read_mat_names
from aurank.errors import UserError

Difficulty = Literal["easy", "medium", "hard"]
# Of each difficulty what is sought and what is left out, by the names of the ground truth.
_JUDGED: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "easy": (("easy",), ("junk", "hard")),
    "medium": (("easy", "hard"), ("junk",)),
    "hard": (("hard",), ("junk", "easy")),
}
_IMAGES = "https://www.robots.ox.ac.uk/~vgg/data"


def _benchmark(name: str, title: str, archives: str, gallery: int) -> published.Benchmark:
    truth = f"gnd_{name}.mat"
    origin = f"http://cmp.felk.cvut.cz/revisitop/data/datasets/{name}/{truth}"
    return published.Benchmark(
        name=name,
        title=title,
        folders=(name, f"datasets/{name}", f"revisitop/{name}", "."),
        layout=f"{name}/{{{truth}, jpg/IMAGE.jpg}}",
        origin=f"{_IMAGES}/{archives}, all images in one folder jpg, and {origin}",
        terms="the photographers keep their rights (Flickr)",
        files=(published.OfficialFile(truth, "the ground truth", origin),),
        sizes={"queries": published.SplitSize(70, 70), "images": published.SplitSize(gallery, gallery)},
        remark=f"the copy gnd_{name}.pkl of the ground truth is not read, because reading such a file runs code in it",
    )


# Sizes: section 3 of Radenović et al. (CVPR 2018): 5,063 and 6,392 images, of which 70 each are queries.
ROXFORD = _benchmark("roxford5k", "ROxford5k", "oxbuildings/oxbuild_images.tgz", 4_993)
RPARIS = _benchmark("rparis6k", "RParis6k", "parisbuildings/paris_1.tgz and paris_2.tgz", 6_322)


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
    return _read(ROXFORD, root, path, difficulty, complete=complete)


def read_rparis(
    root: Path, *, path: str | None = None, difficulty: Difficulty = "medium", complete: bool = True
) -> Manifest:
    """Return RParis6k, which is in all like `read_roxford`."""
    return _read(RPARIS, root, path, difficulty, complete=complete)


def _read(benchmark: published.Benchmark, root: Path, path: str | None, difficulty: str, *, complete: bool) -> Manifest:
    if difficulty not in _JUDGED:
        expected = ", ".join(get_args(Difficulty))
        raise UserError(f"{benchmark.name}: difficulty must be one of {expected}, got {difficulty!r}")
    examine = functools.partial(examine_revisited, difficulty=cast(Difficulty, difficulty))
    return published.read_published(benchmark, root, path, examine, complete=complete)


def examine_revisited(place: published.Place, *, difficulty: Difficulty) -> published.Reading:
    """Return one of the two sets as found, and what differs."""
    benchmark = place.benchmark
    if missing := place.missing(benchmark.files):
        return published.Reading(None, missing)
    file = benchmark.files[0].path
    queries, gallery = (read_mat_names(place.source, file, name) for name in ("qimlist", "imlist"))
    judged = read_mat(place.source, file, "gnd")
    if len(judged) != len(queries):
        raise UserError(f"{file}: {len(judged)} records of gnd for {len(queries)} queries; get it again")
    sought, left_out = _JUDGED[difficulty]
    rows: dict[str, list[Row]] = {"queries": [], "images": []}
    pairs: dict[str, list[tuple[int, int]]] = {"positives": [], "ignored": []}
    for row, (name, record) in enumerate(zip(queries, judged, strict=True)):
        where = f"{file}, query {row + 1}"
        path = f"jpg/{name}.jpg"
        rows["queries"].append(Row(where, path, path, "test", role="query", box=_box(where, record)))
        for column, kinds in (("positives", sought), ("ignored", left_out)):
            found = [one for kind in kinds for one in _numbers(where, record, kind, len(gallery))]
            pairs[column] += [(row, len(queries) + one - 1) for one in found]
    for row, name in enumerate(gallery):
        path = f"jpg/{name}.jpg"
        rows["images"].append(Row(f"{file}, image {row + 1}", path, path, "test", role="gallery"))
    parts = [published.Part(name, rows[name], expected) for name, expected in benchmark.sizes.items()]
    reading = published.examine_parts(place, parts, [])
    assert reading.manifest is not None
    columns: dict[str, Any] = {name: np.array(found, dtype=np.int64).reshape(-1, 2) for name, found in pairs.items()}
    return reading._replace(manifest=dataclasses.replace(reading.manifest, **columns))


def _box(where: str, record: Mapping[str, Any]) -> tuple[int, int, int, int]:
    values = np.ravel(np.asarray(record.get("bbx", ())))
    if values.shape != (4,) or values.dtype.kind not in "fiu" or not np.isfinite(values).all():
        raise UserError(f"{where}: bbx must be four numbers, got {record.get('bbx')!r}")
    x1, y1, x2, y2 = (round(float(value)) for value in values)
    if not (x1 < x2 and y1 < y2):
        raise UserError(f"{where}: nothing lies in the box {x1},{y1},{x2},{y2}")
    return max(0, x1), max(0, y1), x2, y2


def _numbers(where: str, record: Mapping[str, Any], kind: str, count: int) -> Sequence[int]:
    """Return the numbers, from 1, of the images that a query's record lists as of one kind."""
    values = np.ravel(np.asarray(record.get(kind, ())))
    whole = values.dtype.kind in "iuf" and bool((values == np.round(values)).all())  # Matlab's numbers are fractions
    if values.size and not (whole and values.min() >= 1 and values.max() <= count):
        raise UserError(f"{where}: {kind} must be numbers of images from 1 to {count}, got {values.tolist()[:5]}")
    found: list[int] = values.astype(np.int64).tolist()
    return found

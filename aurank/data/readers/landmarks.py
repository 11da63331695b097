"""Landmarks whose ground truth lists images for each query: the revisited Oxford and Paris, and Google Landmarks v2."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np

from aurank.data.manifest import Manifest
from aurank.data.readers import published
from aurank.data.readers._rows import Row, read_lines, read_mat, read_mat_names
from aurank.data.sources import ImageSource
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

Usage = Literal["public", "private"]
_GLD = "https://github.com/cvdfoundation/google-landmark"
_INDEX, _SOLUTION = "index/index.csv", "test/retrieval_solution_v2.1.csv"
# Sizes: the index as its page counts it; the queries that are not ignored as papers that report both count them, which
# no official file was at hand to confirm.
GLD = published.Benchmark(
    name="gldv2",
    title="Google Landmarks v2, retrieval",
    folders=("gldv2", "gldv2_dataset", "google-landmark", "."),
    layout="gldv2/{index/index.csv, test/retrieval_solution_v2.1.csv, index/0/1/2/0123456789abcdef.jpg, test/0/1/2/…}",
    origin=_GLD,
    terms="annotations CC BY 4.0; images of index and test CC-0 or public domain",
    files=(
        published.OfficialFile(_INDEX, "the list of the index", _GLD),
        published.OfficialFile(_SOLUTION, "the ground truth of retrieval", _GLD),
    ),
    sizes={
        "public": published.SplitSize(379, 379),
        "private": published.SplitSize(750, 750),
        "index": published.SplitSize(761_757, 761_757),
    },
)


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
    if usage not in get_args(Usage):
        raise UserError(f"gldv2: usage must be one of {', '.join(get_args(Usage))}, got {usage!r}")
    return published.read_published(GLD, root, path, functools.partial(examine_gld, usage=usage), complete=complete)


def examine_gld(place: published.Place, *, usage: Usage) -> published.Reading:
    """Return the queries of one usage and the index as found, and what differs."""
    if missing := place.missing(GLD.files):
        return published.Reading(None, missing)
    gallery: dict[str, Row] = {}
    for where, (image,) in _csv_rows(place.source, _INDEX, ("id",)):
        path = _path_of(where, "index", image)
        gallery[image] = Row(where, path, path, "test", role="gallery")
    queries: list[Row] = []
    pairs, unknown = [], []
    number = {image: row for row, image in enumerate(gallery)}
    for where, (image, found, used) in _csv_rows(place.source, _SOLUTION, ("id", "images", "Usage")):
        if used not in ("Public", "Private", "Ignored"):
            raise UserError(f"{where}: Usage must be Public, Private or Ignored, got {used!r}")
        if used.lower() != usage:
            continue
        for one in found.split():
            if one in number:
                pairs.append((len(queries), number[one]))
            else:
                unknown.append(f"{one}, {where}")
        path = _path_of(where, "test", image)
        queries.append(Row(where, path, path, "test", role="query"))
    parts = [
        published.Part(f"{usage} queries of {_SOLUTION}", queries, GLD.sizes[usage]),
        published.Part(_INDEX, list(gallery.values()), GLD.sizes["index"]),
    ]
    problems = published.summarise(f"images sought that are not in {_INDEX}", unknown)
    reading = published.examine_parts(place, parts, problems)
    assert reading.manifest is not None
    positives = np.array(pairs, dtype=np.int64).reshape(-1, 2) + np.array([0, len(queries)])
    return reading._replace(manifest=dataclasses.replace(reading.manifest, positives=positives))


def _csv_rows(source: ImageSource, file: str, header: tuple[str, ...]) -> Iterator[tuple[str, list[str]]]:
    """Yield where each line of a comma-separated file is, and its values; no value of these files holds a comma."""
    lines = read_lines(source, file)
    where, first = next(lines, (f"{file}, line 1", ""))
    if first.split(",") != list(header):
        raise UserError(f"{where}: expected the header {','.join(header)}, got {first[:80]!r}")
    for where, line in lines:
        values = line.split(",")
        if len(values) != len(header):
            raise UserError(f"{where}: expected {len(header)} columns ({','.join(header)}), got {line[:80]!r}")
        yield where, values


def _path_of(where: str, folder: str, image: str) -> str:
    if len(image) < 3 or not image.isalnum():
        raise UserError(f"{where}: expected the id of an image, such as 0123456789abcdef, got {image!r}")
    return f"{folder}/{image[0]}/{image[1]}/{image[2]}/{image}.jpg"


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

"""The positives of every query, with both sides sorted by label, so that a class is one range of the gallery."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64, Integer

from aurank.errors import UserError
from aurank.evaluation.engine.inputs import Places, pair_array
from aurank.evaluation.engine.problem import RetrievalProblem, check_sides, rows_without_junk
from aurank.sizes import as_text, available_memory

NO_GROUP = -1
POSITIVE_BYTES = 110  # that a positive takes at most at once: its place, score, counts, and terms of the metrics


@dataclass(frozen=True, eq=False)
class SortedProblem:
    """A `RetrievalProblem` with both sides sorted by label.

    Sorted query i is row `query_index[i]` of the caller's queries. Its positives are
    `positives[offset[i] : offset[i + 1]]`, places in the sorted gallery. Its negatives are the whole sorted gallery but
    for two parts: `class_start[i]` to `class_stop[i]`, and the places `extra[extra_offset[i] : extra_offset[i + 1]]`.
    In a `symmetric` problem both sides are the same rows in the same order, and `extra` is empty.
    """

    query_index: Int64[np.ndarray, " sorted_query"]
    gallery_index: Int64[np.ndarray, " sorted_gallery"]
    class_start: Int64[np.ndarray, " sorted_query"]
    class_stop: Int64[np.ndarray, " sorted_query"]
    offset: Int64[np.ndarray, " sorted_query_plus_one"]
    positives: Int64[np.ndarray, " positive"]
    extra_offset: Int64[np.ndarray, " sorted_query_plus_one"]
    extra: Int64[np.ndarray, " extra"]
    labels: Int64[np.ndarray, " query"]  # of every query given, in the caller's order
    num_gallery: int  # rows given, junk included
    symmetric: bool

    @property
    def num_positives(self) -> Int64[np.ndarray, " sorted_query"]:
        """Positives of each sorted query."""
        return np.asarray(np.diff(self.offset))

    @property
    def num_negatives(self) -> Int64[np.ndarray, " sorted_query"]:
        """Gallery rows that each sorted query's positives compete with."""
        excluded = self.class_stop - self.class_start + np.diff(self.extra_offset)
        return np.asarray(len(self.gallery_index) - excluded)


def sort_by_label(problem: RetrievalProblem) -> SortedProblem:
    """Return the problem sorted by label, with the positives of each query; UserError where its fields do not fit."""
    query, gallery = check_sides(problem)
    rows, there = len(query.labels), len(gallery.labels)
    own, kept = problem.own_rows(), rows_without_junk(problem.junk, there)
    ignore = pair_array(() if problem.ignore is None else problem.ignore, "ignore", rows, there)
    listed = None if problem.positives is None else pair_array(problem.positives, "positives", rows, there)
    if listed is None:
        order = _sort(query.labels, gallery.labels, kept)
        require_room(int((order.class_stop - order.class_start).sum()) - (rows if problem.gallery is None else 0))
        candidates = order.classes()
    else:
        nobody = np.zeros(rows, np.int64)  # is of the same class, and both sides stay as they are
        order = _Order(np.arange(rows), kept, nobody, nobody)
        candidates = np.unique(order.numbers(listed, there))
    if own is not None:
        ignore = np.concatenate([ignore, np.stack([np.arange(rows), own], axis=1)[own >= 0]])
    left_out = np.unique(order.numbers(ignore, there))
    keep = ~among(candidates, left_out)
    sorted_query, sorted_gallery = np.divmod(candidates, len(kept))
    if query.groups is not None and gallery.groups is not None:
        group = query.groups[order.query_index][sorted_query]
        keep &= (group == NO_GROUP) | (group != gallery.groups[order.gallery_index][sorted_gallery])
    counts = np.bincount(sorted_query[keep], minlength=rows)
    # What the range of the class does not hide: listed positives, and pairs left out beyond the range.
    extra_query, extra = np.divmod(left_out if listed is None else np.union1d(left_out, candidates), len(kept))
    beyond = (extra < order.class_start[extra_query]) | (extra >= order.class_stop[extra_query])
    extra_query, extra = extra_query[beyond], extra[beyond]
    symmetric = problem.gallery is None and listed is None and len(kept) == there and not len(extra)
    # Where most queries have no positive, dropping them saves more than half of the tiles.
    symmetric = symmetric and 2 * int((counts > 0).sum()) >= rows
    chosen = np.ones(rows, bool) if symmetric else counts > 0
    return SortedProblem(
        query_index=order.query_index[chosen],
        gallery_index=order.gallery_index,
        class_start=order.class_start[chosen],
        class_stop=order.class_stop[chosen],
        offset=_offsets(counts[chosen]),
        positives=sorted_gallery[keep],
        extra_offset=_offsets(np.bincount(extra_query, minlength=rows)[chosen]),
        extra=extra[chosen[extra_query]],
        labels=query.labels,
        num_gallery=there,
        symmetric=symmetric,
    )


class _Order(NamedTuple):
    """Where the rows are after sorting; a pair (sorted query, sorted gallery) as one number, for sets of pairs."""

    query_index: Int64[np.ndarray, " sorted_query"]
    gallery_index: Int64[np.ndarray, " sorted_gallery"]
    class_start: Int64[np.ndarray, " sorted_query"]
    class_stop: Int64[np.ndarray, " sorted_query"]

    def numbers(self, pairs: Int64[np.ndarray, "pair 2"], num_gallery: int) -> Int64[np.ndarray, " kept"]:
        """Return the numbers of index pairs, without those that are junk."""
        sorted_query = places_of(self.query_index, len(self.query_index))[pairs[:, 0]]
        sorted_gallery = places_of(self.gallery_index, num_gallery)[pairs[:, 1]]
        return np.asarray((sorted_query * len(self.gallery_index) + sorted_gallery)[sorted_gallery >= 0])

    def classes(self) -> Int64[np.ndarray, " pair"]:
        """Return the numbers of all pairs of one class, in increasing order."""
        counts = self.class_stop - self.class_start
        sorted_query = np.repeat(np.arange(len(counts)), counts)
        sorted_gallery = np.arange(len(sorted_query)) - np.repeat(np.cumsum(counts) - counts - self.class_start, counts)
        return np.asarray(sorted_query * len(self.gallery_index) + sorted_gallery)


def _sort(labels: Int64[np.ndarray, " query"], gallery_labels: Int64[np.ndarray, " row"], kept: Places) -> _Order:
    """Sort both sides by label."""
    query_index = np.argsort(labels, kind="stable")
    gallery_index = kept[np.argsort(gallery_labels[kept], kind="stable")]
    ordered, wanted = gallery_labels[gallery_index], labels[query_index]
    start, stop = np.searchsorted(ordered, wanted), np.searchsorted(ordered, wanted, side="right")
    return _Order(query_index, gallery_index, start, stop)


def places_of(index: Int64[np.ndarray, " place"], rows: int) -> Int64[np.ndarray, " row"]:
    """Return the place of each row in `index`, -1 where it has none."""
    places = np.full(rows, -1)
    places[index] = np.arange(len(index))
    return places


def require_room(positives: int) -> None:
    """Raise UserError where so many positives do not fit into memory, before anything is computed."""
    free = available_memory()
    if free is not None and positives * POSITIVE_BYTES > free:
        raise UserError(
            f"the labels make {positives:,} positives, which take about {as_text(positives * POSITIVE_BYTES)} beside "
            f"max_memory, and {as_text(free)} are available: measure a sample of the queries against the whole "
            "gallery, or labels of smaller classes"
        )


def count_positives(queries: Integer[np.ndarray, " query"], gallery: Integer[np.ndarray, " gallery"]) -> int:
    """Return the number of pairs of a query and a gallery row of one label."""
    if not len(gallery):
        return 0
    names, sizes = np.unique(gallery, return_counts=True)
    place = np.minimum(np.searchsorted(names, queries), len(names) - 1)
    return int(sizes[place][names[place] == queries].sum())


def among(values: Int64[np.ndarray, "*shape"], ordered: Int64[np.ndarray, " other"]) -> Bool[np.ndarray, "*shape"]:
    """Return which values are in a sorted list."""
    if not len(ordered):
        return np.zeros(values.shape, bool)
    place = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return np.asarray(ordered[place] == values)


def _offsets(counts: Int64[np.ndarray, " sorted_query"]) -> Int64[np.ndarray, " sorted_query_plus_one"]:
    return np.concatenate([[0], np.cumsum(counts)])

"""The positives of every query, with both sides sorted by label, so that a class is one range of the gallery.

They are not kept: a range of queries has them listed when it is their turn, so that memory goes by rows and not by
positives, of which 60,000 images in 10 classes have 360 million.
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Int64, Integer

from aurank.errors import UserError
from aurank.evaluation.engine.inputs import pair_array
from aurank.evaluation.engine.problem import RetrievalProblem, check_sides, rows_without_junk
from aurank.sizes import as_text, available_memory

NO_GROUP = -1
POSITIVE_BYTES = 110  # that a positive takes at most at once: its place, score, counts, and terms of the metrics
Pairs: TypeAlias = tuple[Int64[np.ndarray, " pair"], Int64[np.ndarray, " pair"]]  # sorted queries and places


class Groups(NamedTuple):
    """The group of each sorted query and of each place of the sorted gallery."""

    query: Int64[np.ndarray, " sorted_query"]
    gallery: Int64[np.ndarray, " sorted_gallery"]

    def same(
        self, query: Int64[np.ndarray, "*#shape"], place: Int64[np.ndarray, "*shape"]
    ) -> Bool[np.ndarray, "*shape"]:
        """Return which pairs have one group."""
        own = self.query[query]
        return np.asarray((own != NO_GROUP) & (own == self.gallery[place]))


@dataclass(frozen=True, eq=False)
class SortedProblem:
    """A `RetrievalProblem` with both sides sorted by label.

    Sorted query i is row `query_index[i]` of the caller's queries. It has `offset[i + 1] - offset[i]` positives, which
    `positives` lists. Its negatives are the whole sorted gallery but for two parts: `class_start[i]` to
    `class_stop[i]`, and the places `extra[extra_offset[i] : extra_offset[i + 1]]`.
    In a `symmetric` problem both sides are the same rows in the same order, and `extra` is empty.

    Pairs in `left_out` and `listed` are numbers, sorted query times places plus place, increasing.
    """

    query_index: Int64[np.ndarray, " sorted_query"]
    gallery_index: Int64[np.ndarray, " sorted_gallery"]
    class_start: Int64[np.ndarray, " sorted_query"]
    class_stop: Int64[np.ndarray, " sorted_query"]
    offset: Int64[np.ndarray, " sorted_query_plus_one"]
    extra_offset: Int64[np.ndarray, " sorted_query_plus_one"]
    extra: Int64[np.ndarray, " extra"]
    left_out: Int64[np.ndarray, " left_out"]  # own rows and ignored pairs
    listed: Int64[np.ndarray, " listed"] | None  # where these are the positives, and no class
    groups: Groups | None
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

    def positives(self, queries: slice) -> Pairs:
        """Return the positives of a range of sorted queries, query by query, and the places of each increasing."""
        query, place = self._candidates(queries)
        numbers, left_out = query * len(self.gallery_index) + place, self._within(self.left_out, queries)
        at = np.minimum(np.searchsorted(numbers, left_out), max(len(numbers) - 1, 0))
        keep = np.ones(len(numbers), bool)
        if len(numbers):
            keep[at[numbers[at] == left_out]] = False
        if self.groups is not None:
            keep &= ~self.groups.same(query, place)
        return query[keep], place[keep]

    def is_positive(
        self, query: Int64[np.ndarray, "*#shape"], place: Int64[np.ndarray, "*shape"]
    ) -> Bool[np.ndarray, "*shape"]:
        """Return which pairs of a sorted query and a place are positives."""
        numbers = query * len(self.gallery_index) + place
        found = (place >= self.class_start[query]) & (place < self.class_stop[query])
        if self.listed is not None:
            found = among(numbers, self.listed)
        found &= ~among(numbers, self.left_out)
        return np.asarray(found if self.groups is None else found & ~self.groups.same(query, place))

    def hidden(self, queries: slice, places: slice) -> Pairs:
        """Return the pairs of two ranges that are neither positive nor negative, each once."""
        query, place = np.divmod(self._within(self.left_out, queries), len(self.gallery_index))
        inside = (place >= places.start) & (place < places.stop)
        query, place = query[inside], place[inside]
        if self.groups is None:
            return query, place
        own, other = self._candidates(queries, places)
        same = self.groups.same(own, other)
        size = len(self.gallery_index)
        query, place = np.divmod(np.union1d(query * size + place, own[same] * size + other[same]), size)
        return query, place

    def _candidates(self, queries: slice, places: slice | None = None) -> Pairs:
        """Return the pairs of a range that would be positives if none were left out."""
        if self.listed is not None:
            query, place = np.divmod(self._within(self.listed, queries), len(self.gallery_index))
            inside = slice(None) if places is None else (place >= places.start) & (place < places.stop)
            return query[inside], place[inside]
        start, stop = self.class_start[queries], self.class_stop[queries]
        if places is not None:
            start, stop = (np.clip(edge, places.start, places.stop) for edge in (start, stop))
        count = stop - start
        query = np.repeat(np.arange(queries.start, queries.stop), count)
        return query, np.arange(len(query)) - np.repeat(np.cumsum(count) - count - start, count)

    def _within(self, numbers: Int64[np.ndarray, " pair"], queries: slice) -> Int64[np.ndarray, " some"]:
        """Return those of increasing pairs that are of a range of queries."""
        first, last = np.searchsorted(
            numbers, [edge * len(self.gallery_index) for edge in (queries.start, queries.stop)]
        )
        return numbers[first:last]


def sort_by_label(problem: RetrievalProblem) -> SortedProblem:
    """Return the problem sorted by label, positives counted; UserError where its fields do not fit each other."""
    query, gallery = check_sides(problem)
    rows, there = len(query.labels), len(gallery.labels)
    own, kept = problem.own_rows(), rows_without_junk(problem.junk, there)
    ignore = pair_array(() if problem.ignore is None else problem.ignore, "ignore", rows, there)
    listed = None if problem.positives is None else pair_array(problem.positives, "positives", rows, there)
    if listed is None:
        query_index = np.argsort(query.labels, kind="stable")
        gallery_index = kept[np.argsort(gallery.labels[kept], kind="stable")]
        edges = (
            np.searchsorted(gallery.labels[gallery_index], query.labels[query_index], s) for s in ("left", "right")
        )
        order = _Order(query_index, gallery_index, *edges)
    else:
        nobody = np.zeros(rows, np.int64)  # is of the same class, and both sides stay as they are
        order = _Order(np.arange(rows), kept, nobody, nobody)
    if own is not None:
        ignore = np.concatenate([ignore, np.stack([np.arange(rows), own], axis=1)[own >= 0]])
    left_out = np.unique(order.numbers(ignore, there))
    wanted = None if listed is None else np.unique(order.numbers(listed, there))
    groups = None
    if query.groups is not None and gallery.groups is not None:
        groups = Groups(query.groups[order.query_index], gallery.groups[order.gallery_index])
    counts = order.count_positives(left_out, wanted, groups)
    # What the range of the class does not hide: listed positives, and pairs left out beyond the range.
    extra_query, extra = np.divmod(left_out if wanted is None else np.union1d(left_out, wanted), len(kept))
    beyond = ~order.is_class(extra_query, extra)
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
        extra_offset=_offsets(np.bincount(extra_query, minlength=rows)[chosen]),
        extra=extra[chosen[extra_query]],
        left_out=_renumbered(left_out, chosen, len(kept)),
        listed=None if wanted is None else _renumbered(wanted, chosen, len(kept)),
        groups=None if groups is None else Groups(groups.query[chosen], groups.gallery),
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

    def is_class(
        self, query: Int64[np.ndarray, " pair"], place: Int64[np.ndarray, " pair"]
    ) -> Bool[np.ndarray, " pair"]:
        """Return which pairs are of one class."""
        return np.asarray((place >= self.class_start[query]) & (place < self.class_stop[query]))

    def count_positives(
        self,
        left_out: Int64[np.ndarray, " left_out"],
        listed: Int64[np.ndarray, " listed"] | None,
        groups: Groups | None,
    ) -> Int64[np.ndarray, " sorted_query"]:
        """Return how many positives each sorted query has, without listing those of the classes."""
        rows, size = len(self.query_index), len(self.gallery_index)
        if listed is not None:
            query, place = np.divmod(listed[~among(listed, left_out)], size)
            keep = slice(None) if groups is None else ~groups.same(query, place)
            return np.bincount(query[keep], minlength=rows)
        query, place = np.divmod(left_out, size)
        less, counts = self.is_class(query, place), self.class_stop - self.class_start
        if groups is not None:
            less &= ~groups.same(query, place)
            counts = counts - self._same_group(groups)
        return np.asarray(counts - np.bincount(query[less], minlength=rows))

    def _same_group(self, groups: Groups) -> Int64[np.ndarray, " sorted_query"]:
        """Return how many gallery rows each query shares both class and group with."""
        names, number = np.unique(groups.gallery, return_inverse=True)
        some = self.class_stop > self.class_start
        first, index = np.unique(self.class_start[some], return_index=True)
        if not len(first):
            return np.zeros(len(some), np.int64)
        # Queries of one class have one range, and ranges do not overlap: of a place's ranges the last that begins.
        places = np.arange(len(number))
        at = np.searchsorted(first, places, side="right") - 1
        held = (at >= 0) & (places < self.class_stop[some][index][at])
        keys = np.sort((first[at] * len(names) + number)[held])
        place = np.minimum(np.searchsorted(names, groups.query), len(names) - 1)
        known = (names[place] == groups.query) & (groups.query != NO_GROUP) & some
        wanted = self.class_start * len(names) + place
        return np.where(known, np.searchsorted(keys, wanted, side="right") - np.searchsorted(keys, wanted), 0)


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


def _renumbered(
    numbers: Int64[np.ndarray, " pair"], chosen: Bool[np.ndarray, " query"], size: int
) -> Int64[np.ndarray, " kept"]:
    """Return the numbers of pairs after queries that are not chosen are gone, and theirs with them."""
    query, place = np.divmod(numbers, size)
    return np.asarray(((np.cumsum(chosen) - 1)[query] * size + place)[chosen[query]])


def _offsets(counts: Int64[np.ndarray, " sorted_query"]) -> Int64[np.ndarray, " sorted_query_plus_one"]:
    return np.concatenate([[0], np.cumsum(counts)])

"""Both sides of a problem sorted by label, so that a class is one range of the gallery, and its positives."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Int64

from aurank.errors import UserError
from aurank.evaluation.inputs import NO_GROUP, RetrievalProblem, check_sides, pair_array, rows_without_junk
from aurank.sizes import as_text, available_memory

Pairs: TypeAlias = tuple[Int64[np.ndarray, " pair"], Int64[np.ndarray, " pair"]]  # sorted queries and positions

POSITIVE_BYTES = 110  # that a positive takes at most at once: its position, score, counts, and terms of the metrics


@dataclass(frozen=True, eq=False)
class SortedProblem:
    """A `RetrievalProblem` with both sides sorted by label; positives are listed for a range of queries at a time.

    The negatives of sorted query i are the gallery without the positions `class_start[i]` to `class_stop[i]`, and
    without `extra[extra_offset[i] : extra_offset[i + 1]]`. Pairs in `left_out` and `listed` are numbers, query times
    gallery size plus position, increasing.
    """

    query_index: Int64[np.ndarray, " sorted_query"]  # row of the caller's queries
    gallery_index: Int64[np.ndarray, " sorted_gallery"]
    class_start: Int64[np.ndarray, " sorted_query"]
    class_stop: Int64[np.ndarray, " sorted_query"]
    num_positives: Int64[np.ndarray, " sorted_query"]
    num_negatives: Int64[np.ndarray, " sorted_query"]
    offset: Int64[np.ndarray, " sorted_query_plus_one"]  # cumulated numbers of positives
    extra_offset: Int64[np.ndarray, " sorted_query_plus_one"]
    extra: Int64[np.ndarray, " extra"]
    left_out: Int64[np.ndarray, " left_out"]  # pairs that are neither positive nor negative
    listed: Int64[np.ndarray, " listed"] | None  # where these are the positives, and no class
    labels: Int64[np.ndarray, " query"]  # of every query given, in the caller's order
    num_gallery: int  # rows given, junk included
    symmetric: bool  # both sides are the same rows in the same order, and `extra` is empty

    def positives(self, queries: slice) -> Pairs:
        """Return the positives of a range of sorted queries, query by query, with increasing positions."""
        if self.listed is None:
            query, position = pairs_of_ranges(self.class_start[queries], self.class_stop[queries])
            numbers = (query + queries.start) * len(self.gallery_index) + position
        else:
            numbers = self._within(self.listed, queries)
        left_out = self._within(self.left_out, queries)
        numbers = np.delete(numbers, np.searchsorted(numbers, left_out[among(left_out, numbers)]))
        query, position = np.divmod(numbers, len(self.gallery_index))
        return query, position

    def is_positive(
        self, query: Int64[np.ndarray, "*#shape"], position: Int64[np.ndarray, "*shape"]
    ) -> Bool[np.ndarray, "*shape"]:
        """Return which pairs of a sorted query and a position are positives."""
        numbers = query * len(self.gallery_index) + position
        same = (position >= self.class_start[query]) & (position < self.class_stop[query])
        if self.listed is not None:
            same = among(numbers, self.listed)
        return np.asarray(same & ~among(numbers, self.left_out))

    def hidden(self, queries: slice, positions: slice) -> Pairs:
        """Return the pairs of two ranges that are neither positive nor negative, counted from where these start."""
        query, position = np.divmod(self._within(self.left_out, queries), len(self.gallery_index))
        inside = (position >= positions.start) & (position < positions.stop)
        return query[inside] - queries.start, position[inside] - positions.start

    def _within(self, numbers: Int64[np.ndarray, " pair"], queries: slice) -> Int64[np.ndarray, " part"]:
        size = len(self.gallery_index)
        first, last = np.searchsorted(numbers, [queries.start * size, queries.stop * size])
        return numbers[first:last]


def sort_by_label(problem: RetrievalProblem) -> SortedProblem:
    """Return the problem sorted by label, positives counted; UserError where its fields do not fit each other."""
    labels, gallery_labels, groups, gallery_groups = check_sides(problem)
    rows, gallery_rows = len(labels), len(gallery_labels)
    not_junk = rows_without_junk(problem.junk, gallery_rows)
    size = len(not_junk)
    if problem.positives is None:
        query_index = np.argsort(labels, kind="stable")
        gallery_index = not_junk[np.argsort(gallery_labels[not_junk], kind="stable")]
        start, stop = matching_ranges(labels[query_index], gallery_labels[gallery_index])
    else:  # positives are listed: labels are not used, and both sides keep their order
        query_index, gallery_index = np.arange(rows), not_junk
        start = stop = np.zeros(rows, np.int64)
    query_position, gallery_position = positions_of(query_index, rows), positions_of(gallery_index, gallery_rows)

    def numbers(pairs: Int64[np.ndarray, "pair 2"]) -> Int64[np.ndarray, " number"]:
        position = gallery_position[pairs[:, 1]]
        return increasing((query_position[pairs[:, 0]] * size + position)[position >= 0])

    left_out, listed = numbers(pair_array(problem.ignore, "ignore", rows, gallery_rows)), None
    if (own_row := problem.own_rows()) is not None:
        left_out = increasing(left_out, numbers(np.stack([np.arange(rows), own_row], axis=1)[own_row >= 0]))
    if problem.positives is not None:
        listed = numbers(pair_array(problem.positives, "positives", rows, gallery_rows))
    if groups is not None and gallery_groups is not None:
        group, gallery_group = groups[query_index], gallery_groups[gallery_index]
        if listed is None:  # sorted by label and group, the gallery rows that share both with a query are one range
            sides = np.concatenate([labels, gallery_labels]), np.concatenate([groups, gallery_groups])
            number = np.unique(np.stack(sides, axis=1), axis=0, return_inverse=True)[1].ravel()
            keys, gallery_keys = number[:rows][query_index], number[rows:][gallery_index]
            order = np.argsort(gallery_keys, kind="stable")
            first, last = matching_ranges(keys, gallery_keys[order])
            last = np.where(group == NO_GROUP, first, last)
            require_room(int((last - first).sum()))
            query, index = pairs_of_ranges(first, last)
            same_group = query * size + order[index]
        else:
            query, position = np.divmod(listed, size)
            same_group = listed[(group[query] != NO_GROUP) & (group[query] == gallery_group[position])]
        left_out = increasing(left_out, same_group)
    query, position = np.divmod(left_out, size)
    is_outside = (position < start[query]) | (position >= stop[query])
    if listed is None:
        counts = stop - start - np.bincount(query[~is_outside], minlength=rows)
        extra = left_out[is_outside]
    else:
        counts = np.bincount(listed[~among(listed, left_out)] // size, minlength=rows)
        extra = increasing(left_out, listed)
    symmetric = problem.gallery is None and listed is None and size == gallery_rows and not len(extra)
    # Where most queries have no positive, dropping them saves more than half of the tiles.
    symmetric = symmetric and 2 * int((counts > 0).sum()) >= rows
    chosen = np.ones(rows, bool) if symmetric else counts > 0

    def renumbered(numbers: Int64[np.ndarray, " pair"]) -> Int64[np.ndarray, " chosen"]:
        query, position = np.divmod(numbers, size)
        return np.asarray(((np.cumsum(chosen) - 1)[query] * size + position)[chosen[query]])

    extra, counts, start, stop = renumbered(extra), counts[chosen], start[chosen], stop[chosen]
    extra_offset = np.searchsorted(extra, np.arange(len(counts) + 1) * size)
    return SortedProblem(
        query_index=query_index[chosen],
        gallery_index=gallery_index,
        class_start=start,
        class_stop=stop,
        num_positives=counts,
        num_negatives=size - (stop - start) - np.diff(extra_offset),
        offset=np.concatenate([[0], np.cumsum(counts)]),
        extra_offset=extra_offset,
        extra=extra % size,
        left_out=renumbered(left_out),
        listed=None if listed is None else renumbered(listed),
        labels=labels,
        num_gallery=gallery_rows,
        symmetric=symmetric,
    )


def increasing(*numbers: Int64[np.ndarray, " _"]) -> Int64[np.ndarray, " number"]:
    """Return all numbers once, in order: by a sort, as np.unique hashes, which takes a hundred times as long."""
    ordered = np.sort(np.concatenate(numbers))
    return np.asarray(ordered[np.diff(ordered, prepend=-1) > 0])


def matching_ranges(values: Int64[np.ndarray, " value"], ordered: Int64[np.ndarray, " entry"]) -> Pairs:
    """Return where the entries equal to each value begin and end in a sorted list."""
    return np.searchsorted(ordered, values), np.searchsorted(ordered, values, side="right")


def pairs_of_ranges(start: Int64[np.ndarray, " range"], stop: Int64[np.ndarray, " range"]) -> Pairs:
    """Return, one after another, the number of each range with each of its entries."""
    count = stop - start
    number = np.repeat(np.arange(len(count)), count)
    return number, np.arange(len(number)) - np.repeat(np.cumsum(count) - count - start, count)


def positions_of(index: Int64[np.ndarray, " position"], rows: int) -> Int64[np.ndarray, " row"]:
    """Return the position of each row in `index`, -1 where it has none."""
    positions = np.full(rows, -1)
    positions[index] = np.arange(len(index))
    return positions


def among(values: Int64[np.ndarray, "*shape"], ordered: Int64[np.ndarray, " entry"]) -> Bool[np.ndarray, "*shape"]:
    """Return which values are in a sorted list."""
    if not len(ordered):
        return np.zeros(values.shape, bool)
    index = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return np.asarray(ordered[index] == values)


def require_room(positives: int) -> None:
    """Raise UserError where so many positives do not fit into memory, before anything is computed."""
    free = available_memory()
    if free is not None and positives * POSITIVE_BYTES > free:
        size = f"{positives:,} positives, which take about {as_text(positives * POSITIVE_BYTES)} beside max_memory"
        remedy = "measure a sample of the queries against the whole gallery, or labels of smaller classes"
        raise UserError(f"the labels make {size}, and {as_text(free)} are available: {remedy}")

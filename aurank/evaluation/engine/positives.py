"""Who is positive for whom, and who is left out, from labels, ids, groups and lists of pairs."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64, Integer

from aurank.errors import UserError
from aurank.evaluation.engine.inputs import (
    Embeddings,
    Integers,
    check_embeddings,
    integer_array,
    pair_array,
    refuse_masked,
    unique_ids,
)
from aurank.sizes import as_text, available_memory

NO_GROUP = -1
POSITIVE_BYTES = 110  # that a positive takes at most at once: its place, score, counts, and terms of the metrics


@dataclass(frozen=True, eq=False)
class Matching:
    """Both sides in an order that makes a class a contiguous range of the gallery.

    Line i is a query; its positives are `columns[offset[i] : offset[i + 1]]`, positions in the gallery's order. No
    negatives are the positions from `first[i]` to `last[i]`, and `extra[extra_offset[i] : extra_offset[i + 1]]`. In
    `symmetric` matchings both sides are the same rows in the same order, and `extra` is empty.
    """

    queries: Int64[np.ndarray, " line"]  # row of the query
    gallery: Int64[np.ndarray, " gallery"]  # row of the gallery, by position
    first: Int64[np.ndarray, " line"]
    last: Int64[np.ndarray, " line"]
    offset: Int64[np.ndarray, " line_plus_one"]
    columns: Int64[np.ndarray, " positive"]
    extra_offset: Int64[np.ndarray, " line_plus_one"]
    extra: Int64[np.ndarray, " extra"]
    labels: Int64[np.ndarray, " query"]  # of every query given, by row
    num_gallery: int  # rows given, junk included
    symmetric: bool

    @property
    def num_positives(self) -> Int64[np.ndarray, " line"]:
        """Positives of each line."""
        return np.asarray(np.diff(self.offset))

    @property
    def num_negatives(self) -> Int64[np.ndarray, " line"]:
        """Gallery rows that each line's positives compete with."""
        return np.asarray(len(self.gallery) - (self.last - self.first) - np.diff(self.extra_offset))


@dataclass(frozen=True, eq=False)
class Side:
    """One side's rows: labels, and ids and groups where given."""

    labels: Int64[np.ndarray, " row"]
    ids: Int64[np.ndarray, " row"] | None
    groups: Int64[np.ndarray, " row"] | None


def match_sides(
    queries: Embeddings,
    query_labels: Integers | None,
    gallery: Embeddings | None,
    gallery_labels: Integers | None,
    *,
    ids: Integers | None,
    gallery_ids: Integers | None,
    groups: Integers | None,
    gallery_groups: Integers | None,
    positives: Integers | None,
    ignore: Integers | None,
    junk: Integers | None,
) -> Matching:
    """The Matching of arguments that have been checked against each other; UserError where they do not fit."""
    check_embeddings(queries, side="query")
    rows = int(queries.shape[0])
    query = _side(query_labels, ids, groups, rows=rows, side="query", labelled=positives is None)
    if gallery is None:
        for name, given in (("labels", gallery_labels), ("ids", gallery_ids), ("groups", gallery_groups)):
            if given is not None:
                raise UserError(f"gallery_{name} came without a gallery: give the gallery's embeddings too")
        other, own, there = query, np.arange(rows), rows
    else:
        other, there = _gallery(queries, gallery, gallery_labels, gallery_ids, gallery_groups, query, positives is None)
        own = np.full(rows, -1)
        if query.ids is not None and other.ids is not None:
            own = find_rows(query.ids, other.ids)
    kept = _without_junk(junk, there)
    pairs = np.empty((0, 2), np.int64) if ignore is None else pair_array(ignore, "ignore", rows, there)
    if positives is None:
        order = kept[np.argsort(other.labels[kept], kind="stable")]
        lines = np.argsort(query.labels, kind="stable")
        first, last = (
            np.searchsorted(other.labels[order], query.labels[lines], side=side) for side in ("left", "right")
        )
        require_room(int((last - first).sum()) - (len(lines) if gallery is None else 0))
        line, column = _expand(first, last)
    else:
        order, lines = kept, np.arange(rows)
        first = last = np.zeros(rows, np.int64)
        line, column = _explicit(pair_array(positives, "positives", rows, there), order, there)
    return _assemble(query, other, own, pairs, lines, order, first, last, line, column, gallery is None, there)


def _assemble(
    query: Side,
    other: Side,
    own: Int64[np.ndarray, " query"],
    ignored: Int64[np.ndarray, "pair 2"],
    lines: Int64[np.ndarray, " line"],
    order: Int64[np.ndarray, " gallery"],
    first: Int64[np.ndarray, " line"],
    last: Int64[np.ndarray, " line"],
    line: Int64[np.ndarray, " candidate"],
    column: Int64[np.ndarray, " candidate"],
    same: bool,
    num_gallery: int,
) -> Matching:
    """The Matching of candidate positives (line, column), less what is left out."""
    width = len(order)
    position = np.full(num_gallery, -1)
    position[order] = np.arange(width)
    line_of = np.empty(len(lines), np.int64)
    line_of[lines] = np.arange(len(lines))
    # A pair (line, column) as one number, so that sets of pairs are sets of numbers.
    candidates = line * width + column
    skip = np.where(own[lines] >= 0, position[own[lines]], -1)
    out = [(np.arange(len(lines)) * width + skip)[skip >= 0]]
    spot = position[ignored[:, 1]]
    out.append((line_of[ignored[:, 0]] * width + spot)[spot >= 0])
    left_out = np.unique(np.concatenate(out))
    keep = ~among(candidates, left_out)
    if query.groups is not None and other.groups is not None:
        group = query.groups[lines][line]
        keep &= (group == NO_GROUP) | (group != other.groups[order][column])
    # What the class range does not hide: explicit positives, and pairs left out beyond the range.
    hidden = np.union1d(left_out, candidates) if not (last > first).any() else left_out
    row, place = hidden // max(width, 1), hidden % max(width, 1)
    beyond = (place < first[row]) | (place >= last[row])
    row, place = row[beyond], place[beyond]
    counts = np.bincount(line[keep], minlength=len(lines))
    symmetric = same and width == num_gallery and not len(row) and bool((last > first).all())
    symmetric = symmetric and 2 * int((counts > 0).sum()) >= len(lines)
    chosen = np.ones(len(lines), bool) if symmetric else counts > 0
    return Matching(
        queries=lines[chosen],
        gallery=order,
        first=first[chosen],
        last=last[chosen],
        offset=_offsets(counts[chosen]),
        columns=column[keep],
        extra_offset=_offsets(np.bincount(row, minlength=len(lines))[chosen]),
        extra=place[chosen[row]],
        labels=query.labels,
        num_gallery=num_gallery,
        symmetric=symmetric,
    )


def require_room(positives: int) -> None:
    """Nothing; UserError where so many positives do not fit into memory: told before anything is computed."""
    free = available_memory()
    if free is not None and positives * POSITIVE_BYTES > free:
        raise UserError(
            f"the labels make {positives:,} positives, which take about {as_text(positives * POSITIVE_BYTES)} beside "
            f"max_memory, and {as_text(free)} are available: measure a sample of the queries against the whole "
            "gallery, or labels of smaller classes"
        )


def count_positives(queries: Integer[np.ndarray, " query"], gallery: Integer[np.ndarray, " gallery"]) -> int:
    """Pairs of a query and a gallery row of one label."""
    if not len(gallery):
        return 0
    names, sizes = np.unique(gallery, return_counts=True)
    place = np.minimum(np.searchsorted(names, queries), len(names) - 1)
    return int(sizes[place][names[place] == queries].sum())


def _side(
    labels: Integers | None, ids: Integers | None, groups: Integers | None, *, rows: int, side: str, labelled: bool
) -> Side:
    name = "gallery_labels" if side == "gallery" else "labels"
    if labels is None and labelled:
        raise UserError(f"{name} are missing: give one label per {side} row, or the positives as a list of pairs")
    return Side(
        # Without labels each query is a class of its own.
        labels=np.arange(rows) if labels is None else integer_array(labels, name="label", rows=rows, side=side),
        ids=None if ids is None else unique_ids(ids, rows=rows, side=side),
        groups=None if groups is None else integer_array(groups, name="group", rows=rows, side=side),
    )


def _gallery(
    queries: Embeddings,
    gallery: Embeddings,
    labels: Integers | None,
    ids: Integers | None,
    groups: Integers | None,
    query: Side,
    labelled: bool,
) -> tuple[Side, int]:
    check_embeddings(gallery, side="gallery")
    if gallery.shape[1] != queries.shape[1]:
        raise UserError(
            f"the query embeddings have width {queries.shape[1]} and the gallery's {gallery.shape[1]}: "
            "embed both with the same model"
        )
    if labels is None and labelled:
        raise UserError("a gallery came without gallery_labels: give one label per gallery row")
    if (query.ids is None) != (ids is None):
        raise UserError("ids and gallery_ids mark the same item on both sides: give both or neither")
    if (query.groups is None) != (groups is None):
        raise UserError("groups and gallery_groups hide items of the query's own group: give both or neither")
    rows = int(gallery.shape[0])
    return _side(labels, ids, groups, rows=rows, side="gallery", labelled=labelled), rows


def _without_junk(junk: Integers | None, rows: int) -> Int64[np.ndarray, " kept"]:
    """Gallery rows that are not junk; `junk` is a list of rows, or one truth value per row."""
    if junk is None:
        return np.arange(rows)
    refuse_masked(junk, "junk")
    given = np.asarray(junk)
    if given.dtype == np.bool_ and given.shape == (rows,):
        kept = np.flatnonzero(~given)
    else:
        kept = np.setdiff1d(np.arange(rows), _rows(given, rows))
    if not len(kept):
        raise UserError(f"all {rows} gallery rows are junk: nothing is left to retrieve")
    return kept


def _rows(given: np.ndarray, rows: int) -> Int64[np.ndarray, " row"]:
    if given.size and (given.ndim != 1 or given.dtype.kind not in "iu"):
        raise UserError(f"junk must be gallery rows or one truth value per row, got shape {given.shape}, {given.dtype}")
    if given.size and not (given.min() >= 0 and given.max() < rows):
        wrong = given.min() if given.min() < 0 else given.max()
        raise UserError(f"junk names row {wrong} of a gallery of {rows} rows: give rows from 0 to {rows - 1}")
    return given.astype(np.int64)


def find_rows(ids: Int64[np.ndarray, " query"], among: Int64[np.ndarray, " gallery"]) -> Int64[np.ndarray, " query"]:
    """Row of `among` that holds each id, -1 where none does."""
    order = np.argsort(among, kind="stable")
    place = np.minimum(np.searchsorted(among[order], ids), len(among) - 1)
    return np.where(among[order][place] == ids, order[place], -1)


def _expand(
    first: Int64[np.ndarray, " line"], last: Int64[np.ndarray, " line"]
) -> tuple[Int64[np.ndarray, " candidate"], Int64[np.ndarray, " candidate"]]:
    """Every (line, column) with first <= column < last, line by line."""
    counts = last - first
    line = np.repeat(np.arange(len(first)), counts)
    return line, np.arange(len(line)) - np.repeat(np.cumsum(counts) - counts - first, counts)


def _explicit(
    pairs: Int64[np.ndarray, "pair 2"], order: Int64[np.ndarray, " gallery"], rows: int
) -> tuple[Int64[np.ndarray, " candidate"], Int64[np.ndarray, " candidate"]]:
    """Every (line, column) of a list of pairs once, line by line, without junk."""
    position = np.full(rows, -1)
    position[order] = np.arange(len(order))
    keys = np.unique(pairs[:, 0] * rows + pairs[:, 1])
    line, column = keys // rows, position[keys % rows]
    return line[column >= 0], column[column >= 0]


def among(values: Int64[np.ndarray, "*shape"], ordered: Int64[np.ndarray, " other"]) -> Bool[np.ndarray, "*shape"]:
    """Which values are in a sorted list."""
    if not len(ordered):
        return np.zeros(values.shape, bool)
    place = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return np.asarray(ordered[place] == values)


def _offsets(counts: Int64[np.ndarray, " line"]) -> Int64[np.ndarray, " line_plus_one"]:
    return np.concatenate([[0], np.cumsum(counts)])

"""The engine: for each query, where each of its positives stands among all negatives of the gallery.

These ranks are sufficient for every metric of retrieval. Both sides are sorted by label once, so that a class is a
contiguous range of the gallery; blocks of queries and gallery rows are scored in bounded memory, and what they count
adds up. The numbers are exact: they follow from scores whose value depends on the two rows alone (see `scores`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int64

from aurank.errors import UserError
from aurank.evaluation.counting import Budget, Counts, Task, count_codes, load_block, read_off
from aurank.evaluation.inputs import (
    Embeddings,
    Integers,
    Vectors,
    byte_count,
    check_embeddings,
    choose_device,
    integer_array,
    row_lengths,
    unique_ids,
)
from aurank.evaluation.scores import full_precision

Progress = Callable[[int, int], object]


@dataclass(frozen=True, eq=False)
class Ranks:
    """For each query with a positive, in the caller's order, each of its positives from the best score down.

    Query i owns the entries `offset[i]` to `offset[i + 1]` of the arrays over positives. Equal positives stand in
    gallery order.
    """

    query: Int64[np.ndarray, " query"]  # row of the query
    num_negatives: Int64[np.ndarray, " query"]  # gallery rows that are neither positive nor left out
    offset: Int64[np.ndarray, " query_plus_one"]
    positive: Int64[np.ndarray, " positive"]  # gallery row
    higher: Int64[np.ndarray, " positive"]  # negatives that score strictly higher
    tied: Int64[np.ndarray, " positive"]  # negatives that score exactly the same
    at_least: Int64[np.ndarray, " positive"]  # the query's positives that score at least as high, this one included
    num_queries: int  # rows given, with a positive or without
    num_gallery: int

    @property
    def num_positives(self) -> Int64[np.ndarray, " query"]:
        """Positives of each query, at least one."""
        return np.asarray(np.diff(self.offset))

    @property
    def num_lone_queries(self) -> int:
        """Queries left out because the gallery holds no positive for them."""
        return self.num_queries - len(self.query)

    @property
    def place(self) -> Int64[np.ndarray, " positive"]:
        """1, 2, … for the positives of each query, one after another even where they tie."""
        places = np.arange(1, len(self.higher) + 1)
        return np.asarray(places - np.repeat(self.offset[:-1], self.num_positives))

    @property
    def rank(self) -> Int64[np.ndarray, " positive"]:
        """Rank of each positive in the whole gallery, from 1; a tied negative counts as ahead."""
        return np.asarray(self.place + self.higher + self.tied)


@dataclass(frozen=True, eq=False)
class Matching:
    """Who is positive for whom: both sides sorted by label, and for each query its class's range of the gallery."""

    queries: Int64[np.ndarray, " query"]  # rows of the queries that have a positive, sorted by label
    gallery: Int64[np.ndarray, " gallery"]  # rows of the gallery, sorted by label
    first: Int64[np.ndarray, " query"]  # range of the class, as positions in `gallery`
    last: Int64[np.ndarray, " query"]
    skip: Int64[np.ndarray, " query"]  # position of the row to leave out, -1 for none
    num_positives: Int64[np.ndarray, " query"]
    num_negatives: Int64[np.ndarray, " query"]


def positive_ranks(
    queries: Embeddings,
    query_labels: Integers,
    gallery: Embeddings | None = None,
    gallery_labels: Integers | None = None,
    *,
    ids: Integers | None = None,
    gallery_ids: Integers | None = None,
    max_memory: int | str = "1GiB",
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> Ranks:
    """Ranks of every positive of every query in the full gallery, by cosine similarity.

    `queries` [query, dim] and `gallery` [gallery, dim] are tensors or NumPy arrays of any real type, memory-mapped ones
    too, which are read in pieces. Labels are integers, one per row; equal labels make a positive. Without a gallery the
    queries are the gallery, and each query's own row is left out by its index. With one, `ids` and `gallery_ids` name
    the items of both sides, and a gallery row with the query's own id is left out.

    `max_memory` (bytes, or text such as "512MiB") bounds the working memory; the embeddings themselves, a few numbers
    per row and the result come on top. `device` defaults to that of CUDA queries, else to the CPU. `progress(done,
    total)` is called with a number of queries after each block; nothing is shown without it.

    The result does not depend on `max_memory`, `device`, threads or the order of rows. Raises UserError (a ValueError)
    for input that cannot be evaluated, with what came and what to do.
    """
    matching = match_sides(queries, query_labels, gallery, gallery_labels, ids, gallery_ids)
    where = choose_device(device, queries)
    size = byte_count(max_memory)
    with full_precision(where):
        lengths = row_lengths(queries, side="query", device=where)
        target, target_lengths = queries, lengths
        if gallery is not None:
            target, target_lengths = gallery, row_lengths(gallery, side="gallery", device=where)
        budget = Budget(size, dim=int(queries.shape[1]), device=where)
        task = Task(
            queries=Vectors(queries, lengths, order=matching.queries),
            gallery=Vectors(target, target_lengths, order=matching.gallery),
            first=matching.first,
            last=matching.last,
            skip=matching.skip,
            budget=budget,
        )
        if budget.holds(len(task.gallery)):
            task.gallery.prepare(budget.rows)
        return count_all(task, matching, num_queries=int(queries.shape[0]), progress=progress)


def match_sides(
    queries: Embeddings,
    query_labels: Integers,
    gallery: Embeddings | None,
    gallery_labels: Integers | None,
    ids: Integers | None,
    gallery_ids: Integers | None,
) -> Matching:
    """The Matching of arguments that have been checked against each other; UserError where they do not fit."""
    check_embeddings(queries, side="query")
    rows = int(queries.shape[0])
    labels = integer_array(query_labels, name="label", rows=rows, side="query")
    own_ids = None if ids is None else unique_ids(ids, rows=rows, side="query")
    if gallery is None:
        if gallery_labels is not None or gallery_ids is not None:
            given = "gallery_labels" if gallery_labels is not None else "gallery_ids"
            raise UserError(f"{given} came without a gallery: give the gallery's embeddings too")
        return match(labels, labels, np.arange(rows))
    check_embeddings(gallery, side="gallery")
    if gallery.shape[1] != queries.shape[1]:
        raise UserError(
            f"the query embeddings have width {queries.shape[1]} and the gallery's {gallery.shape[1]}: "
            "embed both with the same model"
        )
    if gallery_labels is None:
        raise UserError("a gallery came without gallery_labels: give one label per gallery row")
    if (ids is None) != (gallery_ids is None):
        raise UserError("ids and gallery_ids mark the same item on both sides: give both or neither")
    there = int(gallery.shape[0])
    others = integer_array(gallery_labels, name="label", rows=there, side="gallery")
    if own_ids is None or gallery_ids is None:
        return match(labels, others, np.full(rows, -1))
    return match(labels, others, find_rows(own_ids, unique_ids(gallery_ids, rows=there, side="gallery")))


def find_rows(ids: Int64[np.ndarray, " query"], among: Int64[np.ndarray, " gallery"]) -> Int64[np.ndarray, " query"]:
    """Row of `among` that holds each id, -1 where none does."""
    order = np.argsort(among, kind="stable")
    place = np.minimum(np.searchsorted(among[order], ids), len(among) - 1)
    return np.where(among[order][place] == ids, order[place], -1)


def match(
    labels: Int64[np.ndarray, " query"],
    gallery_labels: Int64[np.ndarray, " gallery"],
    own: Int64[np.ndarray, " query"],
) -> Matching:
    """The Matching by equal labels; `own` is the gallery row that a query leaves out, -1 for none."""
    gallery = np.argsort(gallery_labels, kind="stable")
    position = np.empty_like(gallery)
    position[gallery] = np.arange(len(gallery))
    queries = np.argsort(labels, kind="stable")
    first = np.searchsorted(gallery_labels[gallery], labels[queries], side="left")
    last = np.searchsorted(gallery_labels[gallery], labels[queries], side="right")
    skip = np.where(own[queries] >= 0, position[own[queries]], -1)
    inside = (skip >= first) & (skip < last)
    positives = last - first - inside
    negatives = len(gallery) - (last - first) - ((skip >= 0) & ~inside)
    some = positives > 0
    return Matching(queries[some], gallery, first[some], last[some], skip[some], positives[some], negatives[some])


def count_all(task: Task, matching: Matching, *, num_queries: int, progress: Progress | None) -> Ranks:
    """The Ranks of a task, block by block, put back into the caller's order."""
    total = len(task.queries)
    order = np.argsort(matching.queries)
    offset = np.concatenate([[0], np.cumsum(matching.num_positives[order])])
    starts = np.empty_like(order)
    starts[order] = offset[:-1]
    positive, higher, tied, at_least = (np.empty(offset[-1], dtype=np.int64) for _ in range(4))
    done = 0
    while done < total:
        rows = slice(done, done + task.budget.height((task.last - task.first)[done:]))
        counts = count_block(task, rows)
        place = np.arange(counts.higher.shape[1])
        filled = place < matching.num_positives[rows, None]
        entry = (starts[rows, None] + place)[filled]
        positive[entry] = matching.gallery[counts.columns.cpu().numpy()[filled]]
        higher[entry] = counts.higher.cpu().numpy()[filled]
        tied[entry] = counts.tied.cpu().numpy()[filled]
        at_least[entry] = counts.at_least.cpu().numpy()[filled]
        done = rows.stop
        if progress is not None:
            progress(done, total)
    return Ranks(
        query=matching.queries[order],
        num_negatives=matching.num_negatives[order],
        offset=offset,
        positive=positive,
        higher=higher,
        tied=tied,
        at_least=at_least,
        num_queries=num_queries,
        num_gallery=len(matching.gallery),
    )


def count_block(task: Task, rows: slice) -> Counts:
    """What the whole gallery says about the positives of these queries."""
    block = load_block(task, rows)
    width = task.budget.width(block.thresholds.shape[1])
    starts = range(0, len(task.gallery), width)
    histogram = count_codes(block, slice(0, min(width, len(task.gallery))))
    for start in starts[1:]:
        histogram += count_codes(block, slice(start, min(start + width, len(task.gallery))))
    return read_off(block, histogram)

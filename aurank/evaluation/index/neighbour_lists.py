"""Ranks of positives read from lists of neighbours, which may show only some of them."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from aurank.evaluation.engine.counting import Progress
from aurank.evaluation.engine.inputs import Embeddings, Integers, integer_array, pair_array
from aurank.evaluation.engine.positives import Matching, among, find_rows, match_sides
from aurank.evaluation.engine.ranks import Ranks, positive_ranks
from aurank.evaluation.index.neighbours import Index, Neighbours


@dataclass(frozen=True, eq=False)
class Sides:
    """Queries, gallery and who is what to whom: the first arguments of `positive_ranks`, carried as one."""

    embeddings: Embeddings
    labels: Integers | None = None
    gallery: Embeddings | None = None
    gallery_labels: Integers | None = None
    ids: Integers | None = None
    gallery_ids: Integers | None = None
    groups: Integers | None = None
    gallery_groups: Integers | None = None
    positives: Integers | None = None
    ignore: Integers | None = None
    junk: Integers | None = None

    @property
    def target(self) -> Embeddings:
        """The gallery's embeddings, which may be the queries' own."""
        return self.embeddings if self.gallery is None else self.gallery

    def relations(self) -> dict[str, Any]:
        """The fields that are no embeddings and no labels, as `match_sides` and `positive_ranks` take them."""
        names = ("ids", "gallery_ids", "groups", "gallery_groups", "positives", "ignore", "junk")
        return {name: getattr(self, name) for name in names}

    def matching(self) -> Matching:
        """Who is positive for whom; UserError where the arguments do not fit each other."""
        return match_sides(self.embeddings, self.labels, self.gallery, self.gallery_labels, **self.relations())

    def own_rows(self) -> Int64[np.ndarray, " query"] | None:
        """The gallery row that is each query's own item, -1 for none; None if no query has one."""
        if self.gallery is None:
            return np.arange(len(self.embeddings))
        if self.ids is None or self.gallery_ids is None:
            return None
        ids = integer_array(self.ids, name="id", rows=len(self.embeddings), side="query")
        return find_rows(ids, integer_array(self.gallery_ids, name="id", rows=len(self.gallery), side="gallery"))

    def ranks(self, rows: Int64[np.ndarray, " row"], **options: Any) -> Ranks:
        """The exact ranks of the queries in these rows, in increasing order, by their rows in the whole."""
        total, there = len(self.embeddings), len(self.target)
        if len(rows) == total:
            part = self
        elif self.gallery is None:
            everything = np.arange(total)
            own = replace(self, gallery=self.embeddings, gallery_labels=self.labels, gallery_groups=self.groups)
            part = replace(own, ids=everything, gallery_ids=everything)._rows(rows, there)
        else:
            part = self._rows(rows, there)
        ranks = positive_ranks(
            part.embeddings, part.labels, part.gallery, part.gallery_labels, **part.relations(), **options
        )
        whole = rows[ranks.query]  # a query without a label goes by its row
        return replace(ranks, query=whole, labels=whole if self.labels is None else ranks.labels, num_queries=total)

    def _rows(self, rows: Int64[np.ndarray, " row"], there: int) -> "Sides":
        total = len(self.embeddings)

        def pairs(values: Integers | None, name: str) -> Integers | None:
            if values is None:
                return None
            array = pair_array(values, name, total, there)
            array = array[np.isin(array[:, 0], rows)]
            return np.stack([np.searchsorted(rows, array[:, 0]), array[:, 1]], axis=1)

        return replace(
            self,
            embeddings=take(self.embeddings, rows),
            labels=None if self.labels is None else _array(self.labels)[rows],
            ids=None if self.ids is None else _array(self.ids)[rows],
            groups=None if self.groups is None else _array(self.groups)[rows],
            positives=pairs(self.positives, "positives"),
            ignore=pairs(self.ignore, "ignore"),
        )


@dataclass(frozen=True, eq=False)
class Lists:
    """What lists of neighbours say: ranks of the positives that they show, and how much that is.

    `ranks` holds the queries of which at least one positive is shown; the other arrays but `queries` stand beside its
    queries. A rank counts the rows of the list alone.
    """

    ranks: Ranks
    num_positives: Int64[np.ndarray, " shown"]  # in the gallery, shown or not
    complete: Bool[np.ndarray, " shown"]  # every positive is shown, and nothing behind the list can tie with it
    queries: Int64[np.ndarray, " query"]  # rows of all queries with a positive, increasing

    @property
    def num_queries(self) -> int:
        """Queries that have a positive in the gallery."""
        return len(self.queries)


def read_lists(
    sides: Sides,
    index: Index,
    depth: int,
    *,
    seconds: list[float] | None = None,
    progress: Progress | None = None,
) -> Lists:
    """The Lists of `depth` neighbours that an index of the gallery gives each query, some queries at a time."""
    reader = Reader(sides.matching(), rows=len(sides.target), total=len(sides.embeddings))
    own = sides.own_rows()
    parts = []
    for rows, found in index.search_batches(sides.embeddings, depth, leave_out=own, seconds=seconds):
        left_out = 0 if own is None else (own[rows] >= 0).astype(np.int64)
        parts.append(reader.read(rows, found, covered=found.found + left_out >= len(index)))
        if progress is not None:
            progress(rows.stop, len(sides.embeddings))
    return reader.lists(parts)


class Reader:
    """Finds the positives of a Matching in lists of neighbours."""

    def __init__(self, matching: Matching, *, rows: int, total: int) -> None:
        self.matching = matching
        self.width = len(matching.gallery)
        self.position = np.full(rows + 1, -1)  # -1: junk, and behind the last row what pads a list
        self.position[matching.gallery] = np.arange(self.width)
        self.line = np.full(total, -1)
        self.line[matching.queries] = np.arange(len(matching.queries))
        lines = np.arange(len(matching.queries))
        self.counts = matching.num_positives
        self.positives = np.sort(np.repeat(lines, self.counts) * self.width + matching.columns)
        self.extra = np.sort(np.repeat(lines, np.diff(matching.extra_offset)) * self.width + matching.extra)

    def read(self, rows: slice, found: Neighbours, *, covered: Bool[np.ndarray, " query"]) -> dict[str, np.ndarray]:
        """Columns over the positives that these queries' lists show, and over the queries that show one."""
        line = self.line[rows]
        use = np.flatnonzero(line >= 0)
        line, row, similarity = line[use], found.row[use], found.similarity[use]
        place = self.position[row]
        keys = line[:, None] * self.width + place
        positive = among(keys, self.positives) & (place >= 0)
        hidden = (place >= self.matching.first[line, None]) & (place < self.matching.last[line, None])
        negative = (place >= 0) & ~hidden & ~among(keys, self.extra) & ~positive
        start, end = runs(similarity)
        negatives, positives = (np.pad(np.cumsum(part, axis=1), ((0, 0), (1, 0))) for part in (negative, positive))
        query, column = np.nonzero(positive)
        # Equal positives stand in gallery order, as in exact ranks.
        order = np.lexsort((row[query, column], start[query, column], query))
        query, column = query[order], column[order]
        first, last = start[query, column], end[query, column]
        shown = positives[:, -1]
        some = shown > 0
        furthest = np.full(len(use), -np.inf, dtype=np.float32)
        furthest[query] = similarity[query, column]  # the last one written is the worst
        beyond = covered[use] | (furthest > similarity[:, -1])
        return {
            "positive": row[query, column],
            "higher": negatives[query, first],
            "tied": negatives[query, last] - negatives[query, first],
            "at_least": positives[query, last],
            "line": line[some],
            "shown": shown[some],
            "complete": (beyond & (shown == self.counts[line]))[some],
        }

    def lists(self, parts: list[dict[str, np.ndarray]]) -> Lists:
        """The Lists of all batches, in the order of the queries."""
        column = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        line = column["line"]
        ranks = Ranks(
            query=self.matching.queries[line],
            labels=self.matching.labels[self.matching.queries[line]],
            num_negatives=self.matching.num_negatives[line],
            offset=np.concatenate([[0], np.cumsum(column["shown"])]).astype(np.int64),
            positive=column["positive"],
            higher=column["higher"],
            tied=column["tied"],
            at_least=column["at_least"],
            num_queries=len(self.line),
            num_gallery=self.matching.num_gallery,
            num_rechecked=0,
        )
        queries = np.sort(self.matching.queries[self.counts > 0])
        return Lists(ranks, self.counts[line], column["complete"], queries)


def runs(similarity: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each entry of a sorted list, where the entries that score the same begin, and where they have ended."""
    width = similarity.shape[1]
    column = np.arange(width)
    change = similarity[:, 1:] != similarity[:, :-1]
    start, end = np.zeros(similarity.shape, np.int64), np.full(similarity.shape, width)
    start[:, 1:] = np.maximum.accumulate(np.where(change, column[1:], 0), axis=1)
    end[:, :-1] = np.minimum.accumulate(np.where(change, column[1:], width)[:, ::-1], axis=1)[:, ::-1]
    return start, end


def select(ranks: Ranks, keep: Bool[np.ndarray, " query"]) -> Ranks:
    """The ranks of some of the queries."""
    return _gather(ranks, np.flatnonzero(keep))


def merge(first: Ranks, second: Ranks) -> Ranks:
    """The ranks of both, which share no query, in the order of the queries."""
    both = replace(
        first,
        query=np.concatenate([first.query, second.query]),
        labels=np.concatenate([first.labels, second.labels]),
        num_negatives=np.concatenate([first.num_negatives, second.num_negatives]),
        offset=np.concatenate([first.offset, first.offset[-1] + second.offset[1:]]),
        positive=np.concatenate([first.positive, second.positive]),
        higher=np.concatenate([first.higher, second.higher]),
        tied=np.concatenate([first.tied, second.tied]),
        at_least=np.concatenate([first.at_least, second.at_least]),
        num_rechecked=first.num_rechecked + second.num_rechecked,
    )
    return _gather(both, np.argsort(both.query))


def _gather(ranks: Ranks, lines: Int64[np.ndarray, " line"]) -> Ranks:
    counts = ranks.num_positives[lines]
    offset = np.concatenate([[0], np.cumsum(counts)])
    entry = np.arange(offset[-1]) + np.repeat(ranks.offset[lines] - offset[:-1], counts)
    return replace(
        ranks,
        query=ranks.query[lines],
        labels=ranks.labels[lines],
        num_negatives=ranks.num_negatives[lines],
        offset=offset,
        positive=ranks.positive[entry],
        higher=ranks.higher[entry],
        tied=ranks.tied[entry],
        at_least=ranks.at_least[entry],
    )


def take(embeddings: Embeddings, rows: Int64[np.ndarray, " row"]) -> Embeddings:
    """The embeddings of these rows, in memory."""
    return (
        embeddings[torch.from_numpy(rows).to(embeddings.device)] if isinstance(embeddings, Tensor) else embeddings[rows]
    )


def _array(values: Integers) -> np.ndarray[Any, np.dtype[Any]]:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)

"""Exact scores of pairs of rows, compiled where that can be, in torch elsewhere: the same digits."""

from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from aurank.evaluation.engine.inputs import ELEMENTS, Vectors, plain_array, row_lengths
from aurank.evaluation.engine.problem import RetrievalProblem
from aurank.evaluation.engine.scores import make_distance

Pairs: TypeAlias = Int64[np.ndarray, " pair"]
CUDA_ELEMENTS = 2**23  # at once on a GPU, where every call has a price of its own


class ExactScores:
    """Exact scores between places of two sorted sides; safe to call from several threads."""

    def __init__(self, queries: Vectors, gallery: Vectors, *, compiled: bool) -> None:
        self.queries, self.gallery = queries, gallery
        self.plain = []  # rows, order and units of both sides as compiled code reads them
        for side in (queries, gallery) if compiled else ():
            if (array := plain_array(side.embeddings)) is not None:
                self.plain.append((array, side.order.numpy(), side.units.numpy()))

    @classmethod
    def of(
        cls,
        problem: RetrievalProblem,
        query_index: Int64[np.ndarray, " query"],
        gallery_index: Int64[np.ndarray, " gallery"],
        *,
        distance: str,
        compiled: bool,
    ) -> "ExactScores":
        """Return the scores of the rows of both sides in these orders; UserError for a row that has none."""
        lengths = others = row_lengths(problem.embeddings, side="query", distance=distance, compiled=compiled)
        if problem.gallery is not None:
            others = row_lengths(problem.gallery, side="gallery", distance=distance, compiled=compiled)
        measure = make_distance(distance, float(lengths.max()), float(others.max()))
        queries = Vectors(problem.embeddings, lengths, order=query_index, distance=measure)
        gallery = Vectors(problem.target, others, order=gallery_index, distance=measure)
        return cls(queries, gallery, compiled=compiled)

    def pairs(self, queries: Pairs, gallery: Pairs) -> Float64[np.ndarray, " pair"]:
        """Return the score of each pair of a sorted query and a place in the sorted gallery."""
        out = np.empty(len(queries))
        if len(self.plain) == 2:
            from aurank.evaluation.engine.kernels import compiled

            (left, left_order, left_units), (right, right_order, right_units) = self.plain
            here = (left, left_order[queries], left_units[queries], right, right_order[gallery], right_units[gallery])
            compiled.exact_pairs(*here, self.queries.distance.squared, out)
            return out
        elements = CUDA_ELEMENTS if self.queries.device.type == "cuda" else ELEMENTS
        step = max(1, elements // self.queries.dim)
        for start in range(0, len(queries), step):
            row = torch.from_numpy(queries[start : start + step]).to(self.queries.device)
            column = torch.from_numpy(gallery[start : start + step]).to(self.gallery.device)
            second, units = self.gallery.raw(column).to(row.device), self.gallery.units[column].to(row.device)
            scores = self.queries.distance.pairs(self.queries.raw(row), second, self.queries.units[row] * units)
            out[start : start + step] = scores.cpu().numpy()
        return out

    def tile(self, queries: slice, gallery: slice, out: Float64[Tensor, "query gallery"]) -> None:
        """Write the score of every sorted query in a range with every place in a range of the sorted gallery."""
        columns = np.arange(gallery.start, gallery.stop)
        step = max(1, ELEMENTS // len(columns))
        for start in range(queries.start, queries.stop, step):
            rows = np.arange(start, min(start + step, queries.stop))
            scores = self.pairs(np.repeat(rows, len(columns)), np.tile(columns, len(rows)))
            out[start - queries.start :][: len(rows)] = torch.from_numpy(scores).view(len(rows), -1)

"""Exact scores of pairs of rows, compiled where that can be, in torch elsewhere: the same digits."""

from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from aurank.evaluation.engine.inputs import ELEMENTS, Vectors, greatest_whole, plain_array, row_lengths
from aurank.evaluation.engine.kernels import importable
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
        compiled: bool = True,
    ) -> "ExactScores":
        """Return the scores of the rows of both sides in these orders; UserError for a row that has none."""
        compiled = compiled and importable("numba")
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
            from aurank.evaluation.engine.kernels import pairs

            (left, left_order, left_units), (right, right_order, right_units) = self.plain
            here = (left, left_order[queries], left_units[queries], right, right_order[gallery], right_units[gallery])
            pairs.exact_pairs(*here, self.queries.distance.squared, out)
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

    @cached_property
    def product_type(self) -> torch.dtype | None:
        """The type whose matrix products of the rows as they came are exact, if there is one: of small whole numbers.

        Such as codes of one bit: so many of their scores tie that taking each again would take ten times as long.
        """
        largest = greatest_whole(self.queries.embeddings)
        if self.gallery.embeddings is not self.queries.embeddings and largest is not None:
            other = greatest_whole(self.gallery.embeddings)
            largest = None if other is None else max(largest, other)
        if largest is None:
            return None
        most = 4 * self.queries.dim * largest**2  # |x|² + |y|² + 2 |x·y|
        return next((kind for kind in (torch.float32, torch.float64) if most * torch.finfo(kind).eps < 1), None)

    def tile(self, queries: slice, gallery: slice, out: Float64[Tensor, "query gallery"]) -> None:
        """Write the score of every sorted query in a range with every place in a range of the sorted gallery."""
        if self.product_type is not None:
            self._product_tile(queries, gallery, self.product_type, out)
            return
        columns = np.arange(gallery.start, gallery.stop)
        step = max(1, ELEMENTS // len(columns))
        for start in range(queries.start, queries.stop, step):
            rows = np.arange(start, min(start + step, queries.stop))
            scores = self.pairs(np.repeat(rows, len(columns)), np.tile(columns, len(rows)))
            out[start - queries.start :][: len(rows)] = torch.from_numpy(scores).view(len(rows), -1)

    def _product_tile(
        self, queries: slice, gallery: slice, kind: torch.dtype, out: Float64[Tensor, "query gallery"]
    ) -> None:
        """Write the same scores by products of this type, which is exact for all rows."""
        right = self.gallery.raw(gallery).to(out.device, kind)
        units = self.gallery.units[gallery].to(out.device)
        step = max(1, (CUDA_ELEMENTS if out.is_cuda else ELEMENTS) // len(right))
        for start in range(queries.start, queries.stop, step):
            here = slice(start, min(start + step, queries.stop))
            left, part = self.queries.raw(here).to(out.device, kind), out[start - queries.start :][: here.stop - start]
            part.copy_(left @ right.T)
            if self.queries.distance.squared:
                squares = [(side * side).sum(dim=1) for side in (left, right)]
                part.mul_(2).sub_(squares[0][:, None]).sub_(squares[1])
            part.div_(self.queries.units[here, None].to(out.device) * units)

"""Exact scores of pairs of rows, compiled where that can be, in torch elsewhere: the same digits."""

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from aurank.evaluation.engine.inputs import ELEMENTS, Vectors, plain_array

CUDA_ELEMENTS = 2**23  # at once on a GPU, where every call has a price of its own
Positions = Int64[np.ndarray, " pair"]


class ExactScores:
    """Exact scores between positions of two sides; safe to call from several threads."""

    def __init__(self, queries: Vectors, gallery: Vectors, *, compiled: bool) -> None:
        self.queries, self.gallery = queries, gallery
        self.squared = queries.distance.squared
        arrays = [plain_array(side.embeddings) for side in (queries, gallery)] if compiled else [None]
        self.plain = None
        if all(array is not None for array in arrays):
            self.plain = [
                (array, side.order.numpy(), side.units.numpy())
                for array, side in zip(arrays, (queries, gallery), strict=True)
            ]

    def pairs(self, rows: Positions, columns: Positions) -> Float64[np.ndarray, " pair"]:
        """Score of each pair of query and gallery positions."""
        out = np.empty(len(rows))
        if self.plain is not None:
            from aurank.evaluation.engine.kernels import compiled

            (left, left_order, left_units), (right, right_order, right_units) = self.plain
            here = (left, left_order[rows], left_units[rows], right, right_order[columns], right_units[columns])
            compiled.exact_pairs(*here, self.squared, out)
            return out
        elements = CUDA_ELEMENTS if self.queries.device.type == "cuda" else ELEMENTS
        step = max(1, elements // self.queries.dim)
        for start in range(0, len(rows), step):
            row = torch.from_numpy(rows[start : start + step]).to(self.queries.device)
            column = torch.from_numpy(columns[start : start + step]).to(self.gallery.device)
            second, units = self.gallery.raw(column).to(row.device), self.gallery.units[column].to(row.device)
            scores = self.queries.distance.pairs(self.queries.raw(row), second, self.queries.units[row] * units)
            out[start : start + step] = scores.cpu().numpy()
        return out

    def tile(self, rows: slice, columns: slice, out: Float64[Tensor, "row column"]) -> None:
        """Writes the score of every query position in `rows` with every gallery position in `columns`."""
        if self.plain is not None:
            from aurank.evaluation.engine.kernels import compiled

            (left, left_order, left_units), (right, right_order, right_units) = self.plain
            given = (left, left_order[rows], left_units[rows], right, right_order[columns], right_units[columns])
            target = torch.empty(out.shape, dtype=out.dtype) if out.is_cuda else out
            compiled.exact_tile(*given, self.squared, target.numpy())
            if out.is_cuda:
                out.copy_(target)
            return
        second = self.gallery.raw(columns).to(self.queries.device)
        units = self.gallery.units[columns].to(self.queries.device)
        step = max(1, ELEMENTS // second.numel())
        for start in range(rows.start, rows.stop, step):
            here = slice(start, min(start + step, rows.stop))
            first = self.queries.raw(here)[:, None].repeat(1, len(second), 1)
            scores = self.queries.distance.pairs(first, second, self.queries.units[here, None] * units)
            out[start - rows.start : here.stop - rows.start] = scores

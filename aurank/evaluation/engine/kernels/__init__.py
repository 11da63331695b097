"""Counting kernels: one contract, compiled for the processor, in plain torch, or in triton.

A kernel looks at one tile of scores, queries against others: gallery rows, or where a set is its own gallery the
queries of a tile's columns against those of its rows. Query i has the thresholds `offset[i]` to `offset[i + 1]`, in
increasing order, each with a lower and an upper edge around it. For every threshold the kernel counts the scores above
its upper edge, and those from its lower to its upper edge, which are *near*; it lists the near pairs too, for a caller
that has to look closer.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int32, Int64, Shaped
from torch import Tensor

from aurank.errors import AurankWarning, UserError

BACKENDS = ("auto", "numba", "torch", "triton")


@dataclass(frozen=True, eq=False)
class Edges:
    """Edges around the thresholds of consecutive queries: `offset` starts at 0; edges have the type of the scores."""

    offset: Int64[np.ndarray, " query_plus_one"]
    low: Shaped[np.ndarray, " threshold"]
    high: Shaped[np.ndarray, " threshold"]


@dataclass(frozen=True, eq=False)
class Counted:
    """What was counted in one tile for each threshold, and the near pairs as (threshold, other)."""

    above: Int32[np.ndarray, " threshold"]
    near: Int32[np.ndarray, " threshold"]
    threshold: Int64[np.ndarray, " pair"]
    other: Int64[np.ndarray, " pair"]


@runtime_checkable
class Kernel(Protocol):
    """Counts over a tile of scores; an object serves one thread at a time and may reuse its memory."""

    def count(self, scores: Tensor, edges: Edges, *, transposed: bool, room: int | None) -> Counted | None:
        """Return what the tile [query, other], or [other, query] if transposed, counts for the queries' thresholds.

        `room`: how many near pairs may be listed; None where there are more. Without a `room` none is listed.
        The arrays are good until the next call.
        """
        ...


@runtime_checkable
class FusedKernel(Kernel, Protocol):
    """A `Kernel` that can multiply features and count in one, so that no score is kept."""

    def multiply_and_count(
        self, left: Tensor, right: Tensor, left_out: np.ndarray, edges: Sequence[Edges], *, room: int
    ) -> list[Counted | None]:
        """Return what a tile's products count for its rows and, if `edges` has two entries, for its columns.

        Products in float32 at full precision, in any order of summation. Row i has no scores in the columns
        `left_out[0, i]` to `left_out[1, i]`. None for each side with more than `room` near pairs.

        Shape: left [row, width], right [column, width], left_out [2, row].
        """
        ...


def check_backend(backend: str, device: torch.device) -> str:
    """Return the kernel to use: numba or torch on the CPU, torch on CUDA, triton there by name only.

    UserError where it cannot be had. Triton is compared with torch on a small tile first, and torch used with a notice
    if a count differs.
    """
    if backend == "faiss":
        raise UserError(
            'backend="faiss" is gone, since its float32 lists are not exact: leave backend out for exact ranks, or '
            'give index="Flat" or index="IVF1024,Flat" to measure what faiss retrieves beside them'
        )
    if backend not in BACKENDS:
        raise UserError(f"backend must be one of {', '.join(BACKENDS)}; got {backend!r}")
    if backend == "auto":
        return "numba" if device.type == "cpu" and importable("numba") else "torch"
    if backend == "torch":
        return backend
    if not importable(backend):
        raise UserError(f'backend {backend!r} needs the package {backend}: install it, or use backend="auto"')
    if (backend == "numba" and device.type != "cpu") or (backend == "triton" and not _runs_triton(device)):
        raise UserError(f'backend {backend!r} does not run on {device}: use backend="auto"')
    return backend if backend == "numba" or _triton_counts_alike(device) else "torch"


def make_kernel(backend: str) -> Kernel:
    """Return a kernel of its own for one thread."""
    # Imported here: numba takes most of a second, and triton is not to be had everywhere.
    if backend == "numba":
        from aurank.evaluation.engine.kernels.compiled import CompiledKernel

        return CompiledKernel()
    if backend == "triton":
        from aurank.evaluation.engine.kernels.gpu import TritonKernel

        return TritonKernel()
    from aurank.evaluation.engine.kernels.plain import PlainKernel

    return PlainKernel()


def importable(name: str) -> bool:
    """Return whether an optional package is there and whole."""
    try:
        __import__(name)
    except ImportError:
        return False
    return True


def _runs_triton(device: torch.device) -> bool:
    import triton

    knobs = getattr(triton, "knobs", None)  # of triton 3.4 and later
    return device.type == "cuda" or (knobs is not None and bool(knobs.runtime.interpret))


@cache
def _triton_counts_alike(device: torch.device) -> bool:
    """Return whether triton counts on a small tile what plain torch counts on this device; warn where it does not."""
    chance = np.random.default_rng(0)
    # Products of such numbers are exact in any order, so that many tie.
    left, right = (torch.from_numpy(chance.integers(-2, 3, (rows, 20)) / 8).float().to(device) for rows in (20, 140))
    products, nothing = left @ right.T, np.zeros((2, len(left)), np.int64)
    room, plain, fused = products.numel(), make_kernel("torch"), make_kernel("triton")
    assert isinstance(fused, FusedKernel)
    alike = True
    for dtype in (torch.float32, torch.float64):
        scores = products.to(dtype)
        edges = [_some_scores(side.cpu().numpy(), chance) for side in (scores, scores.T)]
        expected, *found = (
            [kernel.count(scores, edges[turned], transposed=turned, room=room) for turned in (False, True)]
            for kernel in (plain, fused)
        )
        if dtype == torch.float32:
            found.append(fused.multiply_and_count(left, right, nothing, edges, room=room))
        alike &= all(all(map(_same, counted, expected)) for counted in found)
    if not alike:
        warnings.warn(
            f"the triton kernel counts other numbers on {device} than plain torch, which is used instead: leave out "
            'backend="triton"',
            AurankWarning,
            stacklevel=2,
        )
    return alike


def _some_scores(scores: Shaped[np.ndarray, "query other"], chance: np.random.Generator) -> Edges:
    """Return edges around some of each query's own scores: around few of most queries, around many of one."""
    counts, width = np.arange(len(scores)) % 5, scores.dtype.type(1 / 64)
    counts[3] = 40
    middle = np.concatenate([np.sort(chance.choice(row, count)) for row, count in zip(scores, counts, strict=True)])
    return Edges(np.concatenate([[0], np.cumsum(counts)]), middle - width, middle + width)


def _same(one: Counted | None, other: Counted | None) -> bool:
    """Return whether both counted the same and listed the same pairs, in any order."""
    if one is None or other is None:
        return one is other
    counts = ((side.above, side.near, np.sort(side.threshold * 2**32 + side.other)) for side in (one, other))
    return all(map(np.array_equal, *counts))

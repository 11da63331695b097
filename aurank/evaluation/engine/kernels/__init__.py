"""Counting kernels: one contract, compiled for the processor, in plain torch, or in triton.

A kernel looks at one tile of scores, lines (queries) against others (gallery rows). Line i has the thresholds
`offset[i]` to `offset[i + 1]`, in increasing order, each with a lower and an upper edge around it. For every threshold
the kernel counts the scores above its upper edge, and those from its lower to its upper edge, which are *near*; it
lists the near pairs too, for a caller that has to look closer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float32, Int32, Int64, Shaped
from torch import Tensor

from aurank.errors import UserError

BACKENDS = ("auto", "numba", "torch", "triton")


@dataclass(frozen=True, eq=False)
class Lines:
    """Thresholds of consecutive lines: `offset` starts at 0, and the edges have the type of the scores."""

    offset: Int64[np.ndarray, " line_plus_one"]
    low: Shaped[np.ndarray, " threshold"]
    high: Shaped[np.ndarray, " threshold"]


@dataclass(frozen=True, eq=False)
class Counted:
    """What one tile says of each threshold, and the near pairs as (threshold, other)."""

    above: Int32[np.ndarray, " threshold"]
    near: Int32[np.ndarray, " threshold"]
    threshold: Int64[np.ndarray, " pair"]
    other: Int64[np.ndarray, " pair"]


@runtime_checkable
class Kernel(Protocol):
    """Counts over a tile of scores; an object serves one thread at a time and may reuse its memory."""

    def count(self, scores: Tensor, lines: Lines, *, transposed: bool, room: int | None) -> Counted | None:
        """What the tile [line, other], or [other, line] if transposed, says of the lines' thresholds.

        `room`: how many near pairs may be listed; None where there are more. Without a `room` none is listed.
        The arrays are good until the next call.
        """
        ...


@runtime_checkable
class FusedKernel(Kernel, Protocol):
    """A `Kernel` that can multiply features and count in one, so that no score is kept."""

    def multiply_and_count(
        self,
        left: Float32[Tensor, "row width"],
        right: Float32[Tensor, "column width"],
        left_out: Int64[np.ndarray, "2 row"],
        lines: Sequence[Lines],
        *,
        room: int,
    ) -> list[Counted | None]:
        """What the products of a tile say of its rows' thresholds, and if `lines` has two entries of its columns'.

        Products in float32 at full precision, in any order of summation. Row i has no scores in the columns
        `left_out[0, i]` to `left_out[1, i]`. None for each side with more than `room` near pairs.
        """
        ...


def check_backend(backend: str, device: torch.device) -> str:
    """The kernel to use: numba or torch on the CPU, triton or torch on CUDA; UserError where it cannot be had."""
    if backend == "faiss":
        raise UserError(
            'backend="faiss" is gone, since its float32 lists are not exact: leave backend out for exact ranks, or '
            'give index="Flat" or index="IVF1024,Flat" to measure what faiss retrieves beside them'
        )
    if backend not in BACKENDS:
        raise UserError(f"backend must be one of {', '.join(BACKENDS)}; got {backend!r}")
    wanted = backend
    if backend == "auto":
        wanted = "triton" if device.type == "cuda" else "numba"
    if wanted == "torch" or importable(wanted):
        if (wanted == "numba" and device.type != "cpu") or (wanted == "triton" and not _runs_triton(device)):
            raise UserError(f'backend {backend!r} does not run on {device}: use backend="auto"')
        return wanted
    if backend == "auto":
        return "torch"
    raise UserError(f'backend {backend!r} needs the package {wanted}: install it, or use backend="auto"')


def make_kernel(backend: str) -> Kernel:
    """A kernel of its own for one thread."""
    # Imported here: numba takes most of a second, and triton is not to be had everywhere.
    if backend == "numba":
        from aurank.evaluation.engine.kernels.cpu import CompiledKernel

        return CompiledKernel()
    if backend == "triton":
        from aurank.evaluation.engine.kernels.gpu import TritonKernel

        return TritonKernel()
    from aurank.evaluation.engine.kernels.plain import PlainKernel

    return PlainKernel()


def importable(name: str) -> bool:
    """Whether an optional package is there and whole."""
    try:
        __import__(name)
    except ImportError:
        return False
    return True


def _runs_triton(device: torch.device) -> bool:
    import triton

    knobs = getattr(triton, "knobs", None)  # of triton 3.4 and later
    return device.type == "cuda" or (knobs is not None and bool(knobs.runtime.interpret))

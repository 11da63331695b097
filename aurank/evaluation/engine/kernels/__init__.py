"""Counting kernels: one contract, compiled for the processor, or in plain torch.

A kernel looks at one tile of scores, queries against others: gallery rows, or where a set is its own gallery the
queries of a tile's columns against those of its rows. Query i has the thresholds `offset[i]` to `offset[i + 1]`, in
increasing order, each with a lower and an upper edge around it. For every threshold the kernel counts the scores above
its upper edge, and those from its lower to its upper edge, which are *near*; it lists the near pairs too, for a caller
that has to look closer.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Int32, Int64, Shaped

from aurank.errors import UserError

if TYPE_CHECKING:
    from aurank.evaluation.engine.kernels.compiled import CompiledKernel
    from aurank.evaluation.engine.kernels.plain import PlainKernel

BACKENDS = ("auto", "numba", "torch")


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


def check_backend(backend: str, device: torch.device) -> str:
    """Return the kernel to use: numba or torch on the CPU, torch on CUDA; UserError where it cannot be had."""
    if backend not in BACKENDS:
        raise UserError(f"backend must be one of {', '.join(BACKENDS)}; got {backend!r}")
    if backend == "auto":
        return "numba" if device.type == "cpu" and importable("numba") else "torch"
    if backend == "torch":
        return backend
    if not importable(backend):
        raise UserError(f'backend {backend!r} needs the package {backend}: install it, or use backend="auto"')
    if device.type != "cpu":
        raise UserError(f'backend {backend!r} does not run on {device}: use backend="auto"')
    return backend


def make_kernel(backend: str) -> "CompiledKernel | PlainKernel":
    """Return a kernel for one thread: it may reuse its memory, so what it returns is good until its next call.

    Its `count(scores, edges, transposed, room)` returns what the tile [query, other], or [other, query] if transposed,
    counts for the queries' thresholds. `room`: how many near pairs may be listed; None where there are more. Without a
    `room` none is listed.
    """
    # Imported here: numba takes most of a second.
    if backend == "numba":
        from aurank.evaluation.engine.kernels.compiled import CompiledKernel

        return CompiledKernel()
    from aurank.evaluation.engine.kernels.plain import PlainKernel

    return PlainKernel()


def importable(name: str) -> bool:
    """Return whether an optional package is there and whole."""
    try:
        __import__(name)
    except ImportError:
        return False
    return True

"""The score of two rows: exact in a stated sense, and cheap approximations of it with a rigorous bound.

The score that decides is the cosine in float64, `tree_sum(x * y) / (|x| * |y|)`, of the rows as they came. Every
step is a single rounded operation on elements in a fixed order, so its value depends on the two rows and on nothing
else: not on the block they fall in, the number of threads, the device, or which of the two is the query. Equal rows
therefore tie exactly. Matrix products are faster but none of that; they serve where the bound proves that the score
must fall on the same side.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor


def tree_sum(terms: Float64[Tensor, "*shape dim"]) -> Float64[Tensor, "*shape"]:
    """Sum over the last dimension by folding it in halves; `terms` is overwritten.

    Plain `sum` would not do: its order of addition changes with shape, device and number of threads.
    """
    size = terms.shape[-1]
    while size > 1:
        half = (size + 1) // 2
        terms[..., : size - half] += terms[..., half:size]
        size = half
    return terms[..., 0]


def exact_pairs(
    first: Float64[Tensor, "pair dim"],
    second: Float64[Tensor, "pair dim"],
    lengths: Float64[Tensor, " pair"],
) -> Float64[Tensor, " pair"]:
    """Score of each pair of rows; `lengths` is the product of both lengths, and `first` is overwritten."""
    return tree_sum(first.mul_(second)) / lengths


def exact_block(
    first: Float64[Tensor, "row dim"],
    second: Float64[Tensor, "column dim"],
    first_lengths: Float64[Tensor, " row"],
    second_lengths: Float64[Tensor, " column"],
    *,
    tile: int,
    out: Float64[Tensor, "row column"],
) -> None:
    """Writes to `out` the score of every row with every column: the digits of `exact_pairs`, several times faster.

    One coordinate at a time is multiplied for a whole tile of pairs, and added in the order of the same tree.
    """
    sizes = [first.shape[1]]
    while sizes[-1] > 1:
        sizes.append((sizes[-1] + 1) // 2)
    rows, columns = first.T.contiguous(), second.T.contiguous()
    for top in range(0, first.shape[0], tile):
        for left in range(0, second.shape[0], tile):
            here = (slice(top, top + tile), slice(left, left + tile))
            total = _tile(rows[:, here[0], None], columns[:, None, here[1]], sizes, len(sizes) - 1, 0)
            out[here] = total / (first_lengths[here[0], None] * second_lengths[here[1]])


def _tile(rows: Tensor, columns: Tensor, sizes: list[int], level: int, place: int) -> Tensor:
    """What `tree_sum` holds at `place` after `level` folds, for a tile of pairs."""
    if level == 0:
        return rows[place] * columns[place]
    total = _tile(rows, columns, sizes, level - 1, place)
    partner = place + sizes[level]
    if partner < sizes[level - 1]:
        total += _tile(rows, columns, sizes, level - 1, partner)
    return total


def tile_bytes(dim: int) -> int:
    """Bytes that `exact_block` needs for each pair of a tile: one number per level of the tree, and two to spare."""
    return 8 * (dim.bit_length() + 3)


def product_error(dim: int, dtype: torch.dtype) -> float:
    """Largest distance of a product of two `dtype` unit vectors from the score, whatever the order of summation.

    A sum of n products errs by at most gamma(n) = n u / (1 - n u) times the sum of their sizes (Higham, Accuracy and
    Stability of Numerical Algorithms, section 3.1), which for unit vectors is at most 1 by Cauchy-Schwarz.
    float32: n products and two rounded inputs; the float64 steps before and the score's own error are far below
    the six roundings to spare. float64: product, score, lengths and divisions each err by gamma(n) and a few u.
    """
    rounding = torch.finfo(dtype).eps / 2
    count = dim + 8 if dtype == torch.float32 else 4 * dim + 32
    if count * rounding > 0.01:
        return float("inf")
    return 1.02 * count * rounding


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """float32 products at full precision and no autocast inside; the caller's settings again afterwards."""
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        mkldnn: Any = torch.backends.mkldnn
        switches = [torch.backends.cuda.matmul, mkldnn.matmul]
        before = [switch.fp32_precision for switch in switches]
        for switch in switches:
            switch.fp32_precision = "ieee"
    else:
        switches, before = [], []
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
    try:
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.fp32_precision = value
        if not switches:
            torch.set_float32_matmul_precision(precision)

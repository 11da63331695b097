"""The ranking sums for CUDA devices, in triton: every ℓ(x) is computed in registers, forward and backward.

A program holds a block of one query's scores or others and walks along the other side; what several programs have of
one sum is written side by side and added up by torch, so that results are the same in every run. The kernels agree with
the other ones in triton's interpreter (TRITON_INTERPRET=1, tensors on the CPU) and on an H100 (docs/results.md). They
are used by name only, after a comparison with `plain`: their speed is not measured.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from aurank.losses.ranking._sums.plain import Others, Scores

SCORES, OTHERS = 8, 256  # a block, such that it stays in registers; not tuned on a device
SPAN = 4096  # others per program of the forward
LOG2E = tl.constexpr(1.4426950408889634)
# A product and a sum are one instruction; said outright because triton's default is about to change.
OPTIONS = {"enable_fp_fusion": True}
VARYING = ["width", "references"]  # sizes that change are no reason to compile again
INTERPRETED = bool(triton.knobs.runtime.interpret) if hasattr(triton, "knobs") else False  # of triton 3.4 and later


def jitted(function: Any) -> Any:
    """Return the function for triton; it bears `no_type_check`, without which the tests would wrap it."""
    return triton.jit(function, do_not_specialize=VARYING)


@jitted
@no_type_check
def decay(x):
    """e^{−|x|}, which never overflows."""
    return tl.exp(-tl.abs(x))


@jitted
@no_type_check
def value(x, SURROGATE: tl.constexpr):
    """ℓ(x); NaN in, NaN out, as in the other kernels."""
    if SURROGATE == "huber":
        above = tl.maximum(1 + x, 0, propagate_nan=tl.PropagateNan.ALL)
        least = tl.minimum(above, 1)
        return least * (2 * above - least)
    small = decay(x)
    if SURROGATE == "sigmoid":
        return tl.where(x >= 0, 1, small) / (1 + small)
    if SURROGATE == "tanh":
        return tl.where(x <= 0, 0, (1 - small) / (1 + small))
    # log(1 + small) to the last digit: what 1 + small loses by rounding is put back as a factor
    rounded = 1 + small
    lost = rounded - 1
    log = tl.where(lost == 0, small, tl.log(rounded) * small / tl.where(lost == 0, 1, lost))
    return (tl.maximum(x, 0) + log) * LOG2E


@jitted
@no_type_check
def slope(x, SURROGATE: tl.constexpr):
    """ℓ'(x); NaN in, NaN out."""
    if SURROGATE == "huber":
        return 2 * tl.clamp(1 + x, 0.0, 1.0, propagate_nan=tl.PropagateNan.ALL)
    small = decay(x)
    both = 1 + small
    if SURROGATE == "sigmoid":
        return small / (both * both)
    if SURROGATE == "tanh":
        return tl.where(x <= 0, 0, 2 * small / (both * both))
    return tl.where(x >= 0, 1, small) / both * LOG2E


@jitted
@no_type_check
def add_values(
    scores, others, temperature, partial, width, references,
    SURROGATE: tl.constexpr, SCORES: tl.constexpr, OTHERS: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Write partial[query, span, score], Σ ℓ over the others of one span."""
    query, span, spans = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    column = tl.program_id(2) * SCORES + tl.arange(0, SCORES)
    score = tl.load(scores + query * width + column, mask=column < width, other=0)
    scale = tl.load(temperature)
    total = tl.zeros_like(score)
    for start in range(0, SPAN, OTHERS):
        place = span * SPAN + start + tl.arange(0, OTHERS)
        other = tl.load(others + query * references + place, mask=place < references, other=float("-inf"))
        total += tl.sum(value((other[None, :] - score[:, None]) / scale, SURROGATE), 1)
    tl.store(partial + (query * spans + span) * width + column, total, mask=column < width)


@jitted
@no_type_check
def add_slopes(
    gradient, scores, others, temperature, partial, of_others, width, references,
    SURROGATE: tl.constexpr, SCORES: tl.constexpr, OTHERS: tl.constexpr,
):  # fmt: skip
    """Write of_others[query, other], Σ gradient·ℓ' over scores, and partial[query, block, score], Σ ℓ' over others."""
    query, block, blocks = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    place = block * OTHERS + tl.arange(0, OTHERS)
    other = tl.load(others + query * references + place, mask=place < references, other=float("-inf"))
    scale = tl.load(temperature)
    total = tl.zeros_like(other)
    for start in range(0, width, SCORES):
        column = start + tl.arange(0, SCORES)
        score = tl.load(scores + query * width + column, mask=column < width, other=0)
        weight = tl.load(gradient + query * width + column, mask=column < width, other=0)
        slopes = slope((other[None, :] - score[:, None]) / scale, SURROGATE)
        total += tl.sum(slopes * weight[:, None], 0)
        tl.store(partial + (query * blocks + block) * width + column, tl.sum(slopes, 1), mask=column < width)
    tl.store(of_others + query * references + place, total, mask=place < references)


def sums(scores: Scores, others: Others, *, surrogate: str, temperature: float) -> Scores:
    """Return Σ_j ℓ((other_j − score) / temperature) for each score."""
    (queries, width), references = scores.shape, others.shape[1]
    spans = triton.cdiv(references, SPAN)
    partial = scores.new_empty(queries, spans, width)
    if partial.numel():
        with torch.cuda.device(scores.get_device()):
            add_values[queries, spans, triton.cdiv(width, SCORES)](
                scores.contiguous(), others.contiguous(), _as_scale(temperature, scores), partial, width, references,
                SURROGATE=surrogate, SCORES=SCORES, OTHERS=OTHERS, SPAN=SPAN, **OPTIONS,
            )  # fmt: skip
    return partial.sum(dim=1)


def gradients(
    gradient: Scores, scores: Scores, others: Others, *, surrogate: str, temperature: float
) -> tuple[Scores, Others]:
    """Return the gradients of scores and others, given that of the sums."""
    (queries, width), references = scores.shape, others.shape[1]
    blocks = triton.cdiv(references, OTHERS)
    scaled = (gradient / temperature).contiguous()
    partial = scores.new_empty(queries, blocks, width)
    of_others = others.new_empty(others.shape)
    if of_others.numel():
        with torch.cuda.device(scores.get_device()):
            add_slopes[queries, blocks](
                scaled, scores.contiguous(), others.contiguous(), _as_scale(temperature, scores), partial, of_others,
                width, references, SURROGATE=surrogate, SCORES=SCORES, OTHERS=OTHERS, **OPTIONS,
            )  # fmt: skip
    return -scaled * partial.sum(dim=1), of_others


def _as_scale(temperature: float, like: Tensor) -> Tensor:
    """Return the temperature on the device in the tensor's type: as a number it would reach the kernel in float32."""
    return torch.full((1,), temperature, dtype=like.dtype, device=like.device)

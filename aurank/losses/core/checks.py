"""Checks at the border of the losses: each error says what came, what was expected, and what to do about it."""

import math
from collections.abc import Collection, Sequence
from numbers import Real
from typing import Annotated

import torch
from torch import Tensor, nn

from aurank.errors import UserError
from aurank.ranges import Range

Number = float | int

# Numbers with the range that aurank tune searches: of a softmax over similarities, of a step between two, …
SoftmaxTemperature = Annotated[Number, Range(0.02, 0.5, log=True)]
StepTemperature = Annotated[Number, Range(0.002, 0.2, log=True)]
RankTemperature = Annotated[Number, Range(0.3, 10.0, log=True)]
Sharpness = Annotated[Number, Range(4.0, 128.0, log=True)]  # a scale of similarities, 1 / temperature
Margin = Annotated[Number, Range(0.0, 0.5)]
Share = Annotated[Number, Range(0.05, 0.95)]
Bins = Annotated[int, Range(5, 60, log=True)]
Cuts = Annotated[Sequence[int], Range(choices=((1,), (1, 2, 4), (1, 2, 4, 8, 16), (4, 8, 16, 32)))]


def require_number(name: str, value: object, interval: str = "(0, inf)") -> float:
    """Return the value as a float; UserError unless it is a number of the interval, as "[0, 1)"."""
    number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    low, high = map(float, interval[1:-1].split(","))
    above = low < number if interval[0] == "(" else low <= number
    if not (above and (number < high if interval[-1] == ")" else number <= high)):
        expected = "a finite number" if interval == "(-inf, inf)" else f"a number in {interval}"
        raise UserError(f"{name} must be {expected}, got {value!r}")
    return number


def require_pair(
    name: str, value: object, interval: str = "(-inf, inf)", *, rising: bool = False
) -> tuple[float, float]:
    if not isinstance(value, Sequence) or len(value) != 2:
        raise UserError(f"{name} must be two numbers in {interval}, got {value!r}")
    first, second = (require_number(name, each, interval) for each in value)
    if rising and not first < second:
        raise UserError(f"{name} must be a lesser and a greater number, got {value!r}")
    return first, second


def require_whole(name: str, value: object, *, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"{name} must be a whole number >= {least}, got {value!r}")
    return value


def require_flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise UserError(f"{name} must be True or False, got {value!r}")
    return value


def require_choice(name: str, value: str, choices: Collection[str]) -> str:
    if value not in tuple(choices):
        raise UserError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return value


def require_module(name: str, value: object, expected: str) -> None:
    if not isinstance(value, nn.Module):
        raise UserError(f"{name} must be {expected}, got {value!r}")


def check_embeddings(name: str, embeddings: Tensor, labels_name: str, labels: Tensor | None) -> None:
    got = f"got {kind_of(embeddings)}"
    if not isinstance(embeddings, Tensor) or embeddings.ndim != 2 or not embeddings.is_floating_point():
        raise UserError(f"{name} must be a floating-point tensor of shape [batch, dim], {got}")
    if embeddings.shape[1] == 0:
        raise UserError(f"{name} must be at least 1 wide, {got}: rows without numbers are all alike")
    if labels is None:
        raise UserError(f"{labels_name} are required: they say which references are positive")
    if len(embeddings) == 0:
        raise UserError(f"{name} are empty, {got}: skip the batch")
    check_integers(labels_name, labels, name, len(embeddings))


def check_width(embeddings: Tensor, name: str, width: int) -> None:
    if embeddings.shape[1] != width:
        raise UserError(f"embeddings must be as wide as {name}={width}, got {embeddings.shape[1]}")


def check_integers(name: str, values: Tensor, per: str, length: int) -> None:
    if not isinstance(values, Tensor) or values.ndim != 1:
        raise UserError(f"{name} must be a one-dimensional tensor, got {kind_of(values)}")
    if not is_integer(values):
        raise UserError(f"{name} must be integers, got {values.dtype}: call {name}.long() if they hold whole numbers")
    if len(values) != length:
        raise UserError(f"{name} must be as many as {per}: got {len(values)} {name} for {length} {per}")


def is_integer(values: Tensor) -> bool:
    return not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)


def check_labels_in_range(labels: Tensor, num_classes: int, also: str = "") -> None:
    outside = labels[(labels < 0) | (labels >= num_classes)]
    if len(outside):
        raise UserError(
            f"label {int(outside[0])} is none of the loss's {num_classes} classes (0..{num_classes - 1}): map the "
            f"labels to 0..C-1, C being the classes of the training set that the loss was made for{also}"
        )


def kind_of(value: object) -> str:
    return f"{value.dtype} of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__

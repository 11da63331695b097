"""Checks at the border of the losses: each error says what came, what was expected, and what to do about it."""

import math
from collections.abc import Sequence
from numbers import Real
from typing import Annotated, Any

import torch
from torch import Tensor

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
    numbers = [require_number(name, each, interval) for each in value] if isinstance(value, Sequence) else []
    if len(numbers) != 2 or (rising and not numbers[0] < numbers[1]):
        raise UserError(f"{name} must be two numbers{', the lesser first' * rising}, got {value!r}")
    return numbers[0], numbers[1]


def require_whole(name: str, value: object, *, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"{name} must be a whole number >= {least}, got {value!r}")
    return value


def require_within(name: str, value: float, bounds: tuple[float, float]) -> float:
    if not bounds[0] <= value <= bounds[1]:
        raise UserError(f"{name} must lie within {name}_bounds={bounds}, got {value!r}")
    return value


def check_embeddings(name: str, embeddings: Tensor, labels_name: str, labels: Any) -> None:
    fits = isinstance(embeddings, Tensor) and embeddings.ndim == 2 and embeddings.is_floating_point()
    if not fits or embeddings.numel() == 0:
        expected = "a floating-point tensor of shape [batch, dim], neither of them 0"
        raise UserError(f"{name} must be {expected}, got {kind_of(embeddings)}")
    if labels is None:
        raise UserError(f"{labels_name} are required: they say which references are positive")
    if not (isinstance(labels, Tensor) and labels.dtype == torch.bool and labels.shape[:-1] == embeddings.shape[:1]):
        check_integers(labels_name, labels, f"{name}, or bool [row, class]", len(embeddings))
    elif len(empty := (~labels.any(dim=1)).nonzero()):
        raise UserError(f"{labels_name}: row {int(empty[0])} has no label, so it has no positives: leave it out")


def check_width(embeddings: Tensor, name: str, width: int) -> None:
    if embeddings.shape[1] != width:
        raise UserError(f"embeddings must be as wide as {name}={width}, got {embeddings.shape[1]}")


def check_integers(name: str, values: Tensor, per: str, length: int) -> None:
    if not isinstance(values, Tensor) or values.shape != (length,) or not is_integer(values):
        raise UserError(f"{name} must be a tensor of {length} integers, one for each of {per}, got {kind_of(values)}")


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

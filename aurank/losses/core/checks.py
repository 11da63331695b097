"""Checks at the border of the losses: each says what came, what was expected, and what to do about it."""

import inspect
import math
from collections.abc import Callable, Collection
from numbers import Real

import torch
from torch import Tensor, nn

from aurank.errors import UserError

Number = float | int


def require_positive(name: str, value: object) -> float:
    """The value as a float; UserError unless it is a finite number above 0."""
    number = as_number(value)
    if not 0 < number < math.inf:
        raise UserError(f"{name} must be > 0, got {value!r}")
    return number


def require_finite(name: str, value: object) -> float:
    """The value as a float; UserError unless it is a finite number."""
    number = as_number(value)
    if not math.isfinite(number):
        raise UserError(f"{name} must be a finite number, got {value!r}")
    return number


def require_fraction(name: str, value: object, *, one: bool = False) -> float:
    """The value as a float; UserError unless 0 < value < 1 (or value <= 1 where `one` is allowed)."""
    number = as_number(value)
    if not (0 < number < 1 or (one and number == 1)):
        raise UserError(f"{name} must be > 0 and {'<=' if one else '<'} 1, got {value!r}")
    return number


def require_whole(name: str, value: object, *, least: int = 1) -> int:
    """The value; UserError unless it is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"{name} must be a whole number >= {least}, got {value!r}")
    return value


def require_flag(name: str, value: object) -> bool:
    """The value; UserError unless it is True or False."""
    if not isinstance(value, bool):
        raise UserError(f"{name} must be True or False, got {value!r}")
    return value


def as_number(value: object) -> float:
    """The value as a float; not a number for anything else, True and False included."""
    return math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)


def require_choice(name: str, value: str, choices: Collection[str]) -> str:
    """The value itself; UserError unless it is one of the choices."""
    if value not in tuple(choices):
        raise UserError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return value


def refuse_unused(constructor: Callable[..., object], choice: str, **given: object) -> None:
    """Nothing; UserError where an option that has no effect beside the choice is not at the constructor's default."""
    defaults = inspect.signature(constructor).parameters
    for name, value in given.items():
        plain = tuple(value) if isinstance(value, list) else value  # as YAML has what is a tuple here
        if plain != defaults[name].default:
            raise UserError(f"{name}={value!r} has no effect with {choice}: leave out one of them")


def check_embeddings(name: str, embeddings: Tensor, labels_name: str, labels: Tensor | None) -> None:
    """Nothing; UserError unless embeddings are [batch, dim] floats with one integer label each."""
    if not isinstance(embeddings, Tensor) or embeddings.ndim != 2 or not embeddings.is_floating_point():
        raise UserError(f"{name} must be a floating-point tensor of shape [batch, dim], got {describe(embeddings)}")
    if embeddings.shape[1] == 0:
        raise UserError(
            f"{name} must be at least 1 wide, got {describe(embeddings)}: rows without numbers are all alike"
        )
    if labels is None:
        raise UserError(f"{labels_name} are required: they say which references are positive")
    if len(embeddings) == 0:
        raise UserError(f"{name} are empty, got {describe(embeddings)}: skip the batch")
    check_integers(labels_name, labels, name, len(embeddings))


def require_module(name: str, value: object) -> None:
    """Nothing; UserError unless the value is a loss that was made, not its class or its name."""
    if not isinstance(value, nn.Module):
        raise UserError(f"{name} must be a loss, as SmoothAPLoss(), got {value!r}")


def check_device(loss: nn.Module, embeddings: Tensor) -> None:
    """Nothing; UserError if what the loss keeps is not where the embeddings are."""
    for part in loss.modules():
        if getattr(part, "on_host", False):  # a table that is meant to stay there
            continue
        for state in part.buffers(recurse=False):
            if state.device != embeddings.device:
                raise UserError(
                    f"{type(loss).__name__} is on {state.device} and the embeddings are on {embeddings.device}: "
                    f"move it there, loss.to({str(embeddings.device)!r})"
                )


def check_integers(name: str, values: Tensor, per: str, length: int) -> None:
    """Nothing; UserError unless the values are a one-dimensional integer tensor of this length."""
    if not isinstance(values, Tensor) or values.ndim != 1:
        raise UserError(f"{name} must be a one-dimensional tensor, got {describe(values)}")
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise UserError(f"{name} must be integers, got {values.dtype}: call {name}.long() if they hold whole numbers")
    if len(values) != length:
        raise UserError(f"{name} must be as many as {per}: got {len(values)} {name} for {length} {per}")


def check_labels_in_range(labels: Tensor, num_classes: int) -> None:
    """Nothing; UserError naming the first label outside 0..num_classes-1. The labels are on the host."""
    outside = labels[(labels < 0) | (labels >= num_classes)]
    if len(outside):
        raise UserError(
            f"label {int(outside[0])} is outside class_counts, which has {num_classes} classes "
            f"(0..{num_classes - 1}): map the labels to 0..C-1 and pass one count per class of the training set"
        )


def describe(value: object) -> str:
    """What a value is, for a message: a tensor's type and shape, else the type's name."""
    if isinstance(value, Tensor):
        return f"{value.dtype} of shape {list(value.shape)}"
    return type(value).__name__

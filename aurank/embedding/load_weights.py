"""Weights of a checkpoint put into a module; what does not fit is refused in one line."""

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from aurank.config.messages import one_line
from aurank.errors import UserError

_MOST = 200  # characters of another library's words


def load_weights(module: nn.Module, weights: dict[str, Tensor], source: Path | str, *, part: str = "encoder") -> None:
    """Load the weights into the module; raise UserError naming the first tensor that does not fit."""
    require_alike(weights, module.state_dict(), source, part)
    load_part(module.load_state_dict, weights, source, part)


def require_alike(saved: dict[str, Any], own: dict[str, Any], source: Path | str, part: str) -> None:
    """Raise UserError unless both have the same tensors, by name, shape and kind: real numbers or not."""
    wrong = [name for name in dict.fromkeys([*own, *saved]) if _kind(saved.get(name)) != _kind(own.get(name))]
    if wrong:
        came, expected = (describe_value(state.get(wrong[0])) for state in (saved, own))
        more = f", and {len(wrong) - 1} more differ" if len(wrong) > 1 else ""
        raise UserError(
            f"{source} does not fit this model: {part} {wrong[0]!r} is {came}, expected {expected}{more}; "
            f"use the versions of aurank and timm that wrote it (timm is {version('timm')} here), or another checkpoint"
        )


def _kind(value: Any) -> object:
    return (tuple(value.shape), value.is_floating_point()) if isinstance(value, Tensor) else value is None


def describe_value(value: Any) -> str:
    """The type and shape of a tensor, in words for a message; of anything else its type."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return "missing" if value is None else f"of type {type(value).__name__}"


def load_part(load: Callable[[Any], object], value: Any, source: Path | str, part: str) -> None:
    """Load a component's saved state; raise UserError where it refuses that, whatever it raises."""
    try:
        load(value)
    except Exception as error:
        said = one_line(str(error) or type(error).__name__)[:_MOST]
        raise UserError(
            f"{source} does not fit this run: {part!r} is refused ({said}); use the version of aurank that wrote it, "
            "or another checkpoint"
        ) from error

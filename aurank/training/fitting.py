"""Putting what a checkpoint holds into the parts of a run or a model; what does not fit is told in one line."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from aurank.config.messages import show
from aurank.embedding.load_weights import describe_value, load_part
from aurank.errors import UserError
from aurank.training.state import Progress


def load_optimiser(optimiser: Optimizer, saved: dict[str, Any], source: Path | str) -> None:
    """Nothing; the optimiser takes over its state. torch looks at the number of parameters only, not at their sizes.

    Switches that only a newer torch has, such as `fused` or `decoupled_weight_decay`, stay as they are.
    """
    groups, held = saved.get("param_groups"), saved.get("state")
    current = optimiser.state_dict()["param_groups"]
    if isinstance(groups, list):
        switches = {name: value for name, value in current[0].items() if value is None or isinstance(value, bool)}
        # In the saved order: a run that goes on writes the bytes of one that never stopped.
        groups = [{**group, **switches, **group} if isinstance(group, dict) else group for group in groups]
        saved = {**saved, "param_groups": groups}
    trouble = None
    if not isinstance(groups, list) or not isinstance(held, dict):
        trouble = "expected a list 'param_groups' and a dict 'state'"
    else:
        trouble = _unlike(groups, current, "param_groups") or _misfit(held, optimiser)
    if trouble is not None:
        raise UserError(f"{source} does not fit this run: its 'optimiser': {trouble}; use another checkpoint")
    load_part(optimiser.load_state_dict, saved, source, "optimiser")


def _unlike(saved: Any, own: Any, path: str) -> str | None:
    """What of plain values in lists and dicts is of another type or number, None where nothing is."""
    numbers = (int, float)
    if type(saved) is not type(own) and not (type(saved) in numbers and type(own) in numbers):
        return f"{path} is of type {type(saved).__name__}, expected {type(own).__name__}"
    if isinstance(own, dict):
        if saved.keys() != own.keys():
            return f"{path} has {', '.join(map(show, saved))}, expected {', '.join(map(show, own))}"
        return next(filter(None, (_unlike(saved[key], own[key], f"{path}.{key}") for key in own)), None)
    if isinstance(own, list | tuple):
        if len(saved) != len(own):
            return f"{path} has {len(saved)} values, expected {len(own)}"
        return next(filter(None, (_unlike(saved[at], own[at], f"{path}.{at}") for at in range(len(own)))), None)
    return None


def _misfit(held: dict[Any, Any], optimiser: Optimizer) -> str | None:
    """What of the state of single parameters is of another size, None where nothing is."""
    shapes = [parameter.shape for group in optimiser.param_groups for parameter in group["params"]]
    names = next((set(state) for state in held.values() if isinstance(state, dict)), set())
    for index, state in held.items():
        if type(index) is not int or not 0 <= index < len(shapes):
            return f"state is of a parameter {show(index)}, expected a number below {len(shapes)}"
        if not isinstance(state, dict) or set(state) != names:
            return f"state.{index} is not a dict of {', '.join(sorted(map(str, names)))}"
        for name, value in state.items():
            if isinstance(value, Tensor) and value.ndim and value.shape != shapes[index]:
                return f"state.{index}.{name} is {describe_value(value)}, expected {list(shapes[index])}"
            if not isinstance(value, Tensor | int | float | None):
                return f"state.{index}.{name} is {describe_value(value)}, expected a tensor"
    return None


def read_progress(checkpoint: dict[str, Any], source: Path | str) -> Progress:
    """Where the run of a checkpoint stood; UserError for values of another type."""
    # Of before these were recorded: unknown, which is not the same as nothing.
    values = {"best_sha256": None, "metrics_sha256": None, **checkpoint["progress"]}
    defaults = {field.name: getattr(Progress(), field.name) for field in fields(Progress)}
    for name, value in values.items():
        own = defaults.get(name, ...)
        numeric = type(own) is float and type(value) is int
        unknown = name.endswith("_sha256") and value is None
        if not (type(value) is type(own) or numeric or unknown) or (type(own) is int and value < 0):
            expected = "no such value" if own is ... else f"a value like {show(own)}"
            raise UserError(f"{source}: progress {show(name)} is {show(value)}, expected {expected}; use another one")
    if not all(type(key) is str and isinstance(value, int | float) for key, value in values.get("best", {}).items()):
        raise UserError(
            f"{source}: progress 'best' is {show(values['best'])}, expected numbers by name; use another one"
        )
    return Progress(**values)

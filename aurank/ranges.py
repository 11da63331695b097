"""The values of a setting that a search tries: an argument or a key of a configuration declares them with its type."""

import dataclasses
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

from aurank.errors import UserError
from aurank.names import signature

_EXPECTED = "expected [low, high], [low, high, log] or {choices: [first, second, …]}"


@dataclass(frozen=True)
class Range:
    """Values worth trying: numbers from `low` to `high`, whole ones where both are whole, or else `choices`.

    An argument has it beside its type: ``temperature: Annotated[float, Range(0.02, 0.5, log=True)] = 0.1``.

    Args:
        log: draw the logarithm evenly.

    Raises:
        UserError: an empty range, or one of logarithms that begins at 0.

    Example:
        >>> Range(0.02, 0.5, log=True).at_end(0.021), str(Range(1, 9))
        (True, '1 to 9, whole')
    """

    low: float | int = 0
    high: float | int = 0
    log: bool = False
    choices: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        if not self.choices and not (math.isfinite(self.high - self.low) and self.low < self.high):
            raise UserError(f"a range from {self.low} to {self.high} is empty; {_EXPECTED}")
        if self.log and not self.low > 0:
            raise UserError(f"a range of logarithms begins at {self.low}; begin above 0")

    @staticmethod
    def read(value: Any) -> "Range":
        """Return the range that YAML writes as [low, high], [low, high, log] or {choices: […]}."""
        match value:
            case {"choices": [_, _, *_]} if len(value) == 1:
                return Range(choices=tuple(value["choices"]))
            case [int() | float(), int() | float(), *rest] if rest in ([], ["log"]):
                return Range(value[0], value[1], log=bool(rest))
        raise UserError(f"got {json.dumps(value, default=str)}, {_EXPECTED}")

    def __str__(self) -> str:
        if self.choices:
            return " or ".join(map(json.dumps, self.choices))
        return f"{self.low:g} to {self.high:g}{', whole' * self.is_whole}{', log' * self.log}"

    @property
    def is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def ends(self) -> tuple[Any, ...]:
        """Both ends, or every choice: where these are valid, so is what lies between."""
        return self.choices or (self.low, self.high)

    def __contains__(self, value: Any) -> bool:
        if self.choices:
            return json.dumps(value) in map(json.dumps, self.choices)
        return type(value) in (int, float) and self.low <= value <= self.high

    def including(self, value: Any) -> "Range":
        """Return the range with a value in it; itself where it cannot hold the value, as 0 among logarithms."""
        if value in self:
            return self
        if self.choices:
            return dataclasses.replace(self, choices=(*self.choices, value))
        if type(value) not in (int, float) or (self.log and value <= 0):
            return self
        return dataclasses.replace(self, low=min(self.low, value), high=max(self.high, value))

    def at_end(self, value: Any) -> bool:
        """Return whether a number lies within 5 % of an end, beyond which there may be better ones."""
        if self.choices or type(value) not in (int, float):
            return False
        low, here, high = map(math.log, (self.low, value, self.high)) if self.log else (self.low, value, self.high)
        return not 0.05 < (here - low) / (high - low) < 0.95


def range_of(metadata: Iterable[Any]) -> Range | None:
    """Return the range among what is annotated with a type, None where there is none."""
    return next((each for each in metadata if isinstance(each, Range)), None)


def ranges_of(factory: Any) -> dict[str, Range]:
    """Return the ranges that the arguments of a function or class declare, by their names.

    Example:
        >>> def loss(margin: Annotated[float, Range(0.0, 1.0)] = 0.1, seed: int = 0) -> None: ...
        >>> ranges_of(loss)
        {'margin': Range(low=0.0, high=1.0, log=False, choices=())}
    """
    named, aliases = signature(factory)[0], getattr(factory, "aliases", {})
    kinds = {name: each.annotation for name, each in named.items() if name not in aliases}
    found = {name: range_of(get_args(kind)[1:]) for name, kind in kinds.items() if get_origin(kind) is Annotated}
    return {name: each for name, each in found.items() if each is not None}

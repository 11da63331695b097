"""The values of a setting that a search tries: an argument or a key of a configuration declares them with its type."""

import dataclasses
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, get_args

from aurank.errors import UserError
from aurank.names import signature


@dataclass(frozen=True)
class Range:
    """Values worth trying: numbers from `low` to `high`, integers if both are integers, or else `choices`.

    An argument declares it beside its type: ``temperature: Annotated[float, Range(0.02, 0.5, log=True)] = 0.1``, where
    the logarithm is drawn evenly.
    """

    low: float | int = 0
    high: float | int = 0
    log: bool = False
    choices: tuple[Any, ...] = ()

    @staticmethod
    def read(value: Any) -> "Range":
        match value:
            case {"choices": [_, _, *_]} if len(value) == 1:
                return Range(choices=tuple(value["choices"]))
            case [int() | float() as low, int() | float() as high, *rest] if rest in ([], ["log"]):
                if low < high < math.inf and low > (0 if rest else -math.inf):
                    return Range(low, high, log=bool(rest))
        expected = "[low, high], [low, high, log] with low above 0, or {choices: [first, second, …]}"
        raise UserError(f"got {json.dumps(value, default=str)}, expected {expected}")

    def __str__(self) -> str:
        if self.choices:
            return " or ".join(map(json.dumps, self.choices))
        return f"{self.low:g} to {self.high:g}{', log' * self.log}"

    def __contains__(self, value: Any) -> bool:
        if self.choices:
            return json.dumps(value) in map(json.dumps, self.choices)
        if type(value) not in (int, float) or not self.low <= value <= self.high:
            return False
        return isinstance(self.low, float) or isinstance(self.high, float) or float(value).is_integer()

    def including(self, value: Any) -> "Range":
        if self.choices:
            return self if value in self else dataclasses.replace(self, choices=(*self.choices, value))
        if type(value) not in (int, float) or (self.log and value <= 0):
            return self
        return dataclasses.replace(self, low=min(self.low, value), high=max(self.high, value))

    def at_end(self, value: Any) -> bool:
        """Return whether a number lies within 5 % of an end: better values may lie beyond it."""
        if self.choices or value not in self:
            return False
        low, number, high = map(math.log, (self.low, value, self.high)) if self.log else (self.low, value, self.high)
        return not 0.05 < (number - low) / (high - low) < 0.95


def range_of(metadata: Iterable[Any]) -> Range | None:
    return next((each for each in metadata if isinstance(each, Range)), None)


def ranges_of(factory: Any) -> dict[str, Range]:
    aliases = getattr(factory, "aliases", {})
    arguments = {name: each for name, each in signature(factory)[0].items() if name not in aliases}
    ranges = {name: range_of(get_args(each.annotation)[1:]) for name, each in arguments.items()}
    return {name: each for name, each in ranges.items() if each is not None}

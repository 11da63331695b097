"""Messages on mistakes in a configuration: one line with place, key, what came, what was expected, what was meant."""

import contextlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from aurank.errors import UserError
from aurank.names import meant, nearest

KeyPath = tuple[str | int, ...]

# A bound from here on only keeps nonsense out, and is named only where it is crossed.
HIGH = 1e6
_LONGEST = 60
_MOST_LINES = 100

# Words of other programs, and the key that holds the same thing here.
_SYNONYMS = {
    "architecture": "model.backbone", "batch_size": "sampler.batch", "criterion": "loss", "dataset": "data",
    "crop_size": "data.image_size", "embedding_size": "model.dim",
    "epochs": "train.steps", "iterations": "train.steps", "max_steps": "train.steps", "learning_rate": "optim.lr",
    "num_workers": "data.workers", "optimiser": "optim", "optimizer": "optim", "scheduler": "optim.schedule",
    "patience": "train.early_stopping", "precision": "train.mixed_precision",
}  # fmt: skip


class ConfigError(UserError):
    """Every mistake found in one configuration.

    Attributes:
        errors: one line each: where it stands (``mine.yaml:12:3``, or the override), the key, what came, what was
            expected, and "did you mean …?" where something is close.
        source: the file, or None for a configuration given as a dict.
        count: how many mistakes there are, where not all have a line.

    Example:
        >>> print(ConfigError(["optim.lr: got 0", "train.steps: missing"]))
        2 errors
          optim.lr: got 0
          train.steps: missing
    """

    def __init__(self, errors: Sequence[str], source: str | None = None, *, count: int | None = None) -> None:
        super().__init__(errors, source)
        self.errors = list(errors)
        self.source = source
        self.count = len(errors) if count is None else count

    def __str__(self) -> str:
        if len(self.errors) == 1:
            return self.errors[0]
        return "\n  ".join([f"{self.source + ': ' if self.source else ''}{self.count:,} errors", *self.errors])


class Problems:
    """The mistakes found so far, at most one for a key: what follows from a mistake is not a second one.

    ``origins`` holds where the value at a path came from. Only the first hundred mistakes have a line.
    """

    def __init__(self, source: str | None = None) -> None:
        self.origins: dict[KeyPath, str] = {} if source is None else {(): source}
        self._paths: set[KeyPath] = set()
        self._holders: set[KeyPath] = set()  # every path that a mistake is at or below
        self._lists: set[KeyPath] = set()  # lists with a mistake in an item
        self._lines: list[str] = []

    def __len__(self) -> int:
        return len(self._paths)

    def add(self, path: KeyPath, text: str | Callable[[], str], *, bare: bool = False) -> None:
        """Record ``text`` under ``path`` unless the key, what holds it, or an item of it already has a mistake.

        A text that takes long to build is given as a function, called only if the line is shown. A ``bare`` text is a
        line of its own, without origin and key.
        """
        if self.covers(path):
            return
        self._paths.add(path)
        self._holders |= {path[:length] for length in range(len(path) + 1)}
        self._lists |= {path[:length] for length, part in enumerate(path) if isinstance(part, int)}
        if len(self._paths) <= _MOST_LINES:
            origins = (self.origins.get(path[:length]) for length in range(len(path), -1, -1))
            places = [] if bare else [next(filter(None, origins), None), dotted(path)]
            self._lines.append(": ".join(filter(None, [*places, one_line(text if isinstance(text, str) else text())])))

    def covers(self, path: KeyPath) -> bool:
        """Return whether a mistake at ``path`` follows from one that is recorded."""
        return path in self._lists or any(path[:length] in self._paths for length in range(len(path) + 1))

    def within(self, path: KeyPath) -> bool:
        """Return whether anything at or below ``path`` has a mistake."""
        return path in self._holders

    def lines(self) -> list[str]:
        """Return one line for each of the first mistakes, in the order found, and one for the others."""
        more = len(self._paths) - len(self._lines)
        return [*self._lines, *([f"and {more:,} more"] if more else [])]


def dotted(path: KeyPath) -> str:
    """Return ``optim.lr`` or ``evaluate.recall_at[1]``; a key that would not print on one line is quoted."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            plain = part.isprintable() and part == part.strip() and 0 < len(part) <= _LONGEST
            text += ("." if text else "") + (part if plain else shorten(repr(part)))
    return text or "the configuration"


def show(value: Any) -> str:
    """Return a value as the user would write it in YAML, on one line of bounded length."""
    if isinstance(value, str):
        return shorten(repr(value))
    if value is None or isinstance(value, (bool, int, float, list, tuple, dict)):
        try:
            return shorten(json.dumps(value, default=repr))
        # Keys that JSON has not, a list within itself, a number of more digits than Python will write.
        except (TypeError, ValueError, RecursionError):
            return f"a {type(value).__name__} that cannot be shown"
    return shorten(f"{value!r} ({type(value).__name__})")


def shorten(text: str, longest: int = _LONGEST) -> str:
    """Return ``text`` with its middle left out where it is long."""
    half = longest // 2
    return text if len(text) <= longest else f"{text[: half - 1]}…{text[-half:]}"


def one_line(text: str) -> str:
    """Return ``text`` with line breaks as spaces and without characters that do not print."""
    return "".join(character if character.isprintable() else "?" for character in " ".join(text.split()))


def one_of(options: Iterable[str]) -> str:
    """Return ``one of a, b, c``."""
    return f"one of {', '.join(options)}"


def unknown_key(path: KeyPath, value: Any, known: Sequence[KeyPath]) -> str:
    """Return the message on a key that nothing reads, with those meant: the same word elsewhere, or a like word."""
    word = str(path[-1])
    holders = {path[:-1], tuple(part for part in path[:-1] if isinstance(part, str))}  # known keys are of any item
    siblings = {str(other[-1]): other for other in known if other[:-1] in holders}
    others = {str(other[-1]): other for other in known if other[-1] not in ("name", "params")}
    elsewhere = [dotted(other) for other in known if other[-1] == word]
    if 0 < len(elsewhere) <= 3:
        suggested = elsewhere
    elif word.lower() in _SYNONYMS:
        suggested = [_SYNONYMS[word.lower()]]
    elif near := nearest(word, siblings):
        suggested = [dotted(siblings[near[0]])]
    else:
        suggested = [dotted(others[far]) for far in nearest(word, others, cutoff=0.75)]
    return (
        f"unknown key (got {show(value)}), expected {one_of(siblings) if siblings else 'no key here'}{meant(suggested)}"
    )


def wrong_value(value: Any, expected: str, options: Iterable[Any] = ()) -> str:
    """Return the message on a value that does not fit, with the nearest of ``options``; quoted numbers are named."""
    text = f"got {show(value)}, expected {expected}"
    if not isinstance(value, str):
        return text
    with contextlib.suppress(ValueError):
        if "number" in expected and math.isfinite(float(value)):
            return f"{text}; it is text, remove the quotes"
    return text + meant(nearest(value, [option for option in options if isinstance(option, str)]))

"""Messages on mistakes in a configuration: one line with place, key, what came, what was expected, what was meant."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic_core import ErrorDetails

from aurank.errors import UserError
from aurank.names import meant, nearest

KeyPath = tuple[str | int, ...]

ONE, LIST = "a mapping", "a list"  # tags of a union, which pydantic adds to a path
_LONGEST = 60


class ConfigError(UserError):
    """Every mistake found in one configuration.

    Attributes:
        errors: one line each: where it stands (``mine.yaml:12:3``, or the override), the key, what came, what was
            expected, and "did you mean …?" where something is close.
        source: the file, or None for a configuration given as a dict.

    Example:
        >>> print(ConfigError(["optim.lr: got 0", "train.steps: missing"]))
        2 errors
          optim.lr: got 0
          train.steps: missing
    """

    def __init__(self, errors: Sequence[str], source: str | None = None) -> None:
        super().__init__(errors, source)
        self.errors = list(errors)
        self.source = source

    def __str__(self) -> str:
        if len(self.errors) == 1:
            return self.errors[0]
        return "\n  ".join([f"{self.source + ': ' if self.source else ''}{len(self.errors)} errors", *self.errors])


def lines_of(
    errors: Sequence[ErrorDetails], tree: Any, origins: Mapping[KeyPath, str], keys: Collection[str]
) -> list[str]:
    texts: dict[KeyPath, str] = {}
    for error in errors:
        path = tuple(part for part in error["loc"] if part not in (ONE, LIST))
        if error["type"] == "contradiction":
            path = tuple(dotted(path).split("."))
        elif error["type"] != "missing":
            path = _within(path, tree)
        text = _explain(error, dotted(path), keys)
        # The members of a union each say what they expected.
        texts[path] = f"{texts[path]} or {text.partition(', expected ')[2]}" if path in texts else text
    lines = []
    for path, text in texts.items():
        # The key itself, what holds it, what is in it, or the file.
        holders = [path[:length] for length in range(len(path), 0, -1)]
        near = [*holders, *(key for key in origins if key[: len(path)] == path), ()]
        origin = next((f"{origins[key]}: " for key in near if key in origins), "")
        lines.append(f"{origin}{dotted(path)}: {one_line(text)}")
    return lines


def _within(where: KeyPath, tree: Any) -> KeyPath:
    for length, part in enumerate(where):
        if not (part in tree if isinstance(tree, dict) else isinstance(tree, list) and isinstance(part, int)):
            return where[:length]
        tree = tree[part]
    return where


def _explain(error: ErrorDetails, path: str, keys: Collection[str]) -> str:
    kind, value, text = error["type"], error["input"], error["msg"]
    if kind in ("contradiction", "missing"):
        return text if kind == "contradiction" else "missing"
    if kind == "extra_forbidden":
        return _unknown_key(path, value, keys)
    text = (
        text.replace("Input should be", "expected").replace("an object", "a mapping").replace("a valid array", "a list")
    )
    if kind == "needs_python_object":  # of a value that a program alone can give
        text = "expected an object of Python"
    text = f"got {show(value)}, {text}"
    if not isinstance(value, str):
        return text
    if f"{path}.name" in keys:
        return f"{text}; write {path}.name={shorten(value)}"
    return text + meant(nearest(value, re.findall(r"'([^']+)'", error["msg"])))


def _unknown_key(path: str, value: Any, keys: Collection[str]) -> str:
    holder, _, word = re.sub(r"\[\d+\]", "", path).rpartition(".")
    siblings = {key.rpartition(".")[2]: key for key in keys if key.rpartition(".")[0] == holder}
    elsewhere = [key for key in keys if key.rpartition(".")[2] == word]
    suggested = elsewhere if len(elsewhere) <= 3 else []
    suggested = suggested or [siblings[like] for like in nearest(word, siblings)]
    if not suggested and not holder.endswith(".params"):  # arguments have other names than keys
        words = {key.rpartition(".")[2]: key for key in keys if not key.endswith((".name", ".params"))}
        suggested = [words[like] for like in nearest(word, words, cutoff=0.75)]
    options = f"one of {', '.join(siblings)}" if siblings else "no key here"
    return f"unknown key (got {show(value)}), expected {options}{meant(suggested)}"


def dotted(path: KeyPath) -> str:
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            plain = part.isprintable() and part == part.strip() and part
            text += ("." if text else "") + shorten(part if plain else repr(part))
    return text or "the configuration"


def show(value: Any) -> str:
    return shorten(repr(value) if isinstance(value, str) else json.dumps(value, default=repr))


def shorten(text: str) -> str:
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[: half - 1]}…{text[-half:]}"


def one_line(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in " ".join(text.split()))

"""How a mistake in a configuration is said: one line with the key, what came, what was expected, what was meant."""

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from aurank.errors import UserError
from aurank.names import meant, nearest

KeyPath = tuple[str | int, ...]

# From here on a bound only keeps nonsense out, and is not told before it is crossed.
HIGH = 1e6
_LONGEST = 60
_MOST_TOLD = 100

# Words of other programs, and the key that holds the same thing here.
_SYNONYMS = {
    "architecture": "model.backbone",
    "batch_size": "sampler.batch",
    "criterion": "loss",
    "crop_size": "data.image_size",
    "dataset": "data",
    "embedding_dim": "model.dim",
    "embedding_size": "model.dim",
    "epochs": "train.steps",
    "iterations": "train.steps",
    "learning_rate": "optim.lr",
    "max_steps": "train.steps",
    "num_workers": "data.workers",
    "optimiser": "optim",
    "optimizer": "optim",
    "patience": "train.early_stopping",
    "precision": "train.mixed_precision",
    "scheduler": "optim.schedule",
}


class ConfigError(UserError):
    """Every mistake found in one configuration.

    Attributes:
        errors: one line each: key path, what came, what was expected, and "did you mean …?" where something is close.
        source: the file, or None for a configuration given as a dict.
        count: how many mistakes there are, where not all have a line.
    """

    def __init__(self, errors: Sequence[str], source: str | None = None, *, count: int | None = None) -> None:
        super().__init__(errors, source)
        self.errors = list(errors)
        self.count = len(errors) if count is None else count
        self.source = source

    def __str__(self) -> str:
        start = f"{self.source}: " if self.source else ""
        if len(self.errors) == 1:
            return start + self.errors[0]
        return "\n  ".join([f"{start}{self.count:,} errors", *self.errors])


class Problems:
    """The mistakes found so far, at most one for a key: what follows from a mistake is not a second one.

    The first hundred are told; of more, only how many they are.
    """

    def __init__(self) -> None:
        self._paths: set[KeyPath] = set()
        self._holders: set[KeyPath] = set()  # every path that a mistake is at or below
        self._lists: set[KeyPath] = set()  # lists with a mistake in an item
        self._lines: list[str] = []

    def __len__(self) -> int:
        return len(self._paths)

    def add(self, path: KeyPath, text: str | Callable[[], str], *, label: str | None = None) -> None:
        """Record ``text`` under ``path`` unless the key, what holds it, or an item of it already has a mistake.

        A text that takes long to make is given as a function, which is called where it is told.
        """
        if self.covers(path):
            return
        self._paths.add(path)
        for length, part in enumerate(path):
            self._holders.add(path[:length])
            if isinstance(part, int):
                self._lists.add(path[:length])
        self._holders.add(path)
        if len(self._paths) <= _MOST_TOLD:
            said = text if isinstance(text, str) else text()
            self._lines.append(f"{dotted(path) if label is None else label}: {one_line(said)}")

    def covers(self, path: KeyPath) -> bool:
        """Whether a mistake at ``path`` is already told by another."""
        return path in self._lists or any(path[:length] in self._paths for length in range(len(path) + 1))

    def within(self, path: KeyPath) -> bool:
        """Whether anything at or below ``path`` has a mistake."""
        return path in self._holders

    def lines(self) -> list[str]:
        """One line for each mistake that is told, in the order found, and one for the others."""
        more = len(self._paths) - len(self._lines)
        return [*self._lines, *([f"and {more:,} more"] if more else [])]


def dotted(path: KeyPath) -> str:
    """``optim.lr`` or ``evaluate.recall_at[1]``; a key that would not print on one line is quoted."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            plain = part.isprintable() and part == part.strip() and 0 < len(part) <= _LONGEST
            text += ("." if text else "") + (part if plain else shorten(repr(part)))
    return text or "the configuration"


def show(value: Any) -> str:
    """A value as the user would write it in YAML, on one line of bounded length."""
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
    """``text`` with its middle left out where it is long."""
    half = longest // 2
    return text if len(text) <= longest else f"{text[: half - 1]}…{text[-half:]}"


def one_line(text: str) -> str:
    """``text`` with line breaks as spaces and without characters that do not print."""
    return "".join(character if character.isprintable() else "?" for character in " ".join(text.split()))


def one_of(options: Iterable[str]) -> str:
    """``one of a, b, c``."""
    return f"one of {', '.join(options)}"


def suggest_keys(path: KeyPath, known: Sequence[KeyPath]) -> list[str]:
    """The keys that may be meant by the unknown ``path``: the same word elsewhere, or a like word near or far."""
    word = str(path[-1])
    elsewhere = [dotted(other) for other in known if other[-1] == word]
    if elsewhere and len(elsewhere) <= 3:
        return elsewhere
    synonym = _SYNONYMS.get(word.lower())
    if synonym is not None:
        return [synonym]
    siblings = {str(other[-1]): other for other in known if other[:-1] == path[:-1]}
    if near := nearest(word, siblings):
        return [dotted(siblings[near[0]])]
    others = {str(other[-1]): other for other in known if other[-1] not in ("name", "params")}
    return [dotted(others[far]) for far in nearest(word, others, cutoff=0.75)]


def unknown_key(path: KeyPath, value: Any, known: Sequence[KeyPath]) -> str:
    """What to say of a key that nothing reads."""
    siblings = [str(other[-1]) for other in known if other[:-1] == path[:-1]]
    expected = one_of(siblings) if siblings else "no key here"
    return f"unknown key (got {show(value)}), expected {expected}{meant(suggest_keys(path, known))}"


def wrong_value(value: Any, expected: str, options: Sequence[Any] = ()) -> str:
    """What to say of a value that does not fit, with the nearest of ``options`` and a word on quoted numbers."""
    text = f"got {show(value)}, expected {expected}"
    if isinstance(value, str):
        if "number" in expected and _is_number(value):
            return f"{text}; it is text, remove the quotes"
        return text + meant(nearest(value, [option for option in options if isinstance(option, str)]))
    return text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def describe(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str | None:
    """What a JSON schema accepts, in words ("a number > 0"), or None where it says nothing."""
    if "expected" in schema:
        return str(schema["expected"])
    if "$ref" in schema:
        return describe(resolve(schema, definitions), definitions)
    if "anyOf" in schema:
        branches = list(filter(None, (describe(branch, definitions) for branch in schema["anyOf"])))
        wider = [branch for branch in branches if branch != "a whole number" or "a number" not in branches]
        return " or ".join(dict.fromkeys(wider)) or None
    if "enum" in schema:
        return one_of(str(option) for option in schema["enum"])
    if "const" in schema:
        return show(schema["const"])
    kind = schema.get("type")
    if kind == "array":
        return _describe_list(schema, definitions)
    if kind == "object":
        keys = list(schema.get("properties", {}))
        return f"a mapping with the keys {', '.join(keys)}" if keys else "a mapping"
    if kind == "string":
        return "a path" if schema.get("format") == "path" else "text"
    words = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "null": "null"}
    return words[kind] + _bounds(schema) if kind in words else None


def _describe_list(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    if "prefixItems" in schema:
        items = [describe(item, definitions) or "anything" for item in schema["prefixItems"]]
        return f"a list of {len(items)}: {', '.join(items)}"
    item = describe(schema.get("items", {}), definitions)
    name = "a list of at least one" if schema.get("minItems") else "a list"
    return f"{name}, each {item}" if item else name


def _bounds(schema: Mapping[str, Any]) -> str:
    signs = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
    parts = [f"{sign} {schema[key]:g}" for key, sign in signs.items() if key in schema and abs(schema[key]) < HIGH]
    return f" {' and '.join(parts)}" if parts else ""


def resolve(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema behind ``$ref``, or itself; of an optional one, the part that is not null."""
    if "$ref" in schema:
        found: Mapping[str, Any] = definitions[schema["$ref"].rsplit("/", 1)[-1]]
        return found
    real = [branch for branch in schema.get("anyOf", ()) if branch.get("type") != "null"]
    return resolve(real[0], definitions) if len(real) == 1 else schema


def enumerated(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> list[Any]:
    """The choices that a JSON schema lists, for the value itself or for the items of a list."""
    schema = resolve(schema, definitions) if "$ref" in schema else schema
    parts = [*schema.get("anyOf", ()), *([schema["items"]] if isinstance(schema.get("items"), dict) else [])]
    return [*schema.get("enum", ()), *(option for part in parts for option in enumerated(part, definitions))]


def describe_annotation(annotation: Any) -> str:
    """A type as it is written in Python, for those that JSON has no word for."""
    return shorten(inspect.formatannotation(annotation).replace("typing.", ""))

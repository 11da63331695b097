"""What a saved report must hold before its numbers are used: it may be damaged, or somebody else's."""

from collections.abc import Iterator
from typing import Any

_COUNTS = ("query", "num_positives", "num_negatives", "first_rank", "last_rank")  # columns of whole numbers
_NAMES = ("label", "class", "path")  # columns of text, labels also of whole numbers
_KINDS = {dict: "a mapping", list: "a list", str: "a text"}
_NEEDED = {"metrics": dict, "per_query": dict, "ties": str}
_OPTIONAL = {
    **dict.fromkeys(("protocol", "intervals", "curve", "approximation", "versions"), dict),
    "tie_bounds": list,
    "notes": list,
    **dict.fromkeys(("distance", "date", "command"), str),
}


def check_content(content: dict[str, Any]) -> None:
    """Raise ValueError, naming the entry, unless the JSON content of a report has the types and lengths it needs."""
    for right, name, value, expected in _entries(content):
        if not right:
            shown = repr(value)
            raise ValueError(f"{name} is {shown if len(shown) <= 60 else shown[:60] + '…'}, expected {expected}")


def is_count(value: Any) -> bool:
    """Return whether it is a whole number of at least 0 that floats hold exactly."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def is_number(value: Any) -> bool:
    """Return whether it is a number, finite, and no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _entries(content: dict[str, Any]) -> Iterator[tuple[bool, str, Any, str]]:
    """Yield (right, name, value, what was expected) for each entry; an entry may rely on those before it."""
    for name in ("num_queries", "num_lone_queries", "num_gallery"):
        yield is_count(content[name]), name, content[name], "a whole number of at least 0"
    for name, kind in _NEEDED.items():
        yield isinstance(content[name], kind) and bool(content[name]), name, content[name], _KINDS[kind]
    for name, kind in _OPTIONAL.items():
        value = content.get(name)
        yield value is None or isinstance(value, kind), name, value, f"{_KINDS[kind]}, or null"
    for name, value in content["metrics"].items():
        yield is_number(value), f"metrics.{name}", value, "a number"
    for note in content.get("notes") or []:
        yield isinstance(note, str), "notes", note, "a text"
    rows, columns = content["num_queries"] - content["num_lone_queries"], content["per_query"]
    yield rows >= 1, "num_queries", content["num_queries"], "more than num_lone_queries"
    for name in ("query", "num_positives", *(() if content["tie_bounds"] is None else ("ap",))):
        yield name in columns, f"per_query.{name}", None, "a column"
    for name, values in columns.items():
        fits, expected = is_number, "a number"
        if name in _COUNTS:
            fits, expected = is_count, "a whole number of at least 0"
        elif name in _NAMES:
            fits, expected = _is_name, "a text, or a whole number"
        right = isinstance(values, list) and len(values) == rows and all(map(fits, values))
        yield right, f"per_query.{name}", values, f"{rows} values, each {expected}"
    kinds = sorted({type(value).__name__ for value in columns.get("label", [])})
    yield len(kinds) <= 1, "per_query.label", kinds, "values of one type"
    if (intervals := content.get("intervals")) is not None:
        yield intervals["unit"] in ("class", "query"), "intervals.unit", intervals["unit"], "class or query"
    for name in ("recall", "precision") if content.get("curve") is not None else ():
        values = content["curve"].get(name)
        yield isinstance(values, list) and all(map(is_number, values)), f"curve.{name}", values, "numbers"


def _is_name(value: Any) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    return isinstance(value, str) or whole

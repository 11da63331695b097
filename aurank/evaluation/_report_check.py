"""What a saved report must hold before its numbers are used: it may be damaged, or somebody else's."""

from collections.abc import Callable
from typing import Any

_COUNTS = ("query", "num_positives", "num_negatives", "first_rank", "last_rank")  # columns of whole numbers
_NAMES = ("label", "class", "path")  # columns of text, labels also of whole numbers


def check_content(content: dict[str, Any]) -> None:
    """Raise ValueError, naming the entry, unless the JSON content of a report has the types and lengths it needs."""
    for name in ("num_queries", "num_lone_queries", "num_gallery"):
        _require(is_count(content[name]), name, content[name], "a whole number of at least 0")
    for name in ("metrics", "per_query"):
        _require(isinstance(content[name], dict) and bool(content[name]), name, content[name], "a mapping")
    for name, value in content["metrics"].items():
        _require(is_number(value), f"metrics.{name}", value, "a number")
    for name, optional in (("protocol", dict), ("intervals", dict), ("curve", dict), ("approximation", dict)):
        value = content.get(name)
        _require(value is None or isinstance(value, optional), name, value, "a mapping, or null")
    rows = content["num_queries"] - content["num_lone_queries"]
    _require(rows >= 1, "num_queries", content["num_queries"], "more than num_lone_queries")
    for name in ("query", "num_positives", *(() if content["tie_bounds"] is None else ("ap",))):
        _require(name in content["per_query"], f"per_query.{name}", None, "a column")
    for name, values in content["per_query"].items():
        fits, expected = _column(name)
        _require(
            isinstance(values, list) and len(values) == rows and all(map(fits, values)),
            f"per_query.{name}",
            values,
            f"{rows} values, each {expected}",
        )
    labels = {type(value) for value in content["per_query"].get("label", [])}
    _require(len(labels) <= 1, "per_query.label", sorted(kind.__name__ for kind in labels), "values of one type")
    if (intervals := content.get("intervals")) is not None:
        _require(intervals["unit"] in ("class", "query"), "intervals.unit", intervals["unit"], "class or query")
    if (curve := content.get("curve")) is not None:
        for name in ("recall", "precision"):
            values = curve.get(name)
            _require(isinstance(values, list) and all(map(is_number, values)), f"curve.{name}", values, "numbers")


def _column(name: str) -> tuple[Callable[[Any], bool], str]:
    if name in _COUNTS:
        return is_count, "a whole number of at least 0"
    if name in _NAMES:
        return _is_name, "a text, or a whole number"
    return is_number, "a number"


def is_count(value: Any) -> bool:
    """Whether it is a whole number of at least 0 that floats hold exactly."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def is_number(value: Any) -> bool:
    """Whether it is a number, finite, and no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _is_name(value: Any) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    return isinstance(value, str) or whole


def _require(right: bool, name: str, value: Any, expected: str) -> None:
    if not right:
        shown = repr(value)
        raise ValueError(f"{name} is {shown if len(shown) <= 60 else shown[:60] + '…'}, expected {expected}")

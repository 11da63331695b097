"""Saved results, read back: a file may be damaged, or somebody else's, so all is checked before a number is used."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from aurank.errors import UserError, first_line
from aurank.files import require_ordinary

COUNT, NUMBER, NUMBERS = "a whole number of at least 0", "a number", "numbers"
TEXT, NAME, LIST, MAPPING = "a text", "a text, or a whole number", "a list", "a mapping"
FITS: dict[str, Callable[[Any], bool]] = {
    COUNT: lambda value: _is_whole(value) and 0 <= value < 2**53,  # what floats hold exactly
    NUMBER: lambda value: (_is_whole(value) or isinstance(value, float)) and abs(value) < 1e300,
    TEXT: lambda value: isinstance(value, str),
    NAME: lambda value: isinstance(value, str) or (_is_whole(value) and -(2**63) <= value < 2**63),
    LIST: lambda value: isinstance(value, list),
    MAPPING: lambda value: isinstance(value, dict),
    NUMBERS: lambda value: holds(list, NUMBER, value),
}
# Entries of a report, and the columns of `per_query` that do not hold numbers.
_NEEDED = {"metrics": MAPPING, "per_query": MAPPING, "ties": TEXT}
_OPTIONAL = {
    **dict.fromkeys(
        ("protocol", "intervals", "curve", "approximation", "versions", "neighbours", "gallery", "postprocessing"),
        MAPPING,
    ),
    **dict.fromkeys(("tie_bounds", "notes", "codes"), LIST),
    **dict.fromkeys(("distance", "date", "command"), TEXT),
}
_COLUMNS = {
    **dict.fromkeys(("query", "num_positives", "num_negatives", "first_rank", "last_rank"), COUNT),
    **dict.fromkeys(("label", "class", "path"), NAME),
}


def read_saved(
    path: Path, what: str, *, named: str, versions: tuple[int, ...], writer: str, remedy: str
) -> dict[str, Any]:
    """Return the content of a saved `what`, whose format is `named` so; UserError for any other file."""
    require_ordinary(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the {what} {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a {what}, or is cut short: {first_line(error)}") from error
    if not isinstance(content, dict) or content.get("format") != named:
        raise UserError(f"{path} is not a {what}: expected a file that {writer} wrote")
    if content.get("version") not in versions:
        read = f"version{'s' if len(versions) > 1 else ''} {' and '.join(map(str, versions))}"
        raise UserError(
            f"{path} is a {what} of version {content.get('version')}, and this aurank reads {read}: update aurank, or "
            f"{remedy}"
        )
    return content


def holds(kind: type, expected: str, values: Any) -> bool:
    """Return whether it is a list, or a mapping, of what is expected."""
    listed = values.values() if isinstance(values, dict) else values
    return isinstance(values, kind) and all(map(FITS[expected], listed))


def check_report(content: dict[str, Any]) -> None:
    """Raise ValueError, naming the entry, unless the content of a report has the types and lengths it needs."""
    for right, name, value, expected in _entries(content):
        if not right:
            shown = repr(value)
            raise ValueError(f"{name} is {shown if len(shown) <= 60 else shown[:60] + '…'}, expected {expected}")


def _entries(content: dict[str, Any]) -> Iterator[tuple[bool, str, Any, str]]:
    """Yield (right, name, value, what was expected) for each entry; an entry may rely on those before it."""
    for name in ("num_queries", "num_lone_queries", "num_gallery"):
        yield FITS[COUNT](content[name]), name, content[name], COUNT
    for name, kind in _NEEDED.items():
        yield FITS[kind](content[name]) and bool(content[name]), name, content[name], kind
    for name, kind in _OPTIONAL.items():
        value = content.get(name)
        yield value is None or FITS[kind](value), name, value, f"{kind}, or null"
    for name, value in content["metrics"].items():
        yield FITS[NUMBER](value), f"metrics.{name}", value, NUMBER
    plain = (content.get("postprocessing") or {}).get("plain", {})
    yield holds(dict, NUMBER, plain), "postprocessing.plain", plain, "numbers by name"
    codes = content.get("codes") or []
    for code in codes:
        right = isinstance(code, dict) and _is_code(code) and code["metrics"].keys() == codes[0]["metrics"].keys()
        yield right, "codes", code, "dim, precision, bytes, rescored and the same metrics in each"
    yield holds(list, TEXT, content.get("notes") or []), "notes", content.get("notes"), "texts"
    rows, columns = content["num_queries"] - content["num_lone_queries"], content["per_query"]
    yield rows >= 1, "num_queries", content["num_queries"], "more than num_lone_queries"
    for name in ("query", "num_positives", *(() if content["tie_bounds"] is None else ("ap",))):
        yield name in columns, f"per_query.{name}", None, "a column"
    for name, values in columns.items():
        expected = _COLUMNS.get(name, NUMBER)
        right = holds(list, expected, values) and len(values) == rows
        yield right, f"per_query.{name}", values, f"{rows} values, each {expected}"
    kinds = sorted({type(value).__name__ for value in columns.get("label", [])})
    yield len(kinds) <= 1, "per_query.label", kinds, "values of one type"
    if (intervals := content.get("intervals")) is not None:
        yield intervals["unit"] in ("class", "query"), "intervals.unit", intervals["unit"], "class or query"
    for name in ("recall", "precision") if content.get("curve") is not None else ():
        yield FITS[NUMBERS](values := content["curve"].get(name)), f"curve.{name}", values, NUMBERS


def _is_code(code: dict[str, Any]) -> bool:
    counts = [code.get("dim"), code.get("bytes"), code.get("rescored") or 0]
    values = code.get("metrics")
    return (
        all(map(FITS[COUNT], counts))
        and FITS[TEXT](code.get("precision"))
        and bool(values)
        and holds(dict, NUMBER, values)
    )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

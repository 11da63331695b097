"""A report as the text of its file and as the columns of a table, and read back: the file may be damaged."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NotRequired

import numpy as np
from annotated_types import Ge, Gt, Lt, MinLen
from typing_extensions import TypedDict

from aurank.evaluation.bootstrap import Intervals, Resampling
from aurank.evaluation.curves import Curve
from aurank.evaluation.engine.nearest import NearestRows
from aurank.files import checked

Column = np.ndarray[Any, np.dtype[Any]]
Count = Annotated[int, Ge(0), Lt(2**53)]  # what floats hold exactly
Number = Annotated[int | float, Gt(-1e300), Lt(1e300)]
Names = list[str] | list[Annotated[int, Ge(-(2**63)), Lt(2**63)]]
Metrics = Annotated[dict[str, Number], MinLen(1)]
_KINDS: dict[str, Any] = {
    **dict.fromkeys(("query", "num_positives", "num_negatives", "first_rank", "last_rank"), list[Count]),
    **dict.fromkeys(("label", "class", "path"), Names),
}
"""The columns of `per_query` and of the gallery that are no metrics."""
_LONG = ("curve", "neighbours", "gallery", "per_query")  # at the end of the file


class _Intervals(TypedDict):
    bounds: dict[str, tuple[Number, Number]]
    unit: Literal["class", "query"]
    num_units: Count
    resamples: Count
    seed: int
    level: Number


class _Curve(TypedDict):
    recall: list[Number]
    precision: list[Number]


class _Neighbours(TypedDict):
    row: list[list[Annotated[int, Ge(-1)]]]
    score: list[list[Number | None]]
    is_positive: list[list[bool]]


class _Code(TypedDict):
    dim: Count
    precision: str
    bytes: Count
    rescored: NotRequired[Count | None]
    metrics: Metrics


class _PostProcessing(TypedDict):
    steps: str
    transductive: list[str]
    fitted_rows: Count
    plain: NotRequired[dict[str, Number]]


class _Report(TypedDict):
    metrics: Metrics
    per_query: Annotated[dict[str, Any], MinLen(1)]
    num_queries: Count
    num_lone_queries: Count
    num_gallery: Count
    ties: Annotated[str, MinLen(1)]
    tie_bounds: tuple[Number, Number] | None
    distance: str
    protocol: dict[str, Any] | None
    notes: list[str]
    intervals: _Intervals | None
    approximation: dict[str, Any] | None
    versions: dict[str, str]
    postprocessing: NotRequired[_PostProcessing]
    codes: NotRequired[list[_Code]]
    date: NotRequired[str]
    command: NotRequired[str]
    curve: NotRequired[_Curve]
    neighbours: NotRequired[_Neighbours]
    gallery: NotRequired[dict[str, Names]]


def report_to_json(head: Mapping[str, Any], held: Mapping[str, Any]) -> str:
    """Return the text of a file: its head, then the fields of a report, the long ones last and a line for each column.

    Optional fields are left out where there is nothing.
    """
    short = {name: value for name, value in held.items() if name not in _LONG}
    content = {**head, **{n: v for n, v in short.items() if v is not None or n in _Report.__required_keys__}}
    if (intervals := held["intervals"]) is not None:
        kept = {"unit": intervals.unit, "num_units": intervals.num_units, "bounds": intervals.bounds}
        content["intervals"] = {**vars(intervals.resampling), **kept}
    columns = {"curve": held["curve"] and vars(held["curve"]), "neighbours": None, "gallery": held["gallery"]}
    if (lists := held["neighbours"]) is not None:
        score = lists.score.astype(np.object_)
        score[np.isnan(lists.score)] = None  # JSON has no NaN
        columns["neighbours"] = {"row": lists.row, "score": score, "is_positive": lists.is_positive}
    text = json.dumps(content, indent=2)[: -len("\n}")]
    for name, values in {**columns, "per_query": held["per_query"]}.items():
        if values:
            lines = [f"    {json.dumps(key)}: {json.dumps(column.tolist())}" for key, column in values.items()]
            text += f",\n  {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n  }"
    return text + "\n}\n"


def report_from_json(content: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a report; raise ValueError, naming the entry that does not fit."""
    known: dict[str, Any] = {**checked(content, _Report)}
    known = {name: value for name, value in known.items() if name in _Report.__annotations__}
    rows, columns = known["num_queries"] - known["num_lone_queries"], known["per_query"]
    needed = ("query", "num_positives", *(() if known["tie_bounds"] is None else ("ap",)))
    if rows < 1 or any(name not in columns for name in needed):
        raise ValueError(f"per_query must hold {', '.join(needed)} of one query or more")
    for name, values in columns.items():
        kind: Any = dict[str, Annotated[_KINDS.get(name, list[Number]), MinLen(rows)]]  # type: ignore[misc]
        columns[name] = np.asarray(checked({f"per_query.{name}": values}, kind)[f"per_query.{name}"])
    if any(len(values) != rows for values in columns.values()):
        raise ValueError(f"per_query has columns of other lengths than {rows}")
    known["metrics"] = {name: float(value) for name, value in known["metrics"].items()}
    known["gallery"] = {name: np.asarray(values) for name, values in known.get("gallery", {}).items()}
    if (lists := known.get("neighbours")) is not None:
        row, score = np.array(lists["row"], np.int64), np.array(lists["score"], np.float64)
        found = known["neighbours"] = NearestRows(columns["query"], row, score, np.array(lists["is_positive"], bool))
        if not row.shape == score.shape == found.is_positive.shape or len(row) != rows or row.ndim != 2:
            raise ValueError("neighbours have lists of other lengths")
        if row.size and row.max() >= known["num_gallery"]:
            raise ValueError(f"neighbours name row {row.max()} of a gallery of {known['num_gallery']}")
    if known["tie_bounds"] is not None:
        known["tie_bounds"] = tuple(map(float, known["tie_bounds"]))
    if (kept := known["intervals"]) is not None:
        bounds = {name: (float(low), float(high)) for name, (low, high) in kept["bounds"].items()}
        resampling = Resampling(kept["resamples"], kept["seed"], float(kept["level"]))
        known["intervals"] = Intervals(bounds, resampling, kept["unit"], kept["num_units"])
    if (curve := known.get("curve")) is not None:
        if len(curve["recall"]) != len(curve["precision"]):
            raise ValueError("curve has other numbers of recalls and precisions")
        known["curve"] = Curve(np.array(curve["recall"]), np.array(curve["precision"]))
    codes = known.get("codes", [])
    if any(code["metrics"].keys() != codes[0]["metrics"].keys() for code in codes):
        raise ValueError("codes have other metrics in each row")
    return known


def table_columns(
    per_query: Mapping[str, Column], lists: NearestRows | None, gallery: Mapping[str, Column]
) -> dict[str, Any]:
    """Return columns of one row a query; its neighbours are lists, without padding."""
    columns: dict[str, Any] = {
        name: _plain(values.tolist()) if values.dtype.kind == "U" else values for name, values in per_query.items()
    }
    if lists is None:
        return columns
    exists = lists.row >= 0
    found = {"rows": lists.row, "scores": lists.score, "are_positive": lists.is_positive}
    if "path" in gallery:
        found["paths"] = gallery["path"][lists.row]
    return columns | {
        f"neighbour_{name}": [_plain(row[there].tolist()) for row, there in zip(values, exists, strict=True)]
        for name, values in found.items()
    }


def _plain(values: Sequence[Any]) -> list[Any]:
    """Return texts as UTF-8 can hold them: what is none is written with its bytes as escapes."""
    return [one.encode("utf-8", "backslashreplace").decode() if isinstance(one, str) else one for one in values]

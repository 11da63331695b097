"""A report as the text of its file and as the columns of a table, and read back."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aurank.evaluation.bootstrap import Intervals, Resampling
from aurank.evaluation.curves import Curve
from aurank.evaluation.engine.nearest import NearestRows

Column = np.ndarray[Any, np.dtype[Any]]
# Written as they are: always, and where there is something.
_ALWAYS = (
    *("metrics", "num_queries", "num_lone_queries", "num_gallery", "distance", "ties", "tie_bounds"),
    *("protocol", "notes", "intervals", "approximation", "versions"),
)
_WHERE_KNOWN = ("postprocessing", "codes", "date", "command")


def report_to_json(head: Mapping[str, Any], held: Mapping[str, Any]) -> str:
    """Return the text of a file: its head, then the fields of a report, the long ones last."""
    content = {**head, **{name: held[name] for name in _ALWAYS}}
    if (intervals := held["intervals"]) is not None:
        kept = {"unit": intervals.unit, "num_units": intervals.num_units}
        content["intervals"] = {**vars(intervals.resampling), **kept, "bounds": intervals.bounds}
    content |= {name: held[name] for name in _WHERE_KNOWN if held[name] is not None}
    text = json.dumps(content, indent=2)[: -len("\n}")]
    if held["curve"] is not None:
        text += ',\n  "curve": ' + _columns_to_json(vars(held["curve"]))
    if held["neighbours"] is not None:
        text += _lists_to_json(held["neighbours"], held["gallery"])
    return text + ',\n  "per_query": ' + _columns_to_json(held["per_query"]) + "\n}\n"


def report_from_json(content: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the fields of these names from the content of a file that is known to be a report."""
    known: dict[str, Any] = {"versions": {}, "tie_bounds": None}
    known |= {name: value for name in names if (value := content.get(name)) is not None}
    known["metrics"] = {name: float(value) for name, value in content["metrics"].items()}
    known["per_query"] = {name: np.asarray(values) for name, values in content["per_query"].items()}
    if (lists := known.get("neighbours")) is not None:
        known["neighbours"] = _lists_from_json(lists, known["per_query"]["query"], known["num_gallery"])
    known["gallery"] = {name: np.asarray(values) for name, values in known.get("gallery", {}).items()}
    if known["tie_bounds"] is not None:
        low, high = known["tie_bounds"]
        known["tie_bounds"] = float(low), float(high)
    if (kept := known.get("intervals")) is not None:
        known["intervals"] = Intervals(
            bounds={name: (float(low), float(high)) for name, (low, high) in kept["bounds"].items()},
            resampling=Resampling(int(kept["resamples"]), int(kept["seed"]), float(kept["level"])),
            unit=kept["unit"],
            num_units=int(kept["num_units"]),
        )
    if (curve := known.get("curve")) is not None:
        known["curve"] = Curve(np.array(curve["recall"]), np.array(curve["precision"]))
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


def _plain(values: list[Any]) -> list[Any]:
    """Return texts as UTF-8 can hold them: what is none is written with its bytes as escapes."""
    return [one.encode("utf-8", "backslashreplace").decode() if isinstance(one, str) else one for one in values]


def _columns_to_json(columns: Mapping[str, Column]) -> str:
    """One line per column, so that a long report stays readable from its head."""
    rows = [f"    {json.dumps(name)}: {json.dumps(values.tolist())}" for name, values in columns.items()]
    return "{\n" + ",\n".join(rows) + "\n  }"


def _lists_to_json(lists: NearestRows, gallery: Mapping[str, Column]) -> str:
    score = lists.score.astype(np.object_)
    score[np.isnan(lists.score)] = None  # JSON has no NaN
    columns = {"row": lists.row, "score": score, "is_positive": lists.is_positive}
    return f',\n  "neighbours": {_columns_to_json(columns)},\n  "gallery": {_columns_to_json(gallery)}'


def _lists_from_json(columns: dict[str, Any], query: Column, num_gallery: int) -> NearestRows:
    rows, score = np.array(columns["row"], dtype=np.int64), np.array(columns["score"], dtype=np.float64)
    lists = NearestRows(query, rows, score, np.array(columns["is_positive"], dtype=np.bool_))
    if not (rows.ndim == 2 and len(rows) == len(query) and rows.shape == score.shape == lists.is_positive.shape):
        raise ValueError(f"neighbours have shapes {rows.shape}, {score.shape}, {lists.is_positive.shape}")
    if rows.size and not -1 <= rows.min() <= rows.max() < num_gallery:
        raise ValueError(f"neighbours name rows {rows.min()} to {rows.max()} of a gallery of {num_gallery}")
    return lists

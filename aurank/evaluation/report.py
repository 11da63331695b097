"""The result of an evaluation: numbers, values per query, their text and their files."""

import json
import platform
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

import numpy as np
from annotated_types import Ge, Gt, Len, Lt, MinLen
from jaxtyping import Float64
from pydantic_core import to_json
from typing_extensions import TypedDict

from aurank.errors import UserError
from aurank.evaluation.bootstrap import Intervals, Resampling, drawn_units, resampled_means, unit_terms
from aurank.evaluation.engine.nearest import NearestRows
from aurank.evaluation.metrics import MACRO, Classes, Curve, mean, pooled_rate, random_order_ap
from aurank.evaluation.postprocessing.postprocessing import describe_codes
from aurank.files import checked, read_record, reading, replacing, write_text
from aurank.names import meant, nearest

Column = np.ndarray[Any, np.dtype[Any]]
Count = Annotated[int, Ge(0), Lt(2**53)]  # what floats hold exactly
Number = Annotated[int, Ge(-(2**63)), Lt(2**63)] | Annotated[float, Gt(-1e300), Lt(1e300)]
Names = list[str] | list[Annotated[int, Ge(-(2**63)), Lt(2**63)]]
Metrics = Annotated[dict[str, Number], MinLen(1)]
FIRST = ("first_positive", "first_score")  # gallery row and score of each query's first positive
_KINDS: dict[str, Any] = {
    **dict.fromkeys(("query", "num_positives", "num_negatives", "first_rank", "last_rank", FIRST[0]), list[Count]),
    **dict.fromkeys(("label", "class", "path", "group"), Names),
}
"""The columns of `per_query` and of the gallery that are no metrics."""
_LONG = ("curve", "neighbours", "gallery", "tags", "per_query")  # at the end of the file


class _Report(TypedDict):
    metrics: Metrics
    per_query: Annotated[dict[str, Any], MinLen(1)]
    num_queries: Count
    num_lone_queries: Count
    num_gallery: Count
    ties: Annotated[str, MinLen(1)]
    tie_bounds: tuple[Number, Number]
    distance: str
    protocol: dict[str, Any] | None
    notes: list[str]
    intervals: Intervals | None
    approximation: dict[str, Any] | None
    versions: dict[str, str]
    postprocessing: NotRequired[dict[str, str | Count | list[str] | dict[str, Number]]]
    codes: NotRequired[list[dict[str, Any]]]
    group_pairs: NotRequired[list[dict[str, Any]]]
    date: NotRequired[str]
    command: NotRequired[str]
    curve: NotRequired[dict[Literal["recall", "precision"], list[Number]]]
    neighbours: NotRequired[dict[Literal["row", "score", "is_positive"], list[list[Number | bool | None]]]]
    gallery: NotRequired[dict[str, Names]]
    tags: NotRequired[dict[str, list[Count]]]


def _plain(values: Column) -> Any:
    is_text = values.dtype.kind == "U"
    return [text.encode("utf-8", "backslashreplace").decode() for text in values.tolist()] if is_text else values


FORMAT, VERSION = "aurank.report", 2


_VERSIONS = {"python": platform.python_version()}
for _name in ("aurank", "numpy", "torch", "timm", "numba", "faiss-cpu", "faiss-gpu"):
    with suppress(PackageNotFoundError):
        _VERSIONS[_name] = version(_name)


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """Metrics of one evaluation, in [0, 1], over the queries that have a positive.

    `per_query` has "query" (the row), "label", "path", "class" and "group" where they are known, "num_positives",
    "num_negatives", "first_rank", "last_rank", "first_positive" (the gallery row of its best-placed positive) with
    "first_score", "ap" (the values of mauprc), and every other metric by its name. Cut lists have no first scores.

    Example:
        >>> import aurank
        >>> print(aurank.evaluate(np.eye(3), [0, 0, 1], metrics=["mauprc", "recall@1"]))
        mauprc    0.5000  (threshold; equal scores allow 0.5000 to 1.0000)
        recall@1  0.0000
        3 queries, 1 of them skipped: no positive; 3 gallery rows
        a random order has mauprc 0.7500
    """

    metrics: dict[str, float]  # by the names of docs/metrics.md, means over queries, or over classes with "macro:"
    per_query: dict[str, Column]  # over the queries with a positive, in the caller's order
    num_queries: int  # all that were given
    num_lone_queries: int  # those among them without a positive
    num_gallery: int
    ties: str
    tie_bounds: tuple[float, float]  # mauprc under the pessimistic and the optimistic rule
    protocol: dict[str, Any] | None = None  # at least "name" and "checksum" of what chose the queries and the gallery
    notes: list[str] = field(default_factory=list)  # what a reader of the numbers must know
    intervals: Intervals | None = None
    curve: Curve | None = None  # the mean precision-recall curve, interpolated, at 101 recalls
    approximation: dict[str, Any] | None = None  # where an index was measured: what `index_report` returns
    postprocessing: dict[str, Any] | None = None  # "steps", "transductive", "fitted_rows", and "plain": metrics without
    codes: list[dict[str, Any]] | None = None  # a row for each: "dim", "precision", "bytes", "rescored", "metrics"
    group_pairs: list[dict[str, Any]] | None = None  # "query" and "gallery" (two groups), "num_queries", "metrics"
    neighbours: NearestRows | None = None  # of each query in `per_query`, where they were asked for
    gallery: dict[str, Column] = field(default_factory=dict)  # beside them: its "label", "path", "class", "group"
    tags: dict[str, Column] | None = None  # positions in `per_query` by label, where a query may have several
    distance: str = "cosine"  # by which items were ranked
    versions: dict[str, str] = field(default_factory=_VERSIONS.copy)
    date: str | None = None  # UTC, where a command made it
    command: str | None = None

    @property
    def mauprc(self) -> float:
        """The mean over queries of the area under the precision-recall curve (= mean AP over the full gallery)."""
        return self.metrics["mauprc"] if "mauprc" in self.metrics else mean(self.values("mauprc"))

    @property
    def random_order(self) -> float:
        """The mauprc that a random order of each query's list has on average."""
        return mean(random_order_ap(self.per_query["num_positives"], self.per_query["num_negatives"]))

    @property
    def recall(self) -> dict[int, float]:
        """The part of the queries with a positive among the first k, by k."""
        marker = "recall@"
        return {int(name[len(marker) :]): value for name, value in self.metrics.items() if name.startswith(marker)}

    def values(self, name: str) -> Float64[np.ndarray, " query"]:
        """Return the values per query of a metric, with "macro:" or without; UserError if the report lacks it."""
        base = name.removeprefix(MACRO)
        names = self._metric_names
        if base not in names:
            hint = meant(nearest(base, names, most=3))
            raise UserError(f"the report holds no values per query of {name!r}, only of {', '.join(names)}{hint}")
        return self.per_query["ap" if base == "mauprc" else base]

    def with_intervals(self, resamples: int = 1000, seed: int = 0, level: float = 0.95) -> "Report":
        """Return this report with a bootstrap interval of every metric per query, by class (see docs/metrics.md)."""
        resampling = Resampling(resamples, seed, level)
        units, unit = drawn_units(self.per_query)
        names = [name for name in self.metrics if pooled_rate(name) is None]
        if not names:
            raise UserError(f"{next(iter(self.metrics))} has no values per query: add mauprc to the metrics")
        of_metrics = np.stack([unit_terms(name, self.values(name), units) for name in names])
        draws = resampled_means(of_metrics, resamples=resamples, seed=seed)
        bounds = {name: resampling.interval(drawn) for name, drawn in zip(names, draws, strict=True)}
        intervals = Intervals(**vars(resampling), bounds=bounds, unit=unit, num_units=len(units.label))
        return replace(self, intervals=intervals)

    def named(
        self,
        paths: Column | None = None,
        classes: Column | None = None,
        groups: Column | None = None,
        *,
        gallery_paths: Column | None = None,
        gallery_classes: Column | None = None,
        gallery_groups: Column | None = None,
    ) -> "Report":
        """Return this report with path, class and group of each query, given those of all queries by their rows.

        A report with neighbours gets those of the gallery rows too; without a gallery they are the queries.
        """
        names = {"path": paths, "class": classes, "group": groups}
        gallery_names = {"path": gallery_paths, "class": gallery_classes, "group": gallery_groups}
        if all(values is None for values in gallery_names.values()):
            gallery_names = names
        rows = self.per_query["query"]
        facts = {name: values for name, values in self.per_query.items() if name in ("query", "label")}
        facts |= {name: values[rows] for name, values in names.items() if values is not None and (values != "").any()}
        named = replace(self, per_query={**facts, **self.per_query, **facts})
        if self.neighbours is None:
            return named
        facts = {name: values for name, values in gallery_names.items() if values is not None and (values != "").any()}
        return replace(named, gallery={**self.gallery, **facts})

    def made_by(self, command: str | None) -> "Report":
        """Return this report with the command that made it, and the time."""
        return replace(self, command=command, date=datetime.now(UTC).isoformat(timespec="seconds"))

    def class_table(self) -> dict[str, Column]:
        """Return columns by label: "label", "num_queries", and the mean of each metric over a label's queries."""
        if "label" not in self.per_query:
            raise UserError("a table by class needs labels, and this report has none: evaluate with labels")
        if (tags := self.tags) is None:
            classes = Classes.of(self.per_query["label"])
        else:
            classes = Classes(np.array([*tags]), np.array([*map(len, tags.values())]), np.concatenate([*tags.values()]))
        means = {name: classes.means(self.values(name)) for name in self._metric_names}
        return {"label": classes.label, "num_queries": classes.count, **means}

    def __str__(self) -> str:
        width = max(len(name) for name in self.metrics)
        plain = (self.postprocessing or {}).get("plain", {})
        beside = {name: f"  (plain {value:.4f})" for name, value in plain.items()}
        lines = [
            f"{name:<{width}}  {value:.4f}  {self.interval(name)}".rstrip() + beside.get(name, "")
            for name, value in self.metrics.items()
        ]
        low, high = self.tie_bounds
        if low != high:
            allowed = f"equal scores allow {low:.4f} to {high:.4f}"
            if "mauprc" in self.metrics:
                lines[list(self.metrics).index("mauprc")] += f"  ({self.ties}; {allowed})"
            else:
                lines.append(f"{allowed} for mauprc")
        lone = f", {self.num_lone_queries:,} of them skipped: no positive" if self.num_lone_queries else ""
        lines.append(f"{self.num_queries:,} queries{lone}; {self.num_gallery:,} gallery rows")
        if "mauprc" in self.metrics:
            lines.append(f"a random order has mauprc {self.random_order:.4f}")
        if self.protocol:
            lines.append(f"protocol {self.protocol.get('name')} ({self.protocol.get('checksum')})")
        if self.distance != "cosine":
            lines.append(f"distance {self.distance}")
        if self.intervals:
            lines.append(str(self.intervals))
        lines += self.notes
        if self.codes:
            lines.append(describe_codes(self.codes))
        return "\n".join(lines)

    __repr__ = __str__

    def interval(self, name: str) -> str:
        """Return the interval of a metric as text, nothing where there is none."""
        if self.intervals is None or name not in self.intervals.bounds:
            return ""
        low, high = self.intervals.bounds[name]
        return f"[{low:.4f}, {high:.4f}]"

    def save(self, path: Path | str) -> None:
        """Write the report as one JSON file; a file that is there stays whole until the new one is."""
        content = {each.name: getattr(self, each.name) for each in fields(self)}
        short = {
            n: v for n, v in content.items() if n not in _LONG and (v is not None or n in _Report.__required_keys__)
        }
        short["intervals"] = self.intervals and vars(self.intervals)
        text = json.dumps({"format": FORMAT, "version": VERSION, **short}, indent=2)[: -len("\n}")]
        columns = {name: content[name] for name in _LONG}  # a line for each column
        columns["curve"] = self.curve and vars(self.curve)
        if (lists := self.neighbours) is not None:
            columns["neighbours"] = {"row": lists.row, "score": lists.score, "is_positive": lists.is_positive}
        for name, values in columns.items():
            if values:
                lines = []
                for key, column in values.items():  # text may hold characters that UTF-8 lacks; NaN becomes null
                    as_text, entries = column.dtype.kind == "U", column.tolist()
                    line = json.dumps(entries) if as_text else to_json(entries, inf_nan_mode="null").decode()
                    lines.append(f"    {json.dumps(key)}: {line}")
                text += f",\n  {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n  }"
        write_text(Path(path), text + "\n}\n")

    @classmethod
    def load(cls, path: Path | str) -> "Report":
        """Return the report that `save` wrote, digit for digit; UserError if the file is missing or something else."""
        again: Any = {"title": "a report", "remedy": "name the --out folder of aurank evaluate, or evaluate again"}
        content: dict[str, Any] = {**read_record(Path(path), _Report, named=FORMAT, version=VERSION, **again)}
        with reading(path, **again):
            rows, columns = content["num_queries"] - content["num_lone_queries"], content["per_query"]
            needed = ("query", "num_positives", "num_negatives", "first_rank", "ap")
            if rows < 1 or any(name not in columns for name in needed):
                raise ValueError(f"per_query must have the columns {', '.join(needed)}, and one query or more")
            for name, values in columns.items():
                kind: Any = dict[str, Annotated[_KINDS.get(name, list[Number]), Len(rows, rows)]]  # type: ignore[misc]
                columns[name] = np.asarray(checked({f"per_query.{name}": values}, kind)[f"per_query.{name}"])
            content["metrics"] = {name: float(value) for name, value in content["metrics"].items()}
            content["tags"] = {name: np.array(rows) for name, rows in content.get("tags", {}).items()} or None
            content["gallery"] = {name: np.asarray(values) for name, values in content.get("gallery", {}).items()}
            content["tie_bounds"] = tuple(map(float, content["tie_bounds"]))
            if (lists := content.get("neighbours")) is not None:
                row, score, is_positive = (np.array(lists[name]) for name in ("row", "score", "is_positive"))
                arrays = row.astype(np.int64), score.astype(np.float64), is_positive.astype(bool)
                content["neighbours"] = NearestRows(columns["query"], *arrays)
            if (curve := content.get("curve")) is not None:
                content["curve"] = Curve(**{name: np.array(values) for name, values in curve.items()})
            return cls(**content)

    def write_per_query(self, path: Path | str) -> None:
        """Write `per_query` as a Parquet table, one row per query, with its neighbours as lists, without padding."""
        import pyarrow
        import pyarrow.parquet

        columns: dict[str, Any] = {name: _plain(values) for name, values in self.per_query.items()}
        if (lists := self.neighbours) is not None:
            listed = {"rows": lists.row, "scores": lists.score, "are_positive": lists.is_positive}
            listed |= {f"{name}s": self.gallery[name][lists.row] for name in ("path", "group") if name in self.gallery}
            exists = lists.row >= 0
            ends = pyarrow.array(np.cumsum([0, *exists.sum(axis=1)]), pyarrow.int32())
            for name, values in listed.items():
                columns[f"neighbour_{name}"] = pyarrow.ListArray.from_arrays(ends, _plain(values[exists]))
        table = pyarrow.table(columns)
        with replacing(Path(path)) as file:
            pyarrow.parquet.write_table(table, file)

    @property
    def _metric_names(self) -> list[str]:
        facts = {*_KINDS, *FIRST, "ap"}
        first = ["mauprc"] if "ap" in self.per_query else []
        return [*first, *(name for name in self.per_query if name not in facts)]

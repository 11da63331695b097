"""What an evaluation found: numbers, values per query, a table to read and a file to keep."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aurank.errors import UserError
from aurank.files import write_text

FORMAT, VERSION = "aurank.report", 1


@dataclass(frozen=True, eq=False)
class Report:
    """Metrics of one evaluation; all are means over the queries that have a positive, in [0, 1].

    `metrics`: "mauprc" (mean AP over the full gallery), "recall@{k}", "precision@{k}", "map@r", "r_precision", "ndcg",
    "mrr", "minp", "auroc", as `aurank.evaluation.metrics` defines them. `per_query`: arrays over the queries with a
    positive, in the caller's order: "query" (its row), "ap", "first_rank", "last_rank", "num_positives",
    "num_negatives", "map@r", "r_precision", "ndcg", "auroc". `num_queries` counts every query given,
    `num_lone_queries` those among them without a positive. `tie_bounds`: mauprc under the pessimistic and the
    optimistic reading of equal scores.
    """

    metrics: dict[str, float]
    per_query: dict[str, np.ndarray[Any, np.dtype[Any]]]
    num_queries: int
    num_lone_queries: int
    num_gallery: int
    ties: str
    tie_bounds: tuple[float, float]

    @property
    def mauprc(self) -> float:
        """Mean over queries of the area under the precision-recall curve (= mean AP over the full gallery)."""
        return self.metrics["mauprc"]

    @property
    def recall(self) -> dict[int, float]:
        """Part of the queries with a positive among the first k, by k."""
        marker = "recall@"
        return {int(name[len(marker) :]): value for name, value in self.metrics.items() if name.startswith(marker)}

    def __str__(self) -> str:
        """A table for people: one metric a line, then what was counted."""
        width = max(len(name) for name in self.metrics)
        lines = [f"{name:<{width}}  {value:.4f}" for name, value in self.metrics.items()]
        low, high = self.tie_bounds
        if low != high:
            lines[0] += f"  ({self.ties}; equal scores allow {low:.4f} to {high:.4f})"
        lone = f", {self.num_lone_queries:,} of them skipped: no positive" if self.num_lone_queries else ""
        return "\n".join([*lines, f"{self.num_queries:,} queries{lone}; {self.num_gallery:,} gallery rows"])

    def save(self, path: Path | str) -> None:
        """Writes the report as one JSON file; a file that is there stays whole until the new one is."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "metrics": self.metrics,
            "num_queries": self.num_queries,
            "num_lone_queries": self.num_lone_queries,
            "num_gallery": self.num_gallery,
            "ties": self.ties,
            "tie_bounds": list(self.tie_bounds),
        }
        head = json.dumps(content, indent=2)[: -len("\n}")]
        columns = [f"    {json.dumps(name)}: {json.dumps(values.tolist())}" for name, values in self.per_query.items()]
        write_text(Path(path), head + ',\n  "per_query": {\n' + ",\n".join(columns) + "\n  }\n}\n")

    @classmethod
    def load(cls, path: Path | str) -> "Report":
        """The report that `save` wrote, digit for digit; UserError if the file is missing or something else."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"cannot read the report {path}: {error.strerror}") from error
        except ValueError as error:
            raise UserError(f"{path} is not a report, or is cut short: {error}") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise UserError(f"{path} is not a report: expected a file that Report.save or `aurank evaluate` wrote")
        if content.get("version") != VERSION:
            raise UserError(
                f"{path} is a report of version {content.get('version')}, and this aurank reads version {VERSION}: "
                "update aurank, or evaluate again"
            )
        try:
            return _from_json(content)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path} is a damaged report ({type(error).__name__}: {error}): evaluate again") from error


def _from_json(content: dict[str, Any]) -> Report:
    low, high = content["tie_bounds"]
    return Report(
        metrics={str(name): float(value) for name, value in content["metrics"].items()},
        per_query={str(name): np.asarray(values) for name, values in content["per_query"].items()},
        num_queries=int(content["num_queries"]),
        num_lone_queries=int(content["num_lone_queries"]),
        num_gallery=int(content["num_gallery"]),
        ties=str(content["ties"]),
        tie_bounds=(float(low), float(high)),
    )

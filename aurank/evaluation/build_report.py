"""From ranks to the Report: which metrics, averaged how."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from jaxtyping import Shaped

from aurank.errors import UserError
from aurank.evaluation.aggregate import MACRO, Classes, average, mean
from aurank.evaluation.bootstrap import Resampling
from aurank.evaluation.curves import precision_recall_curve
from aurank.evaluation.engine.ranks import Ranks
from aurank.evaluation.metrics import average_precision, check_names, first_rank, last_rank, query_values
from aurank.evaluation.report import Report


def sorted_cuts(recall_at: Iterable[int]) -> tuple[int, ...]:
    """Return the cut-offs in increasing order, each once; UserError unless all are positive integers."""
    try:
        cuts = list(recall_at)
    except TypeError:
        raise UserError(f"recall_at must be a list of integers, such as (1, 10, 100); got {recall_at!r}") from None
    wrong = [k for k in cuts if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1]
    if wrong:
        raise UserError(f"recall_at must hold integers of 1 or more, such as (1, 10, 100); got {wrong[0]!r}")
    return tuple(sorted({int(k) for k in cuts}))


def default_metrics(recall_at: tuple[int, ...] = (1, 10, 100, 1000)) -> tuple[str, ...]:
    """Return the names of the metrics that a report has unless others are asked for, in its order."""
    cuts = [f"{name}@{k}" for name in ("recall", "precision") for k in recall_at]
    return ("mauprc", *cuts, "map@r", "r_precision", "ndcg", "mrr", "minp", "auroc")


def fitting_cuts(recall_at: tuple[int, ...], ranks: Ranks) -> tuple[int, ...]:
    """Return the cut-offs within at least one query's list: beyond, every recall is 1 and says nothing."""
    longest = int((ranks.num_positives + ranks.num_negatives).max())
    return tuple(k for k in recall_at if k <= longest)


def build_report(
    ranks: Ranks,
    *,
    recall_at: tuple[int, ...] = (1, 10, 100, 1000),
    ties: str = "threshold",
    distance: str = "cosine",
    labels: Shaped[np.ndarray, " query"] | None = None,
    metrics: Iterable[str] | None = None,
    protocol: dict[str, Any] | None = None,
    notes: Iterable[str] = (),
    resampling: Resampling | None = None,
) -> Report:
    """Return the report of ranks that hold at least one query.

    Args:
        labels: of the queries with a positive, in the order of the ranks; without them nothing is averaged by class.
        metrics: names of docs/metrics.md; by default those of `default_metrics` up to the length of the gallery.
        distance: by which the ranks were made.
        resampling: asks for intervals; where they cannot be had, a note says why.
    """
    names = check_names(default_metrics(fitting_cuts(recall_at, ranks)) if metrics is None else metrics)
    if labels is None and any(name.startswith(MACRO) for name in names):
        raise UserError(f"a metric with {MACRO} is a mean over classes, and the queries came without labels")
    bounds = [mean(average_precision(ranks, ties=rule)) for rule in ("pessimistic", "optimistic")]
    held = dict.fromkeys(["mauprc", *(name.removeprefix(MACRO) for name in names)])
    values = {name: query_values(ranks, name, ties=ties) for name in held}
    classes = None if labels is None else Classes.of(labels)
    return Report(
        metrics={name: average(name, values[name.removeprefix(MACRO)], classes) for name in names},
        per_query={
            "query": ranks.query,
            **({} if labels is None else {"label": labels}),
            "num_positives": ranks.num_positives,
            "num_negatives": ranks.num_negatives,
            "first_rank": first_rank(ranks),
            "last_rank": last_rank(ranks),
            "ap": values["mauprc"],
            **{name: column for name, column in values.items() if name != "mauprc"},
        },
        num_queries=ranks.num_queries,
        num_lone_queries=ranks.num_lone_queries,
        num_gallery=ranks.num_gallery,
        distance=distance,
        ties=ties,
        tie_bounds=(bounds[0], bounds[1]),
        protocol=protocol,
        notes=list(notes),
        curve=precision_recall_curve(ranks, ties=ties),
    ).resampled(resampling)

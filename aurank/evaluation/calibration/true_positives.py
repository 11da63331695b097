"""tpr@fpr: how many positives match where hardly any negative does, over the pairs of all queries."""

from collections.abc import Iterable

import numpy as np
import torch

from aurank.evaluation.calibration.thresholds import PairScores, threshold_at_false_match_rate
from aurank.evaluation.engine.pooled import PooledScores
from aurank.evaluation.engine.problem import RetrievalProblem
from aurank.evaluation.metrics import pooled_names, pooled_rate


def true_positive_rates(scores: PairScores, names: Iterable[str]) -> dict[str, float]:
    """Return the value of each tpr@fpr by its name: positives that match where at most so many negatives do.

    The threshold is the lowest that at most this part of the negatives reach. Of equal scores all match or none.

    Example:
        >>> rows = np.array([[1.0, 0.0], [0.8, 0.6], [0.96, 0.28], [0.0, 1.0]])
        >>> scores = PooledScores(RetrievalProblem(rows, labels=[0, 0, 1, 1]))
        >>> true_positive_rates(scores, ["tpr@fpr=0.5", "tpr@fpr=0.9"])
        {'tpr@fpr=0.5': 0.5, 'tpr@fpr=0.9': 1.0}
    """
    found = {}
    for name in names:
        rate = pooled_rate(name)
        assert rate is not None
        threshold = threshold_at_false_match_rate(scores, rate)
        matches = 0 if threshold is None else scores.num_positives - int(np.searchsorted(scores.positives, threshold))
        found[name] = matches / scores.num_positives
    return found


def pooled_metrics(
    problem: RetrievalProblem,
    names: Iterable[str] | None,
    *,
    distance: str,
    device: torch.device,
    max_memory: int | str,
    distributed: bool | str | None,
) -> tuple[dict[str, float], list[str]]:
    """Return those of some metrics that are of the pairs of all queries, and a note where there are few pairs."""
    if not (pooled := pooled_names(names)):
        return {}, []
    scores = PooledScores(problem, distance=distance, device=device, max_memory=max_memory, distributed=distributed)
    few = [name for name in pooled if (pooled_rate(name) or 0) * scores.num_negatives < 1]
    note = f"{', '.join(few)}: that is less than one of {scores.num_negatives:,} negative pairs, so none may match"
    return true_positive_rates(scores, pooled), [note] if few else []

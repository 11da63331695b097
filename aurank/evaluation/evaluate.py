"""One call from embeddings and labels to a Report."""

from collections.abc import Iterable

import numpy as np
import torch

from aurank.errors import UserError
from aurank.evaluation import metrics
from aurank.evaluation.inputs import Embeddings, Integers
from aurank.evaluation.ranks import Progress, Ranks, positive_ranks
from aurank.evaluation.report import Report

BACKENDS = ("auto", "torch")


def evaluate(
    embeddings: Embeddings,
    labels: Integers,
    gallery: Embeddings | None = None,
    gallery_labels: Integers | None = None,
    *,
    ids: Integers | None = None,
    gallery_ids: Integers | None = None,
    recall_at: Iterable[int] = (1, 10, 100, 1000),
    ties: str = "threshold",
    backend: str = "auto",
    device: torch.device | str | None = None,
    max_memory: int | str = "1GiB",
    progress: Progress | None = None,
) -> Report:
    """Report of how well the embeddings retrieve items of the same label, by cosine, over the full gallery.

    Every row of `embeddings` [query, dim] is a query; equal labels make a positive. Without a `gallery` the set is its
    own gallery, and each row is left out of its own result. With one, equal `ids` and `gallery_ids` leave the same item
    out. Queries without a positive are skipped and counted. Tensors or NumPy arrays of any real type, memory-mapped
    too; labels and ids are integers.

    `recall_at`: every k for recall@k and precision@k; k may exceed the gallery. `ties`: how average precision treats
    equal scores, "threshold" as scikit-learn, or "optimistic" and "pessimistic", which bound it. `backend`: "auto" or
    "torch", the same numbers. `device`, `max_memory` and `progress`: as for `positive_ranks`; none changes a digit,
    and nothing is shown unless `progress(done, total)` shows it.

    Raises UserError (a ValueError) for what cannot be evaluated, no query with a positive included.
    """
    if backend not in BACKENDS:
        raise UserError(f"backend must be one of {', '.join(BACKENDS)}; got {backend!r}")
    if ties not in metrics.TIES:
        raise UserError(f"ties must be one of {', '.join(metrics.TIES)}; got {ties!r}")
    cuts = check_cuts(recall_at)
    ranks = positive_ranks(
        embeddings,
        labels,
        gallery,
        gallery_labels,
        ids=ids,
        gallery_ids=gallery_ids,
        max_memory=max_memory,
        device=device,
        progress=progress,
    )
    if not len(ranks.query):
        raise UserError(
            f"none of the {ranks.num_queries} queries has a positive among the {ranks.num_gallery} gallery rows: "
            "no other row there has a query's label; check that labels and embeddings belong together"
        )
    return report_of(ranks, recall_at=cuts, ties=ties)


def check_cuts(recall_at: Iterable[int]) -> tuple[int, ...]:
    """The cut-offs in increasing order, each once; UserError unless all are positive integers."""
    try:
        cuts = list(recall_at)
    except TypeError:
        raise UserError(f"recall_at must be a list of integers, such as (1, 10, 100); got {recall_at!r}") from None
    wrong = [k for k in cuts if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1]
    if wrong:
        raise UserError(f"recall_at must hold integers of 1 or more, such as (1, 10, 100); got {wrong[0]!r}")
    return tuple(sorted({int(k) for k in cuts}))


def report_of(ranks: Ranks, *, recall_at: tuple[int, ...], ties: str) -> Report:
    """The Report of ranks that hold at least one query."""
    per_query = {
        "query": ranks.query,
        "num_positives": ranks.num_positives,
        "num_negatives": ranks.num_negatives,
        "first_rank": metrics.first_rank(ranks),
        "last_rank": metrics.last_rank(ranks),
        "ap": metrics.average_precision(ranks, ties=ties),
        "map@r": metrics.map_at_r(ranks),
        "r_precision": metrics.r_precision(ranks),
        "ndcg": metrics.ndcg(ranks),
        "auroc": metrics.auroc(ranks),
    }
    bounds = [metrics.mean(metrics.average_precision(ranks, ties=rule)) for rule in ("pessimistic", "optimistic")]
    return Report(
        metrics={
            "mauprc": metrics.mean(per_query["ap"]),
            **{f"recall@{k}": metrics.mean(metrics.recall_at(ranks, k)) for k in recall_at},
            **{f"precision@{k}": metrics.mean(metrics.precision_at(ranks, k)) for k in recall_at},
            **{name: metrics.mean(per_query[name]) for name in ("map@r", "r_precision", "ndcg")},
            "mrr": metrics.mean(metrics.reciprocal_rank(ranks)),
            "minp": metrics.mean(metrics.inverse_negative_penalty(ranks)),
            "auroc": metrics.mean(per_query["auroc"]),
        },
        per_query=per_query,
        num_queries=ranks.num_queries,
        num_lone_queries=ranks.num_lone_queries,
        num_gallery=ranks.num_gallery,
        ties=ties,
        tie_bounds=(bounds[0], bounds[1]),
    )

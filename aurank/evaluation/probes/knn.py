"""The k-NN probe: how well the nearest training rows tell a class."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float32, Int64

from aurank.errors import UserError
from aurank.evaluation.aggregate import mean
from aurank.evaluation.engine.inputs import Embeddings, Integers, ProgressCallback
from aurank.evaluation.index.neighbours import GPU_LONGEST_LIST, Index
from aurank.evaluation.probes.result import ProbeResult, ProbeSplit, pick, result_of, split_rows, top

NEIGHBOURS, TEMPERATURE = 200, 0.07


def knn(
    embeddings: Embeddings,
    labels: Integers,
    test: Embeddings | None = None,
    test_labels: Integers | None = None,
    *,
    k: int | None = None,
    temperature: float = TEMPERATURE,
    ids: Integers | None = None,
    seeds: Sequence[int] | None = None,
    device: torch.device | str | None = None,
    progress: ProgressCallback | None = None,
) -> ProbeResult:
    """Return how well the k nearest training rows classify: "top1", "top5", and "1nn", by the nearest row alone.

    Each of the k neighbours by cosine votes for its class with weight exp(similarity / temperature). A class that ties
    with the right one counts as ahead of it, and one without a vote is behind all that have any. Of rows that score the
    same at the end of a list, faiss decides which are in it.

    Args:
        embeddings, labels: [row, dim] and integers [row]. They train, and `test`, `test_labels` [test, dim] and [test]
            test; without these, halves of each class do, drawn anew by each of `seeds` (default 0, 1, 2).
        k: default 200, or all training rows where they are fewer.
        ids: different integers [row]; draws then depend on them and not on the order of the rows.
        device: as for `Index`, whose exact search finds the neighbours, in blocks.
        progress: called with how many test rows are done and how many there are.

    Raises:
        UserError: one class, a k beyond the training rows, rows that have no cosine, labels that do not fit.

    Source: section 3.4 of Wu et al., CVPR 2018, https://arxiv.org/abs/1805.01978.

    Example:
        >>> rows = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> knn(rows, [0, 0, 1, 1], rows[::-1], [1, 1, 0, 0], k=1, device="cpu").metrics
        {'top1': 1.0, 'top5': 1.0, '1nn': 1.0}
    """
    split = split_rows(embeddings, labels, test, test_labels, distance="cosine", ids=ids, seeds=seeds)
    if test is not None and seeds is not None:
        raise UserError(f"seeds {tuple(seeds)} have no use where test rows are given: k-NN draws nothing then")
    check_knn(split, k=k, temperature=temperature, device=device)
    depth = min(NEIGHBOURS, split.num_train) if k is None else k
    found: list[dict[str, float]] = []
    for number, draw in enumerate(split.draws):
        tested = pick(embeddings if test is None else test, draw.test)
        ranks, nearest = [], []
        index = Index.build(pick(embeddings, draw.train), "Flat", distance="cosine", device=device)
        for rows, near in index.search_batches(tested, depth):
            classes, own = draw.train_classes[near.row], draw.test_classes[rows]
            ranks.append(vote_ranks(classes, near.similarity, own, temperature, split.num_classes))
            # The nearest is right where all listed rows that are as near are of the query's class.
            farther = near.similarity != near.similarity[:, :1]
            nearest.append(((classes == own[:, None]) | farther).all(axis=1).astype(np.float64))
            if progress is not None:
                progress(number * split.num_test + rows.stop, len(split.draws) * split.num_test)
        found.append({**top(np.concatenate(ranks)), "1nn": mean(np.concatenate(nearest))})
    settings = {"k": depth, "temperature": temperature, "distance": "cosine"}
    notes = [f"k is {depth}, all training rows: they are fewer than {NEIGHBOURS}"] if depth < (k or NEIGHBOURS) else []
    seeds_drawn = [draw.seed for draw in split.draws] if test is None else []
    return result_of("knn", split, found, seeds=seeds_drawn, settings=settings, notes=notes)


def check_knn(
    split: ProbeSplit,
    *,
    k: int | None = None,
    temperature: float = TEMPERATURE,
    device: torch.device | str | None = None,
) -> None:
    """Raise UserError for options of `knn` that cannot be met."""
    if not (np.isfinite(temperature) and temperature > 0):
        raise UserError(f"temperature must be > 0, got {temperature}")
    if k is None:
        return
    if not 1 <= k <= split.num_train:
        raise UserError(f"k must be from 1 to the number of training rows, {split.num_train:,}; got {k}")
    if k > GPU_LONGEST_LIST and Index(1, device=device).gpus:
        raise UserError(f'k = {k}: faiss on a GPU finds at most {GPU_LONGEST_LIST} neighbours; use device="cpu"')


def vote_ranks(
    classes: Int64[np.ndarray, "query k"],
    similarity: Float32[np.ndarray, "query k"],
    own: Int64[np.ndarray, " query"],
    temperature: float,
    num_classes: int,
) -> Int64[np.ndarray, " query"]:
    """Return the rank of each query's own class by weighted vote, from 1; classes that tie with it are ahead.

    Without a vote for it, it ties with all others that have none, and is last.
    """
    queries, depth = classes.shape
    scaled = similarity.astype(np.float64) / temperature
    weight = np.exp(scaled - scaled.max(axis=1, keepdims=True))  # relative to the nearest, so nothing overflows
    order = np.argsort(classes, axis=1, kind="stable")
    classes, weight = (np.take_along_axis(part, order, axis=1) for part in (classes, weight))
    # Votes lie side by side, class by class: no table of queries by classes is made.
    first = np.ones(classes.shape, dtype=np.bool_)
    first[:, 1:] = classes[:, 1:] != classes[:, :-1]
    start = np.flatnonzero(first)
    votes, voted, query = np.add.reduceat(weight.ravel(), start), classes.ravel()[start], start // depth
    right = voted == own[query]
    got = np.zeros(queries)
    got[query[right]] = votes[right]
    ahead = ~right & (votes >= got[query])
    ranks = 1 + np.bincount(query[ahead], minlength=queries)
    return np.where(got > 0, ranks, num_classes)

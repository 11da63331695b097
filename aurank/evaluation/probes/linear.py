"""The linear probe: how well a linear classifier on frozen embeddings tells a class."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from aurank.errors import UserError
from aurank.evaluation.engine.inputs import Embeddings, Integers, ProgressCallback
from aurank.evaluation.index.faiss_bridge import BLOCK, blocks, load_rows
from aurank.evaluation.probes.result import ProbeResult, result_of, top
from aurank.evaluation.probes.splits import HELD_OUT, Draw, ProbeSplit, held_out, pick, split_rows

STRENGTHS = tuple(10.0**power for power in range(1, -6, -1))
MOST_STEPS = 1000


def linear_probe(
    embeddings: Embeddings,
    labels: Integers,
    test: Embeddings | None = None,
    test_labels: Integers | None = None,
    *,
    strengths: Sequence[float] = STRENGTHS,
    ids: Integers | None = None,
    seeds: Sequence[int] | None = None,
    progress: ProgressCallback | None = None,
) -> ProbeResult:
    """Return how well multinomial logistic regression on the embeddings classifies: "top1" and "top5".

    Every column is standardised by its mean and deviation over the training rows, so that a strength means the same
    whatever the scale and width of the embeddings. Minimised is the mean cross-entropy plus strength / 2 · ‖weights‖²,
    the bias free, by scikit-learn's L-BFGS in float64. A fifth of each class's training rows, drawn by the seed,
    chooses the strength with the best top-1 (of equals the strongest); all training rows are then fitted with it.

    Args:
        embeddings, labels, test, test_labels, ids: as for `knn`.
        strengths: what to choose from; a single one is taken as it is, and nothing is held out.
        seeds: of halves (default 0, 1, 2) and of the rows held out (default 0 where test rows are given).
        progress: called with how many fits are done and how many there are.

    Raises:
        UserError: one class, rows that are not finite, labels that do not fit, no class with two training rows.

    Example:
        >>> rows = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> linear_probe(rows, [0, 0, 1, 1], rows[::-1], [1, 1, 0, 0], strengths=[0.01]).metrics
        {'top1': 1.0, 'top5': 1.0}
    """
    split = split_rows(embeddings, labels, test, test_labels, distance="euclidean", ids=ids, seeds=seeds)
    check_linear_probe(split, strengths=strengths)
    if test is not None and seeds is not None and len(strengths) == 1:
        raise UserError(f"seeds {tuple(seeds)} have no use with test rows and a single strength: nothing is drawn then")
    ordered = sorted((float(strength) for strength in strengths), reverse=True)
    total = len(split.draws) * _fits(ordered)
    found: list[dict[str, float]] = []
    choices: list[_Choice] = []
    unfinished = 0
    for number, draw in enumerate(split.draws):

        def fitted(count: int, before: int = number * _fits(ordered)) -> None:
            if progress is not None:
                progress(before + count, total)

        fitted(0)  # a fit may take minutes
        tested = pick(embeddings if test is None else test, draw.test)
        features, centre, scale = _standardised(pick(embeddings, draw.train))
        choice = _choose(features, draw, ordered, split.num_classes, fitted)
        model = _regression(split.num_classes)
        unfinished += choice.stopped + _fit(model, features, draw.train_classes, choice.strength)
        fitted(_fits(ordered))
        found.append(top(_linear_ranks(model, tested, centre, scale, draw.test_classes)))
        choices.append(choice)
    settings = {
        "strength": [choice.strength for choice in choices],
        "chosen_from": ordered,
        "held_out": HELD_OUT if len(ordered) > 1 else 0.0,
        "features": "standardised",
    }
    notes = []
    if any(choice.at_end for choice in choices):
        notes.append("the strength chosen stands at an end of those offered: one beyond it may be better")
    if unfinished:
        notes.append(f"{unfinished} of {total} fits stopped after {MOST_STEPS} steps, before the gradient was small")
    seeds_drawn = [draw.seed for draw in split.draws] if test is None or len(ordered) > 1 else []
    return result_of("linear_probe", split, found, seeds=seeds_drawn, settings=settings, notes=notes)


def check_linear_probe(split: ProbeSplit, *, strengths: Sequence[float] = STRENGTHS) -> None:
    """Raise UserError for options of `linear_probe` that cannot be met."""
    if not len(strengths) or not all(np.isfinite(strength) and strength > 0 for strength in strengths):
        raise UserError(f"strengths must be numbers > 0, at least one, got {tuple(strengths)}")
    if len(strengths) > 1 and not all((np.bincount(draw.train_classes) > 1).any() for draw in split.draws):
        raise UserError(
            "every class has a single training row, so none can be held out to choose the regularisation: give more "
            "rows or, from Python, one strength, such as strengths=[0.01]"
        )


def _standardised(
    train: Embeddings,
) -> tuple[Float64[np.ndarray, "row dim"], Float64[np.ndarray, " dim"], Float64[np.ndarray, " dim"]]:
    """Return the rows less each column's mean, divided by its deviation, and both; constant columns become 0."""
    features = np.empty(tuple(train.shape), dtype=np.float64)
    for rows in blocks(len(train), max(1, BLOCK // train.shape[1])):
        features[rows] = load_rows(train, rows, "euclidean")
    centre = np.asarray(features.mean(axis=0))
    features -= centre
    scale = np.sqrt(np.einsum("ij,ij->j", features, features) / len(features))
    scale[scale <= 1e-7 * np.abs(centre)] = 0  # what float32 rounding alone leaves of a constant
    scale[scale == 0] = np.inf
    features /= scale
    return features, centre, scale


def _fits(strengths: Sequence[float]) -> int:
    return 1 if len(strengths) == 1 else len(strengths) + 1


class _Choice(NamedTuple):
    strength: float
    at_end: bool  # of those offered, where the next one inwards is worse
    stopped: int  # fits that ran out of steps


def _choose(
    features: Float64[np.ndarray, "row dim"],
    draw: Draw,
    strengths: Sequence[float],
    num_classes: int,
    fitted: Callable[[int], None],
) -> _Choice:
    """Return the strength with the best top-1 on rows held out, the strongest of equals."""
    if len(strengths) == 1:
        return _Choice(strengths[0], False, 0)
    aside = held_out(draw.train_classes, seed=draw.seed)
    train, classes = features[~aside], draw.train_classes[~aside]
    tested, right = features[aside], draw.train_classes[aside]
    model = _regression(num_classes)  # each fit starts from the one before
    accuracy, stopped = [], 0
    for count, strength in enumerate(strengths, start=1):
        stopped += _fit(model, train, classes, strength)
        accuracy.append(top(_score_ranks(model, tested, right))["top1"])
        fitted(count)
    best = int(np.argmax(accuracy))
    at_end = best == len(strengths) - 1 or (best == 0 and accuracy[0] > accuracy[1])
    return _Choice(strengths[best], at_end, stopped)


def _regression(num_classes: int) -> Any:
    # Imported here: a second that no other evaluation needs.
    from sklearn.linear_model import LogisticRegression

    # With many classes every entry of the gradient is small from the start, about 1 / classes.
    return LogisticRegression(solver="lbfgs", warm_start=True, max_iter=MOST_STEPS, tol=1e-3 / num_classes)


def _fit(
    model: Any, features: Float64[np.ndarray, "row dim"], classes: Int64[np.ndarray, " row"], strength: float
) -> int:
    """Fit the model; return 1 where it ran out of steps, else 0."""
    from sklearn.exceptions import ConvergenceWarning

    model.set_params(C=1 / (strength * len(features)))  # scikit-learn's C multiplies the sum of the losses
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the result's notes say it
        model.fit(features, classes)
    return int(np.max(model.n_iter_) >= MOST_STEPS)


def _linear_ranks(
    model: Any,
    test: Embeddings,
    centre: Float64[np.ndarray, " dim"],
    scale: Float64[np.ndarray, " dim"],
    own: Int64[np.ndarray, " query"],
) -> Int64[np.ndarray, " query"]:
    ranks = []
    width = max(test.shape[1], len(model.classes_))
    for rows in blocks(len(test), max(1, BLOCK // width)):
        features = (load_rows(test, rows, "euclidean") - centre) / scale
        ranks.append(_score_ranks(model, features, own[rows]))
    return np.concatenate(ranks)


def _score_ranks(
    model: Any, features: Float64[np.ndarray, "query dim"], own: Int64[np.ndarray, " query"]
) -> Int64[np.ndarray, " query"]:
    """Return the rank of each query's own class by score, from 1; classes that tie with it are ahead."""
    scores = model.decision_function(features)
    if scores.ndim == 1:  # of the second of two classes
        scores = np.stack([-scores, scores], axis=1)
    return np.asarray((scores >= scores[np.arange(len(own)), own][:, None]).sum(axis=1))

"""The linear probe: how well a linear classifier on frozen embeddings tells a class."""

import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Float64, Int64

from aurank.errors import UserError
from aurank.evaluation.engine.inputs import Embeddings, Integers, ProgressCallback
from aurank.evaluation.index.faiss_bridge import BLOCK, blocks, load_rows
from aurank.evaluation.probes.result import (
    HELD_OUT,
    Draw,
    ProbeResult,
    ProbeSplit,
    held_out,
    pick,
    result_of,
    split_rows,
    top,
)

STRENGTHS = tuple(10.0**power for power in range(1, -6, -1))
MOST_STEPS = 1000
Features: TypeAlias = Float64[np.ndarray, "row dim"]
Classes: TypeAlias = Int64[np.ndarray, " row"]


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
    total = len(split.draws) * (1 if len(ordered) == 1 else len(ordered) + 1)
    found: list[dict[str, float]] = []
    chosen: list[float] = []
    at_end, unfinished, steps = False, 0, itertools.count()

    def fitted() -> None:
        if progress is not None:
            progress(next(steps), total)

    fitted()  # a fit may take minutes
    for draw in split.draws:
        features, centre, scale = _standardised(pick(embeddings, draw.train))
        trial, model, place = _Regression(split.num_classes), _Regression(split.num_classes), 0
        if len(ordered) > 1:
            place, is_end = _choose(trial, features, draw, ordered, fitted)
            at_end |= is_end
        chosen.append(ordered[place])
        model.fit(features, draw.train_classes, ordered[place])
        unfinished += trial.unfinished + model.unfinished
        fitted()
        tested, ranks = pick(embeddings if test is None else test, draw.test), []
        for rows in blocks(len(tested), max(1, BLOCK // max(tested.shape[1], split.num_classes))):
            piece = (load_rows(tested, rows, "euclidean") - centre) / scale
            ranks.append(model.ranks(piece, draw.test_classes[rows]))
        found.append(top(np.concatenate(ranks)))
    settings = {
        "strength": chosen,
        "chosen_from": ordered,
        "held_out": HELD_OUT if len(ordered) > 1 else 0.0,
        "features": "standardised",
    }
    notes = []
    if at_end:
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


def _standardised(train: Embeddings) -> tuple[Features, Float64[np.ndarray, " dim"], Float64[np.ndarray, " dim"]]:
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


class _Regression:
    """Multinomial logistic regression; each fit starts from the one before."""

    def __init__(self, num_classes: int) -> None:
        # Imported here: a second that no other evaluation needs.
        from sklearn.linear_model import LogisticRegression

        # With many classes every entry of the gradient is small from the start, about 1 / classes.
        tolerance = 1e-3 / num_classes
        self.model = LogisticRegression(solver="lbfgs", warm_start=True, max_iter=MOST_STEPS, tol=tolerance)
        self.unfinished = 0  # fits that ran out of steps

    def fit(self, features: Features, classes: Classes, strength: float) -> None:
        from sklearn.exceptions import ConvergenceWarning

        self.model.set_params(C=1 / (strength * len(features)))  # scikit-learn's C multiplies the sum of the losses
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the result's notes say it
            self.model.fit(features, classes)
        self.unfinished += int(np.max(self.model.n_iter_) >= MOST_STEPS)

    def ranks(self, features: Features, own: Classes) -> Int64[np.ndarray, " row"]:
        """Return the rank of each row's own class by score, from 1; classes that tie with it are ahead."""
        scores = self.model.decision_function(features)
        if scores.ndim == 1:  # of the second of two classes
            scores = np.stack([-scores, scores], axis=1)
        return np.asarray((scores >= scores[np.arange(len(own)), own][:, None]).sum(axis=1))


def _choose(
    model: _Regression, features: Features, draw: Draw, strengths: Sequence[float], fitted: Callable[[], None]
) -> tuple[int, bool]:
    aside = held_out(draw.train_classes, seed=draw.seed)
    train, tested, accuracy = features[~aside], features[aside], []
    for strength in strengths:
        model.fit(train, draw.train_classes[~aside], strength)
        accuracy.append(top(model.ranks(tested, draw.train_classes[aside]))["top1"])
        fitted()
    best = int(np.argmax(accuracy))
    return best, best == len(strengths) - 1 or (best == 0 and accuracy[0] > accuracy[1])

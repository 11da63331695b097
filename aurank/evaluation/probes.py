"""The probes of representations: how well the nearest training rows, or a linear classifier, tell a class."""

import itertools
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int64

from aurank.arrays import Arrays
from aurank.errors import UserError
from aurank.evaluation.engine.problem import (
    Embeddings,
    Integers,
    ProgressCallback,
    as_matrix,
    integer_array,
    unique_ids,
)
from aurank.evaluation.index.neighbours import BLOCK, Index, blocks, check_rows, load_rows, take
from aurank.evaluation.metrics import mean
from aurank.files import EXACT, checked, read_record, reading, write_text

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression

FORMAT, VERSION = "aurank.probe", 1
TOP = (1, 5)
HALVES_SEEDS = (0, 1, 2)
HELD_OUT = 0.2  # part of each class's training rows that chooses a linear probe's regularisation
NEIGHBOURS, TEMPERATURE = 200, 0.07
STRENGTHS = tuple(10.0**power for power in range(1, -6, -1))
MOST_STEPS = 1000
Rows: TypeAlias = Int64[np.ndarray, " row"]
Features: TypeAlias = Float64[np.ndarray, "row dim"]


@dataclass(frozen=True)
class ProbeResult:
    """Accuracies of one probe, in [0, 1], and all that they depend on.

    `design`: "closed set", where one set of rows trains and another tests, or "halves", where each seed draws half of
    the rows of every class for training and the others test. Numbers of rows and classes are those of one draw.

    Example:
        >>> result = ProbeResult("knn", "halves", {"top1": 0.5}, {"top1": [0.4, 0.6]}, [0, 1], 2, 2, 2, 0, {"k": 1}, [])
        >>> {name: round(value, 4) for name, value in result.spread.items()}
        {'top1': 0.1414}
    """

    __pydantic_config__ = EXACT

    protocol: str  # "knn" or "linear_probe"
    design: str
    metrics: dict[str, float]  # means over the seeds, by the names of docs/metrics.md
    per_seed: dict[str, list[float]]
    seeds: list[int]  # empty where nothing was drawn
    num_train: int
    num_test: int
    num_classes: int
    num_left_out: int  # rows that were not used
    settings: dict[str, Any]  # every option, those that were chosen too
    notes: list[str]

    @property
    def spread(self) -> dict[str, float]:
        """Sample standard deviation over the seeds, by metric; empty with fewer than two."""
        several = self.per_seed if len(self.seeds) > 1 else {}
        squares = {name: [(value - self.metrics[name]) ** 2 for value in several[name]] for name in several}
        return {name: math.sqrt(math.fsum(values) / (len(values) - 1)) for name, values in squares.items()}

    def __str__(self) -> str:
        width, spread = max(len(name) for name in self.metrics), self.spread
        lines = [self.protocol]
        for name, value in self.metrics.items():
            lines.append(f"{name:<{width}}  {value:.4f}" + (f" ± {spread[name]:.4f}" if name in spread else ""))
        how = "halves of each class" if self.design == "halves" else self.design
        if len(self.seeds) > 1:
            how += f", mean ± standard deviation over seeds {', '.join(map(str, self.seeds))}"
        elif self.seeds:
            how += f", seed {self.seeds[0]}"
        lines.append(
            f"{self.num_test:,} test rows, {self.num_train:,} training rows, {self.num_classes:,} classes; {how}"
        )
        lines.append(", ".join(f"{name.replace('_', ' ')} {_words(value)}" for name, value in self.settings.items()))
        return "\n".join([*lines, *self.notes])

    def save(self, path: Path | str) -> None:
        """Write the result as one JSON file, whole or not at all."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self), "spread": self.spread}
        write_text(Path(path), json.dumps(content, indent=2) + "\n")

    @classmethod
    def load(cls, path: Path | str) -> "ProbeResult":
        """Return the result that `save` wrote; UserError if the file is missing or something else."""
        again: Any = {"what": "a probe's result", "remedy": "probe again"}
        content = read_record(Path(path), dict[str, Any], named=FORMAT, version=VERSION, **again)
        with reading(path, **again):
            result = checked({name: content[name] for name in cls.__dataclass_fields__}, cls)
            str(result)  # what does not fit together cannot be shown
            return result


def _words(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_words, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


# -- which rows train and which test ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Draw:
    """One training and one test set: rows of their sides, and those rows' classes, counted from 0."""

    seed: int
    train: Int64[np.ndarray, " train"]
    test: Int64[np.ndarray, " test"]
    train_classes: Int64[np.ndarray, " train"]
    test_classes: Int64[np.ndarray, " test"]


@dataclass(frozen=True, eq=False)
class ProbeSplit:
    """What a probe trains and tests on; all draws have the same numbers of rows."""

    design: str
    draws: tuple[Draw, ...]
    num_classes: int
    num_left_out: int  # test rows of classes that have no training row, or, in halves, classes of one row
    notes: tuple[str, ...]

    @property
    def num_train(self) -> int:
        return len(self.draws[0].train)

    @property
    def num_test(self) -> int:
        return len(self.draws[0].test)

    def result(
        self,
        protocol: str,
        found: Sequence[Mapping[str, float]],
        *,
        drawn: bool,
        settings: dict[str, Any],
        notes: Sequence[str],
    ) -> ProbeResult:
        """Return the result of what each draw gave; `drawn`: whether the seeds had a use."""
        per_seed = {name: [values[name] for values in found] for name in found[0]}
        return ProbeResult(
            protocol=protocol,
            design=self.design,
            metrics={name: mean(values) for name, values in per_seed.items()},
            per_seed=per_seed,
            seeds=[draw.seed for draw in self.draws] if drawn else [],
            num_train=self.num_train,
            num_test=self.num_test,
            num_classes=self.num_classes,
            num_left_out=self.num_left_out,
            settings=settings,
            notes=[*self.notes, *notes],
        )


def split_rows(
    embeddings: Embeddings,
    labels: Integers,
    test: Embeddings | None,
    test_labels: Integers | None,
    *,
    distance: str,
    ids: Integers | None,
    seeds: Sequence[int] | None,
    several: bool = False,
) -> ProbeSplit:
    """Return the split of rows and labels; UserError where they do not fit each other.

    `several`: whether rows are drawn beside given test rows, to choose an option.
    """
    if (test is None) != (test_labels is None):
        raise UserError("test and test_labels go together: give both, or neither to probe within the one set")
    if seeds is not None and test is not None and not several:
        raise UserError(f"seeds {tuple(seeds)} have no use where test rows are given: nothing is drawn then")
    sides: dict[str, tuple[Embeddings, Integers]] = {"probed" if test is None else "training": (embeddings, labels)}
    if test is not None and test_labels is not None:
        sides["test"] = (test, test_labels)
    classes = []
    for side, (rows, given) in sides.items():
        classes.append(integer_array(given, name="label", rows=len(rows), side=side))
    widths = [rows.shape[1] for rows, _ in sides.values()]
    if widths[0] != widths[-1]:
        raise UserError(
            f"the training embeddings have {widths[0]} columns and the test embeddings {widths[1]}: both must come "
            "from the same model"
        )
    numbers = None if ids is None else unique_ids(ids, rows=len(embeddings), side=next(iter(sides)))
    split = split_labels(*classes, ids=numbers, seeds=seeds)
    for side, (rows, _) in sides.items():
        check_rows(rows, side=side, distance=distance)
    return split


def split_labels(
    labels: Rows,
    test_labels: Int64[np.ndarray, " test"] | None = None,
    *,
    ids: Rows | None = None,
    seeds: Sequence[int] | None = None,
) -> ProbeSplit:
    """Return the split of rows with these labels; UserError where no probe is possible.

    With `test_labels`, all of `labels` train and the test rows of their classes test. Without, each seed draws half of
    the rows of every class for training (the larger half of an odd number), and the others test. Draws depend on the
    order of the `ids` (by default rows), not on where a row stands.
    """
    if seeds is not None and (not len(seeds) or len(set(seeds)) < len(seeds) or min(seeds) < 0):
        raise UserError(f"seeds must be different whole numbers from 0, at least one, got {tuple(seeds)}")
    order = np.arange(len(labels)) if ids is None else np.argsort(ids, kind="stable")
    names, classes, counts = np.unique(labels[order], return_inverse=True, return_counts=True)
    usable = counts > (test_labels is None)  # within one set, one half of each class trains and the other tests
    if usable.sum() < 2:
        what = "two classes of two training rows or more" if test_labels is None else "two classes of training rows"
        raise UserError(f"a probe needs {what}: there are {usable.sum()}, among {len(counts):,}")
    if test_labels is None:
        kept = usable[classes]
        rows, left_out = order[kept], int((~kept).sum())
        classes = np.unique(labels[rows], return_inverse=True)[1]
        number = (np.bincount(classes) + 1) // 2
        draws = []
        for seed in HALVES_SEEDS if seeds is None else seeds:
            train = _drawn(classes, number, np.random.default_rng([seed, 0]))
            draws.append(Draw(seed, rows[train], rows[~train], classes[train], classes[~train]))
        notes = (f"left out: {left_out:,} of {len(labels):,} rows, the only one of their class",) if left_out else ()
        return ProbeSplit("halves", tuple(draws), int(usable.sum()), left_out, notes)
    seen = np.isin(test_labels, names)
    if not seen.any():
        raise UserError(
            "no class of the test rows occurs among the training rows: leave the training rows out, so that one half "
            "of the test rows trains and the other tests"
        )
    tested, left_out = np.flatnonzero(seen), int((~seen).sum())
    test_classes = np.searchsorted(names, test_labels[tested])
    absent = len(np.unique(test_labels[~seen]))
    note = f"left out: {left_out:,} of {len(seen):,} test rows, whose {absent:,} class{'es' * (absent != 1)} "
    note += "no training row has"
    pairs = tuple(Draw(seed, order, tested, classes, test_classes) for seed in ((0,) if seeds is None else seeds))
    return ProbeSplit("closed set", pairs, len(names), left_out, (note,) if left_out else ())


def held_out(classes: Rows, *, seed: int) -> Bool[np.ndarray, " row"]:
    """Mark the rows held out: a fifth of each class, rounded down but at least one, none of a class of one row."""
    counts = np.bincount(classes)
    number = np.where(counts > 1, np.maximum(1, np.floor(HELD_OUT * counts)), 0).astype(np.int64)
    return _drawn(classes, number, np.random.default_rng([seed, 1]))


def _drawn(
    classes: Rows, number: Int64[np.ndarray, " class"], generator: np.random.Generator
) -> Bool[np.ndarray, " row"]:
    order = np.lexsort((generator.permutation(len(classes)), classes))
    ordered = classes[order]
    place = np.arange(len(classes)) - np.searchsorted(ordered, ordered)
    chosen = np.zeros(len(classes), dtype=np.bool_)
    chosen[order] = place < number[ordered]
    return chosen


def _pick(embeddings: Embeddings, rows: Rows) -> Embeddings:
    """Return these rows, copied only where they are not the whole side in order."""
    return embeddings if np.array_equal(rows, np.arange(len(embeddings))) else take(embeddings, rows)


def _top(ranks: Int64[np.ndarray, " query"]) -> dict[str, float]:
    return {f"top{k}": mean((ranks <= k).astype(np.float64)) for k in TOP}


# -- k-NN -------------------------------------------------------------------------------------------------------------


def knn(
    embeddings: Arrays,
    labels: Integers,
    test: Arrays | None = None,
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
    with the right one counts as ahead of it, and one without a vote is behind all that have any.

    Args:
        embeddings, labels: [row, dim] and integers [row]. They train, and `test`, `test_labels` test; without these,
            halves of each class do, drawn anew by each of `seeds` (default 0, 1, 2).
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
    embeddings = as_matrix(embeddings, side="training")
    test = None if test is None else as_matrix(test, side="test")
    split = split_rows(embeddings, labels, test, test_labels, distance="cosine", ids=ids, seeds=seeds)
    check_knn(split, k=k, temperature=temperature)
    depth = min(NEIGHBOURS, split.num_train) if k is None else k
    found: list[dict[str, float]] = []
    for number, draw in enumerate(split.draws):
        tested = _pick(embeddings if test is None else test, draw.test)
        ranks, nearest = [], []
        index = Index.build(_pick(embeddings, draw.train), "Flat", distance="cosine", device=device)
        for rows, near in index.search_batches(tested, depth):
            classes, own = draw.train_classes[near.row], draw.test_classes[rows]
            ranks.append(vote_ranks(classes, near.similarity, own, temperature, split.num_classes))
            # The nearest is right where all listed rows that are as near are of the query's class.
            farther = near.similarity != near.similarity[:, :1]
            nearest.append(((classes == own[:, None]) | farther).all(axis=1).astype(np.float64))
            if progress is not None:
                progress(number * split.num_test + rows.stop, len(split.draws) * split.num_test)
        found.append({**_top(np.concatenate(ranks)), "1nn": mean(np.concatenate(nearest))})
    settings = {"k": depth, "temperature": temperature, "distance": "cosine"}
    notes = [f"k is {depth}, all training rows: they are fewer than {NEIGHBOURS}"] if depth < (k or NEIGHBOURS) else []
    return split.result("knn", found, drawn=test is None, settings=settings, notes=notes)


def check_knn(split: ProbeSplit, *, k: int | None = None, temperature: float = TEMPERATURE) -> None:
    if not 0 < temperature < math.inf:
        raise UserError(f"temperature must be above 0, got {temperature}")
    if k is not None and not 1 <= k <= split.num_train:
        raise UserError(f"k must be from 1 to the number of training rows, {split.num_train:,}; got {k}")


def vote_ranks(
    classes: Int64[np.ndarray, "query k"],
    similarity: Float32[np.ndarray, "query k"],
    own: Int64[np.ndarray, " query"],
    temperature: float,
    num_classes: int,
) -> Int64[np.ndarray, " query"]:
    """Return the rank of each query's own class by weighted vote, from 1; classes that tie with it are ahead."""
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


# -- the linear probe -------------------------------------------------------------------------------------------------


def linear_probe(
    embeddings: Arrays,
    labels: Integers,
    test: Arrays | None = None,
    test_labels: Integers | None = None,
    *,
    strengths: Sequence[float] = STRENGTHS,
    ids: Integers | None = None,
    seeds: Sequence[int] | None = None,
    progress: ProgressCallback | None = None,
) -> ProbeResult:
    """Return how well multinomial logistic regression on the embeddings classifies: "top1" and "top5".

    Every column is standardised over the training rows. Minimised is the mean cross-entropy plus
    strength / 2 · ‖weights‖², the bias free, by scikit-learn's L-BFGS in float64. A fifth of each class's training
    rows, drawn by the seed, chooses the strength with the best top-1; all training rows are then fitted with it.

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
    from sklearn.linear_model import LogisticRegression  # a second that no other evaluation needs

    several = len(strengths) > 1
    how: dict[str, Any] = {"ids": ids, "seeds": seeds, "several": several}
    embeddings = as_matrix(embeddings, side="training")
    test = None if test is None else as_matrix(test, side="test")
    split = split_rows(embeddings, labels, test, test_labels, distance="euclidean", **how)
    check_linear_probe(split, strengths=strengths)
    ordered = sorted((float(strength) for strength in strengths), reverse=True)
    total = len(split.draws) * (len(ordered) + 1 if several else 1)
    found: list[dict[str, float]] = []
    chosen: list[float] = []
    at_end, unfinished, steps = False, 0, itertools.count()
    # With many classes every entry of the gradient is small from the start, about 1 / classes.
    settings: dict[str, Any] = {"max_iter": MOST_STEPS, "tol": 1e-3 / split.num_classes, "warm_start": True}

    def fitted() -> None:
        if progress is not None:
            progress(next(steps), total)

    fitted()  # a fit may take minutes
    for draw in split.draws:
        features, centre, scale = _standardised(_pick(embeddings, draw.train))
        trial, model, place = LogisticRegression(**settings), LogisticRegression(**settings), 0
        if several:
            aside, accuracy = held_out(draw.train_classes, seed=draw.seed), list[float]()
            for strength in ordered:
                unfinished += _fit(trial, features[~aside], draw.train_classes[~aside], strength)
                accuracy.append(_top(_ranks(trial, features[aside], draw.train_classes[aside]))["top1"])
                fitted()
            place = int(np.argmax(accuracy))  # of equals the strongest
            at_end |= place == len(ordered) - 1 or (place == 0 and accuracy[0] > accuracy[1])
        chosen.append(ordered[place])
        unfinished += _fit(model, features, draw.train_classes, ordered[place])
        fitted()
        tested, ranks = _pick(embeddings if test is None else test, draw.test), []
        for rows in blocks(len(tested), max(1, BLOCK // max(tested.shape[1], split.num_classes))):
            piece = (load_rows(tested, rows, "euclidean") - centre) / scale
            ranks.append(_ranks(model, piece, draw.test_classes[rows]))
        found.append(_top(np.concatenate(ranks)))
    chosen_by = {"chosen_from": ordered, "held_out": HELD_OUT if several else 0.0}
    settings = {"strength": chosen, **chosen_by, "features": "standardised"}
    notes = []
    if at_end:
        notes.append("the strength chosen stands at an end of those offered: one beyond it may be better")
    if unfinished:
        notes.append(f"{unfinished} of {total} fits stopped after {MOST_STEPS} steps, before the gradient was small")
    return split.result("linear_probe", found, drawn=test is None or several, settings=settings, notes=notes)


def check_linear_probe(split: ProbeSplit, *, strengths: Sequence[float] = STRENGTHS) -> None:
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


def _fit(model: "LogisticRegression", features: Features, classes: Rows, strength: float) -> bool:
    from sklearn.exceptions import ConvergenceWarning

    model.set_params(C=1 / (strength * len(features)))  # scikit-learn's C multiplies the sum of the losses
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the result's notes say it
        model.fit(features, classes)
    return bool(np.max(model.n_iter_) >= MOST_STEPS)


def _ranks(model: "LogisticRegression", features: Features, own: Rows) -> Rows:
    """Return the rank of each row's own class by score, from 1; classes that tie with it are ahead."""
    scores = model.decision_function(features)
    if scores.ndim == 1:  # of the second of two classes
        scores = np.stack([-scores, scores], axis=1)
    return np.asarray((scores >= scores[np.arange(len(own)), own][:, None]).sum(axis=1))


PROBES: Mapping[str, Callable[..., ProbeResult]] = {"knn": knn, "linear_probe": linear_probe}
CHECKS: Mapping[str, Callable[..., None]] = {"knn": check_knn, "linear_probe": check_linear_probe}

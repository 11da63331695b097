"""Probes: classify test rows by scikit-learn's nearest neighbours or linear classifier, or by a few drawn examples."""

import json
import random
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice, permutations
from pathlib import Path
from statistics import stdev
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64

from aurank.arrays import Arrays
from aurank.errors import UserError
from aurank.evaluation.index.neighbours import check_rows, load_rows
from aurank.evaluation.inputs import NO_GROUP, Integers, as_matrix, integer_array
from aurank.evaluation.metrics import mean
from aurank.files import write_text
from aurank.names import require_choice

PROTOCOLS = ("knn", "linear_probe")
NEIGHBOURS, TEMPERATURE = 200, 0.07
Numbers = Int64[np.ndarray, " row"]
STRENGTHS = tuple(10.0**power for power in range(1, -6, -1))


@dataclass(frozen=True)
class ProbeResult:
    """Accuracies of one probe, in [0, 1]; numbers of rows and classes are of one draw.

    Example:
        >>> result = ProbeResult("knn", "halves", {"top1": [0.4, 0.6]}, [0, 1], 2, 2, 2, {}, [])
        >>> result.metrics, {name: round(value, 4) for name, value in result.spread.items()}
        ({'top1': 0.5}, {'top1': 0.1414})
    """

    protocol: str  # "knn", "linear_probe", "few_shot" or such as "20way-1shot"
    design: str  # "closed set": some rows train, others test; "halves" of each class, or "episodes", drawn by seeds
    per_seed: dict[str, list[float]]  # by the names of docs/metrics.md
    seeds: list[int]  # empty if nothing was drawn
    num_train: int
    num_test: int
    num_classes: int
    settings: dict[str, Any]
    notes: list[str]
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)  # 95 %, over episodes alone

    @property
    def metrics(self) -> dict[str, float]:
        """Means over the seeds."""
        return {name: mean(values) for name, values in self.per_seed.items()}

    @property
    def spread(self) -> dict[str, float]:
        """Sample standard deviations over the seeds; empty with fewer than two."""
        return {name: stdev(values) for name, values in self.per_seed.items() if len(values) > 1}

    def __str__(self) -> str:
        spread = {name: f" ± {value:.4f}" for name, value in self.spread.items()}
        spread |= {name: " [{:.4f}, {:.4f}]".format(*interval) for name, interval in self.intervals.items()}
        lines = [f"{name:<4}  {value:.4f}{spread.get(name, '')}" for name, value in self.metrics.items()]
        counts = f"{self.num_test:,} test rows, {self.num_train:,} training rows, {self.num_classes:,} classes"
        counts += " an episode" * (self.design == "episodes")
        seeds = f", seeds {', '.join(map(str, self.seeds))}" if self.seeds else ""
        settings = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        return "\n".join([self.protocol, *lines, f"{counts}; {self.design}{seeds}", settings, *self.notes])

    def save(self, path: Path | str) -> None:
        """Write the result as one JSON file, whole or not at all."""
        content = {"format": "aurank.probe", "version": 4, "metrics": self.metrics, "spread": self.spread}
        write_text(Path(path), json.dumps({**content, **asdict(self)}, indent=2) + "\n")


def split_labels(
    labels: Numbers, test_labels: Int64[np.ndarray, " _"] | None = None, *, seeds: Sequence[int] | None = None
) -> tuple[list[tuple[int, np.ndarray, np.ndarray]], list[str]]:
    """Return for each seed the rows that train and test, halves of each class without `test_labels`, and notes."""
    tested, least = (labels, 2) if test_labels is None else (test_labels, 1)
    names, counts = np.unique(labels, return_counts=True)
    names, counts = names[counts >= least], counts[counts >= least]
    rows, test_rows = (np.flatnonzero(np.isin(side, names)) for side in (labels, tested))
    if len(names) < 2 or not len(test_rows):
        among = "" if len(test_rows) else ", and none of them is among the test rows"
        raise UserError(f"a probe needs two classes with {least} training rows or more: there are {len(names)}{among}")
    draws = [(seed, rows, test_rows) for seed in seeds or (0,)]
    if test_labels is None:
        classes = np.searchsorted(names, labels[rows])
        trains = {seed: _drawn(classes, (counts + 1) // 2, (seed, 0)) for seed in seeds or (0, 1, 2)}
        draws = [(seed, rows[train], rows[~train]) for seed, train in trains.items()]
    left_out = len(tested) - len(test_rows)
    return draws, [f"left out: {left_out:,} of {len(tested):,} rows, whose class no other row has"] if left_out else []


def _drawn(
    classes: Int64[np.ndarray, " row"], number: Int64[np.ndarray, " class"], seed: tuple[int, int]
) -> Bool[np.ndarray, " row"]:
    """Mark `number` rows of each class, at random."""
    order = np.lexsort((np.random.default_rng(seed).permutation(len(classes)), classes))
    ordered, drawn = classes[order], np.zeros(len(classes), np.bool_)
    drawn[order] = np.arange(len(classes)) - np.searchsorted(ordered, ordered) < number[ordered]
    return drawn


def probe(
    embeddings: Arrays,
    labels: Integers,
    test: Arrays | None = None,
    test_labels: Integers | None = None,
    *,
    protocol: str = "knn",
    k: int = NEIGHBOURS,
    seeds: Sequence[int] | None = None,
) -> ProbeResult:
    """Return how well the embeddings classify, as accuracies; docs/metrics.md defines both protocols and the names.

    Args:
        embeddings, labels: [row, dim] and integers [row]. They train, and `test`, `test_labels` test; without these,
            halves of each class do.
        protocol: "knn" or "linear_probe".
        k: neighbours of "knn", or all training rows if they are fewer.
        seeds: of the halves (default 0, 1, 2) and of the rows held out for the strength (default 0 with test rows).

    Raises:
        UserError: one class, rows that have no cosine or are not finite, labels that do not fit, no class with two
            training rows for "linear_probe".

    Source: section 3.4 of Wu et al., CVPR 2018, https://arxiv.org/abs/1805.01978, for "knn".

    Example:
        >>> rows = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> probe(rows, [0, 0, 1, 1], rows[::-1], [1, 1, 0, 0], k=1).metrics
        {'top1': 1.0, 'top5': 1.0, '1nn': 1.0}
    """
    require_choice("protocol", protocol, PROTOCOLS)
    if (test is None) != (test_labels is None):
        raise UserError("test and test_labels go together: give both, or neither to probe within the one set")
    distance = "cosine" if protocol == "knn" else "euclidean"
    sides = []
    for side, rows, classes in (("training", embeddings, labels), ("test", test, test_labels)):
        if side == "training" or (rows is not None and classes is not None):
            matrix = as_matrix(rows, side=side)
            check_rows(matrix, side=side, distance=distance)
            sides.append((matrix, integer_array(classes, name="label", rows=len(matrix), side=side)))
    (trained, numbers), (tested, test_numbers) = sides[0], sides[-1]
    draws, notes = split_labels(numbers, None if test is None else test_numbers, seeds=seeds)
    names = np.unique(numbers[draws[0][1]])  # every draw trains on all classes
    per_seed: dict[str, list[float]] = {}
    settings: dict[str, Any] = {"strength": []} if protocol == "linear_probe" else {"k": min(k, len(draws[0][1]))}
    for seed, train, test_rows in draws:
        features = load_rows(trained, train, "euclidean").astype(np.float64)
        targets = np.searchsorted(names, numbers[train])
        if protocol == "knn":
            from sklearn.neighbors import KNeighborsClassifier  # a second that no other evaluation needs

            vote: Any = {"metric": "cosine", "weights": lambda distance: np.exp((1 - distance) / TEMPERATURE)}
            voters = (KNeighborsClassifier(min(depth, len(train)), **vote) for depth in (k, 1))
            models = [voter.fit(features, targets) for voter in voters]
        else:
            models = [_strength_search(features, targets, seed)]
            settings["strength"].append(STRENGTHS[models[0].best_index_])
        features = load_rows(tested, test_rows, "euclidean").astype(np.float64)
        right = np.searchsorted(names, test_numbers[test_rows])[:, None]
        for model, depths in zip(models, ({"top1": 1, "top5": 5}, {"1nn": 1}), strict=False):
            scores = model.predict_proba(features)
            rank = (scores >= np.take_along_axis(scores, right, axis=1)).sum(axis=1)
            for name, depth in depths.items():
                per_seed.setdefault(name, []).append(mean((rank <= depth).astype(float).tolist()))
    return ProbeResult(
        protocol=protocol,
        design="halves" if test is None else "closed set",
        per_seed=per_seed,
        seeds=[] if test is not None and protocol == "knn" else [seed for seed, *_ in draws],
        num_train=len(draws[0][1]),
        num_test=len(draws[0][2]),
        num_classes=len(names),
        settings=settings,
        notes=notes,
    )


def _strength_search(train: np.ndarray, classes: np.ndarray, seed: int) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    counts = np.bincount(classes)
    aside = _drawn(classes, np.where(counts > 1, np.maximum(1, counts // 5), 0), (seed, 1))
    if not aside.any():
        raise UserError("every class has a single training row, so none can choose the regularisation")
    # With many classes every entry of the gradient is small from the start, about 1 / classes.
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000, tol=1e-3 / len(counts)))
    # scikit-learn's C multiplies the sum of the losses.
    strengths = {"logisticregression__C": [1 / (strength * len(train)) for strength in STRENGTHS]}
    search = GridSearchCV(model, strengths, cv=[(np.flatnonzero(~aside), np.flatnonzero(aside))])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return search.fit(train, classes)


def draw_episodes(
    labels: Numbers, within: Numbers | None, groups: Numbers | None, *, ways: int, shots: int, seed: int = 0
) -> Iterator[Int64[np.ndarray, "ways drawn"]]:
    """Yield episodes without end: rows of `ways` classes, `shots` to learn from and a last one to classify."""
    cells: Any = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))  # rows by super-category, class, camera
    columns = ([0] * len(labels) if column is None else column.tolist() for column in (within, labels, groups))
    for row, (above, label, camera) in enumerate(zip(*columns, strict=True)):
        if NO_GROUP not in (above, camera):
            cells[above][label][camera].append(row)
    pools, most = [], 0  # pools are all equally likely
    for classes in cells.values():
        cameras = sorted({camera for rows_of in classes.values() for camera in rows_of})
        pairs = [((a, shots), (b, 1)) for a, b in permutations(cameras, 2)]
        for sides in [((0, shots + 1),)] if groups is None else pairs:
            drawable = [each for each in classes.values() if all(len(each.get(a, ())) >= number for a, number in sides)]
            most = max(most, len(drawable))
            if len(drawable) >= ways:
                pools.append((drawable, sides))
    if not pools:
        among = " of one super-category" * (within is not None) + ", by two cameras," * (groups is not None)
        needed = f"it needs {ways} classes{among} of {shots + 1} images or more, and there are at most {most}"
        raise UserError(f"no episode can be drawn: {needed}")
    generator = random.Random(seed)
    while True:
        drawable, sides = generator.choice(pools)
        drawn = generator.sample(drawable, ways)
        yield np.array([[row for a, number in sides for row in generator.sample(each[a], number)] for each in drawn])


def few_shot(
    embeddings: Arrays,
    labels: Integers,
    *,
    within: Integers | None = None,
    groups: Integers | None = None,
    ways: int = 20,
    shots: int = 1,
    episodes: int = 10_000,
    seeds: Sequence[int] = (0,),
) -> ProbeResult:
    """Return how often the nearest of `ways` classes by cosine is right, each the mean of `shots` rows of length 1.

    Args:
        embeddings, labels: [row, dim] and integers [row].
        within: integers [row]: the super-category, −1 for none, in which each episode draws its classes.
        groups: integers [row]: the camera, −1 for none; shots are of one, the rows to classify of another. All pairs of
            cameras that can be drawn, in all super-categories, are equally likely.
        episodes: drawn by each seed, each with one more row of each class to classify; a tie is wrong.

    Source: SimpleShot (L2N) of Wang et al., 2019, https://arxiv.org/abs/1911.04623.

    Example:
        >>> few_shot(np.eye(2)[[0, 0, 1, 1]], [5, 5, 6, 6], ways=2, episodes=100).metrics
        {'accuracy': 1.0}
    """
    matrix = as_matrix(embeddings, side="test")
    check_rows(matrix, side="test", distance="cosine")
    unit = load_rows(matrix, slice(None), "cosine").astype(np.float64)
    columns: list[Any] = [
        None if column is None else integer_array(column, name=name, rows=len(unit), side="test")
        for name, column in (("label", labels), ("super-category", within), ("camera", groups))
    ]
    accuracy = np.zeros((len(seeds), episodes))
    for scores, seed in zip(accuracy, seeds, strict=True):
        drawn = draw_episodes(*columns, ways=ways, shots=shots, seed=seed)
        for episode, rows in enumerate(islice(drawn, episodes)):
            means = unit[rows[:, :-1]].mean(axis=1)
            means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)  # opposite shots have mean 0
            cosine = unit[rows[:, -1]] @ means.T
            scores[episode] = ((cosine >= cosine.diagonal()[:, None]).sum(axis=1) == 1).mean()
    center, half_width = float(accuracy.mean()), 1.96 * float(accuracy.std()) / accuracy.size**0.5
    return ProbeResult(
        protocol="few_shot",
        design="episodes",
        per_seed={"accuracy": accuracy.mean(axis=1).tolist()},
        seeds=[*seeds],
        num_train=ways * shots,
        num_test=ways,
        num_classes=ways,
        settings={"shots": shots, "episodes": episodes, "within": within is not None, "cameras": groups is not None},
        notes=["[95 % interval]: over episodes, not over other classes or trainings"],
        intervals={"accuracy": (center - half_width, center + half_width)},
    )

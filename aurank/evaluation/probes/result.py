"""Which rows train a probe and which test it (two sets that share classes, or halves of one), and what it found."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Int64

from aurank.errors import UserError
from aurank.evaluation.aggregate import mean
from aurank.evaluation.engine.inputs import Embeddings, Integers, check_matrix, integer_array, unique_ids
from aurank.evaluation.index.faiss_bridge import check_rows, take
from aurank.files import EXACT, checked, read_record, reading, write_text

FORMAT, VERSION = "aurank.probe", 1
TOP = (1, 5)
Rows: TypeAlias = Int64[np.ndarray, " row"]
HALVES_SEEDS = (0, 1, 2)
HELD_OUT = 0.2  # part of each class's training rows that chooses a linear probe's regularisation


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
    """What a probe trains and tests on.

    `design` is "closed set" (two sides) or "halves" (of the classes of one). All draws have the same numbers of rows.
    `num_left_out` counts the rows that cannot be used: test rows of classes that have no training row, or, in halves,
    classes of one row. `notes` say so in words.
    """

    design: str
    draws: tuple[Draw, ...]
    num_classes: int
    num_left_out: int
    notes: tuple[str, ...]

    @property
    def num_train(self) -> int:
        """Training rows of a draw."""
        return len(self.draws[0].train)

    @property
    def num_test(self) -> int:
        """Test rows of a draw."""
        return len(self.draws[0].test)


def split_rows(
    embeddings: Embeddings,
    labels: Integers,
    test: Embeddings | None,
    test_labels: Integers | None,
    *,
    distance: str,
    ids: Integers | None,
    seeds: Sequence[int] | None,
) -> ProbeSplit:
    """Return the split of rows and labels, which are checked; UserError where they do not fit each other."""
    if (test is None) != (test_labels is None):
        raise UserError("test and test_labels go together: give both, or neither to probe within the one set")
    side = "probed" if test is None else "training"
    check_matrix(embeddings, side=side)
    classes = integer_array(labels, name="label", rows=len(embeddings), side=side)
    numbers = None if ids is None else unique_ids(ids, rows=len(embeddings), side=side)
    test_classes = None
    if test is not None and test_labels is not None:
        check_matrix(test, side="test")
        if test.shape[1] != embeddings.shape[1]:
            raise UserError(
                f"the training embeddings have {embeddings.shape[1]} columns and the test embeddings "
                f"{test.shape[1]}: both must come from the same model"
            )
        test_classes = integer_array(test_labels, name="label", rows=len(test), side="test")
    split = split_labels(classes, test_classes, ids=numbers, seeds=seeds)
    for rows, name in ((embeddings, side), (test, "test")):
        if rows is not None:
            check_rows(rows, side=name, distance=distance)
    return split


def pick(embeddings: Embeddings, rows: Rows) -> Embeddings:
    """Return these rows, copied only where they are not the whole side in order."""
    whole = len(rows) == len(embeddings) and bool((np.diff(rows) > 0).all())
    return embeddings if whole else take(embeddings, rows)


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
    if test_labels is None:
        return _halves(labels, order, HALVES_SEEDS if seeds is None else tuple(seeds))
    return _closed_set(labels, test_labels, order, (0,) if seeds is None else tuple(seeds))


def held_out(classes: Rows, *, seed: int) -> Bool[np.ndarray, " row"]:
    """Mark the rows held out: a fifth of each class, rounded down but at least one, none of a class of one row."""
    counts = np.bincount(classes)
    number = np.where(counts > 1, np.maximum(1, np.floor(HELD_OUT * counts)), 0).astype(np.int64)
    return _drawn(classes, number, np.random.default_rng([seed, 1]))


def _closed_set(
    labels: Rows, test_labels: Int64[np.ndarray, " test"], order: Rows, seeds: tuple[int, ...]
) -> ProbeSplit:
    names, classes = np.unique(labels[order], return_inverse=True)
    if len(names) < 2:
        raise UserError("the training rows are all of one class: a probe needs two to tell apart")
    seen = np.isin(test_labels, names)
    if not seen.any():
        raise UserError(
            "no class of the test rows occurs among the training rows: leave the training rows out, so that one half "
            "of the test rows trains and the other tests"
        )
    test, left_out = np.flatnonzero(seen), int((~seen).sum())
    test_classes = np.searchsorted(names, test_labels[test])
    absent = _classes(len(np.unique(test_labels[~seen])))
    note = f"left out: {left_out:,} of {len(seen):,} test rows, whose {absent} no training row has"
    draws = tuple(Draw(seed, order, test, classes.reshape(-1), test_classes) for seed in seeds)
    return ProbeSplit("closed set", draws, len(names), left_out, (note,) if left_out else ())


def _halves(labels: Rows, order: Rows, seeds: tuple[int, ...]) -> ProbeSplit:
    _, every, counts = np.unique(labels[order], return_inverse=True, return_counts=True)
    usable = counts > 1
    if usable.sum() < 2:
        raise UserError(
            "a probe within one set trains on one half of each class and tests on the other, and needs two classes of "
            f"two rows or more: there are {usable.sum()}, among {_classes(len(counts))}"
        )
    kept = usable[every.reshape(-1)]
    rows, left_out = order[kept], int((~kept).sum())
    classes = np.unique(labels[rows], return_inverse=True)[1].reshape(-1)
    number = (np.bincount(classes) + 1) // 2
    draws = []
    for seed in seeds:
        train = _drawn(classes, number, np.random.default_rng([seed, 0]))
        draws.append(Draw(seed, rows[train], rows[~train], classes[train], classes[~train]))
    notes = (f"left out: {left_out:,} of {len(labels):,} rows, the only one of their class",) if left_out else ()
    return ProbeSplit("halves", tuple(draws), int(usable.sum()), left_out, notes)


def _drawn(
    classes: Rows, number: Int64[np.ndarray, " class"], generator: np.random.Generator
) -> Bool[np.ndarray, " row"]:
    """Mark `number` random rows of each class."""
    order = np.lexsort((generator.permutation(len(classes)), classes))
    ordered = classes[order]
    place = np.arange(len(classes)) - np.searchsorted(ordered, ordered)
    chosen = np.zeros(len(classes), dtype=np.bool_)
    chosen[order] = place < number[ordered]
    return chosen


def _classes(count: int) -> str:
    return f"{count:,} {'class' if count == 1 else 'classes'}"


@dataclass(frozen=True)
class ProbeResult:
    """Accuracies of one probe, in [0, 1], and all that they depend on.

    `protocol`: "knn" or "linear_probe". `design`: "closed set", where one set of rows trains and another tests, or
    "halves", where each seed draws half of the rows of every class for training and the others test. `metrics`: means
    over the seeds, by the names of docs/metrics.md; `per_seed` their values, in the order of `seeds`, which is empty
    where nothing was drawn. `num_train`, `num_test` and `num_classes` are those of one draw; `num_left_out` counts rows
    that were not used. `settings` hold every option, those that were chosen too. `notes`: what a reader must know.

    Example:
        >>> result = ProbeResult("knn", "halves", {"top1": 0.5}, {"top1": [0.4, 0.6]}, [0, 1], 2, 2, 2, 0, {"k": 1}, [])
        >>> {name: round(value, 4) for name, value in result.spread.items()}
        {'top1': 0.1414}
    """

    __pydantic_config__ = EXACT

    protocol: str
    design: str
    metrics: dict[str, float]
    per_seed: dict[str, list[float]]
    seeds: list[int]
    num_train: int
    num_test: int
    num_classes: int
    num_left_out: int
    settings: dict[str, Any]
    notes: list[str]

    @property
    def spread(self) -> dict[str, float]:
        """Sample standard deviation over the seeds, by metric; empty with fewer than two."""
        if len(self.seeds) < 2:
            return {}
        squares = {
            name: [(value - self.metrics[name]) ** 2 for value in values] for name, values in self.per_seed.items()
        }
        return {name: math.sqrt(math.fsum(values) / (len(values) - 1)) for name, values in squares.items()}

    def __str__(self) -> str:
        """Return a table for people: one metric a line, its spread beside it, then what was counted and how."""
        width = max(len(name) for name in self.metrics)
        lines = [self.protocol]
        for name, value in self.metrics.items():
            spread = f" ± {self.spread[name]:.4f}" if name in self.spread else ""
            lines.append(f"{name:<{width}}  {value:.4f}{spread}")
        lines.append(
            f"{self.num_test:,} test rows, {self.num_train:,} training rows, {self.num_classes:,} classes; {self._how}"
        )
        lines.append(", ".join(f"{name.replace('_', ' ')} {_words(value)}" for name, value in self.settings.items()))
        return "\n".join([*lines, *self.notes])

    @property
    def _how(self) -> str:
        seeds = f"seed{'s' if len(self.seeds) > 1 else ''} {', '.join(map(str, self.seeds))}"
        if len(self.seeds) > 1:
            seeds = f"mean ± standard deviation over {seeds}"
        if self.design == "halves":
            return f"halves of each class, {seeds}"
        return f"{self.design}, {seeds}" if self.seeds else self.design

    def save(self, path: Path | str) -> None:
        """Write the result as one JSON file, whole or not at all."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self), "spread": self.spread}
        write_text(Path(path), json.dumps(content, indent=2) + "\n")

    @classmethod
    def load(cls, path: Path | str) -> "ProbeResult":
        """Return the result that `save` wrote; UserError if the file is missing or something else."""
        content = read_record(Path(path), "a probe's result", named=FORMAT, versions=(VERSION,), remedy="probe again")
        with reading(path, "a probe's result", remedy="probe again"):
            result = checked({name: content[name] for name in cls.__dataclass_fields__}, cls)
            str(result)  # what does not fit together cannot be shown
            return result


def result_of(
    protocol: str,
    split: ProbeSplit,
    found: Sequence[Mapping[str, float]],
    *,
    seeds: Sequence[int],
    settings: dict[str, Any],
    notes: Sequence[str] = (),
) -> ProbeResult:
    """Return the ProbeResult of what each draw of a split gave."""
    per_seed = {name: [values[name] for values in found] for name in found[0]}
    return ProbeResult(
        protocol=protocol,
        design=split.design,
        metrics={name: mean(values) for name, values in per_seed.items()},
        per_seed=per_seed,
        seeds=list(seeds),
        num_train=split.num_train,
        num_test=split.num_test,
        num_classes=split.num_classes,
        num_left_out=split.num_left_out,
        settings=settings,
        notes=[*split.notes, *notes],
    )


def top(ranks: Int64[np.ndarray, " query"]) -> dict[str, float]:
    """Return the part of the ranks within the first k, as "top{k}"."""
    return {f"top{k}": mean((ranks <= k).astype(np.float64)) for k in TOP}


def _words(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(_words(one) for one in value)
    return f"{value:g}" if isinstance(value, float) else str(value)

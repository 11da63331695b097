"""Whole reports are exact: every number equals the sorted list's, and nothing but the data changes a digit."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.brute_force import exact_lists
from testing.listing import Item, expected

from aurank.errors import UserError
from aurank.evaluation import Report, evaluate, metrics
from aurank.evaluation.engine.scores import ExactScores

DISTANCES = ("cosine", "dot", "euclidean")
BACKENDS = ("numba", "torch")
SMALL = {"numba": "14KiB", "torch": "32KiB"}  # tiles of 16 by 16 and not larger, up to a width of 6
BEYOND = 10**6  # a k larger than any gallery here
# Of whole length, so that a cosine is a quotient of integers: equal ones are equal numbers, others far apart.
WHOLE_LENGTH = np.array([(0, 0, 0, 1), (1, 1, 1, 1), (0, 1, 2, 2), (0, 0, 3, 4), (1, 2, 2, 4), (1, 3, 3, 9)])


def names(*cuts: int) -> list[str]:
    """Every metric there is, over queries and over classes, at these k."""
    plain = dict.fromkeys(name.format(k=k) for name in metrics.NAMES for k in cuts)
    return [prefix + name for prefix in ("", "macro:") for name in plain]


def same_report(one: Report, other: Report, order: np.ndarray | None = None) -> None:
    """Nothing, or a failure unless all digits are equal; row i of `other` is row `order[i]` of `one`."""
    assert one.metrics == other.metrics
    assert one.tie_bounds == other.tie_bounds
    assert str(one) == str(other)
    assert np.array_equal(one.curve.precision, other.curve.precision)
    rows = other.per_query["query"] if order is None else order[other.per_query["query"]]
    back = np.argsort(rows)
    assert np.array_equal(rows[back], one.per_query["query"])
    assert list(one.per_query) == list(other.per_query)
    of_rows = {"query"} if order is None else {"query", "first_positive"}  # another of equal scores in another order
    for name in set(one.per_query) - of_rows:
        assert np.array_equal(one.per_query[name], other.per_query[name][back]), name


# Every number of a report against the sorted list


def whole_numbers(chance: np.random.Generator, rows: int, distance: str) -> np.ndarray:
    """Few different rows of small integers, so that scores tie everywhere."""
    if distance != "cosine":
        return chance.integers(-2, 3, (rows, 4)).astype(np.float64)
    chosen = chance.permuted(WHOLE_LENGTH[chance.integers(0, len(WHOLE_LENGTH), rows)], axis=1)
    return (chosen * chance.choice([-1, 1], chosen.shape) * chance.integers(1, 4, (rows, 1))).astype(np.float64)


def fractions(chance: np.random.Generator, rows: int, pool: np.ndarray) -> np.ndarray:
    """Rows drawn from a pool with repetition, and multiplied by a power of two, which changes no cosine."""
    return pool[chance.integers(0, len(pool), rows)] * chance.choice([0.5, 1.0, 1.0, 2.0], (rows, 1))


@st.composite
def cases(draw: Any) -> dict[str, Any]:
    """Arguments of `evaluate`: who is compared, in which numbers, by which distance."""
    chance = np.random.default_rng(draw(st.integers(0, 2**32)))
    mode = draw(st.sampled_from(["own gallery", "separate", "with ids"]))
    distance = draw(st.sampled_from(DISTANCES))
    kind = draw(st.sampled_from([np.float16, np.float32, np.float64, np.int8, torch.bfloat16]))
    rows, there = draw(st.integers(2, 36 if mode == "own gallery" else 20)), draw(st.integers(1, 40))
    classes = draw(st.sampled_from([1, 3, 8]))
    if kind is np.int8 or draw(st.booleans()):
        sides = [whole_numbers(chance, size, distance) for size in (rows, there)]
    else:
        pool = chance.normal(size=(draw(st.integers(1, 30)), draw(st.integers(3, 6))))
        sides = [fractions(chance, size, pool) for size in (rows, there)]
    if kind not in (np.float16, np.int8):  # sizes beyond these two types
        scale = 2.0 ** draw(st.sampled_from([0, 40, -40]))
        sides = [side * scale for side in sides]
    given = [torch.from_numpy(side).to(kind) if kind is torch.bfloat16 else side.astype(kind) for side in sides]
    case: dict[str, Any] = {"distance": distance, "embeddings": given[0]}
    case["labels"] = (chance.integers(-classes, classes, rows) * 2**40).tolist()
    if mode != "own gallery":
        case["gallery"] = given[1]
        case["gallery_labels"] = (chance.integers(-classes, classes, there) * 2**40).tolist()
    if mode == "with ids":  # about half of the items are on both sides
        case["ids"], case["gallery_ids"] = (chance.permutation(60)[:size].tolist() for size in (rows, there))
    return case


def check_means(report: Report, name: str, values: Sequence[float], labels: Sequence[int]) -> None:
    classes = [[v for v, own in zip(values, labels, strict=True) if own == label] for label in sorted(set(labels))]
    over_classes = math.fsum(math.fsum(members) / len(members) for members in classes) / len(classes)
    assert report.metrics[name] == pytest.approx(math.fsum(values) / len(values), abs=1e-12), name
    assert report.metrics[f"macro:{name}"] == pytest.approx(over_classes, abs=1e-12), name


def check_report(report: Report, found: dict[int, list[Item]], labels: Sequence[int], cuts: Sequence[int]) -> None:
    """Nothing, or a failure unless every number is that of the sorted lists of the queries with a positive."""
    lists = list(found.values())
    own = [labels[row] for row in found]
    for template in metrics.NAMES:
        for k in cuts:
            name = template.format(k=k)
            values = [expected(items, template, k=k, ties=report.ties) for items in lists]
            assert report.values(name) == pytest.approx(values, abs=1e-12), name
            check_means(report, name, values, own)
    for bound, rule in zip(report.tie_bounds, ("pessimistic", "optimistic"), strict=True):
        every = [expected(items, "mauprc", ties=rule) for items in lists]
        assert bound == pytest.approx(math.fsum(every) / len(every), abs=1e-12)
    positives = [sum(positive for _, positive in items) for items in lists]
    # The best and the worst positive stand behind every negative that scores as high.
    ahead = [[sum(other >= score for other, p in items if not p) for score, p in items if p] for items in lists]
    integers = {
        "query": list(found),
        "label": own,
        "num_positives": positives,
        "num_negatives": [len(items) - count for items, count in zip(lists, positives, strict=True)],
        "first_rank": [1 + min(counts) for counts in ahead],
        "last_rank": [len(counts) + max(counts) for counts in ahead],
    }
    assert {name: report.per_query[name].tolist() for name in integers} == integers
    assert (report.num_queries, report.num_lone_queries) == (len(labels), len(labels) - len(found))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    case=cases(),
    ties=st.sampled_from(metrics.TIES),
    backend=st.sampled_from(BACKENDS),
    small=st.booleans(),
    k=st.integers(1, 45),
)
def test_every_number_of_a_report_is_that_of_the_sorted_lists(
    case: dict[str, Any], ties: str, backend: str, small: bool, k: int
) -> None:
    found, cuts = exact_lists(**case), (1, k, BEYOND)
    options: dict[str, Any] = {"ties": ties, "backend": backend, "metrics": names(*cuts)}
    options["max_memory"] = SMALL[backend] if small else "1GiB"
    if not found:
        with pytest.raises(UserError, match="has a positive"):
            evaluate(**case, **options)
        return
    report = evaluate(**case, **options)
    check_report(report, found, case["labels"], cuts)
    assert report.num_gallery == len(case.get("gallery", case["embeddings"]))


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("mode", ["own gallery", "separate", "with ids"])
def test_duplicates_and_lone_labels_are_counted_as_in_the_sorted_lists(mode: str, kind: Any) -> None:
    chance = np.random.default_rng(0)
    rows = fractions(chance, 50, chance.normal(size=(25, 5))).astype(kind)
    labels = [11, 12, *chance.choice([-5, 7, 2**31 + 1, 2**31 + 2, 2**62], 48).tolist()]
    case: dict[str, Any] = {"embeddings": rows, "labels": labels}
    if mode != "own gallery":  # half of the queries are in the gallery as well
        case = {"embeddings": rows[:20], "labels": labels[:20], "gallery": rows[10:], "gallery_labels": labels[10:]}
    if mode == "with ids":
        case |= {"ids": [*range(20)], "gallery_ids": [*range(10, 50)]}
    report = evaluate(**case, metrics=names(1, 5, BEYOND))
    assert report.num_lone_queries >= 2
    check_report(report, exact_lists(**case), case["labels"], (1, 5, BEYOND))


# Nothing but the data changes a digit


def close_calls(rows: int = 2500, dim: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Clusters of 50, whose members differ by 1e-8 in every number or, in half of them, by 1e-8 in their cosines.

    Every seventh row of the second half is a copy of one of the first, and a few rows are copies of one of their own
    label. Of each label there are five rows: within a cluster in the first half, wherever they fall in the second.
    """
    chance = np.random.default_rng(7)
    noise = np.where(np.arange(rows) // 50 % 2, 1e-8, 1e-4)[:, None]
    embeddings = np.repeat(chance.normal(size=(rows // 50, dim)), 50, axis=0) + noise * chance.normal(size=(rows, dim))
    copies = np.arange(rows // 2, rows, 7)
    embeddings[copies] = embeddings[copies - rows // 2]
    embeddings[10::250] = embeddings[0::250]
    labels = np.arange(rows) // 50 * 10 + np.arange(rows) % 10
    labels[rows // 2 :] = chance.permutation(labels[rows // 2 :])
    order = chance.permutation(rows)
    return embeddings[order], labels[order]


@pytest.mark.slow
def test_blocks_threads_backends_and_row_order_change_no_digit_of_close_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings, labels = close_calls()
    asked = names(10)
    reference = evaluate(embeddings, labels, metrics=asked, max_memory="1GiB")
    low, high = reference.tie_bounds
    assert low < reference.mauprc < high
    order, shuffled = np.arange(len(labels)), np.random.default_rng(8).permutation(len(labels))
    for memory, threads, backend, rows in (
        ("2MiB", 1, "numba", order),
        ("2MiB", 2, "numba", shuffled),
        ("1GiB", 2, "numba", order),
        ("2MiB", 2, "torch", shuffled),
    ):
        torch.set_num_threads(threads)
        options: dict[str, Any] = {"max_memory": memory, "backend": backend, "metrics": asked}
        same_report(reference, evaluate(embeddings[rows], labels[rows], **options), rows)
    # Without any product: the exact score of every pair.
    monkeypatch.setattr(ExactScores, "error", lambda *_: 1e30)
    same_report(reference, evaluate(embeddings, labels, metrics=asked))


@pytest.mark.parametrize("distance", DISTANCES)
def test_renamed_labels_change_no_digit_of_a_report(distance: str) -> None:
    chance = np.random.default_rng(9)
    embeddings = fractions(chance, 200, chance.normal(size=(60, 5)))
    labels = chance.integers(0, 30, 200)
    anew = np.concatenate([[-(2**63), 2**63 - 1, 0], chance.integers(-(2**62), 2**62, 27)])[chance.permutation(30)]
    one = evaluate(embeddings, labels, distance=distance, metrics=names(1, 10))
    other = evaluate(embeddings, anew[labels], distance=distance, metrics=names(1, 10), max_memory="64KiB")
    assert np.array_equal(other.per_query["label"], anew[one.per_query["label"]])
    other.per_query["label"] = one.per_query["label"]
    same_report(one, other)


# Collapsed models


def collapsed(noise: float, rows: int = 150) -> tuple[np.ndarray, np.ndarray]:
    """One point, up to noise; labels of which some are frequent, most are rare and a few lone."""
    chance = np.random.default_rng(10)
    labels = np.minimum(chance.geometric(0.12, rows), 30) - 20
    return chance.normal(size=6) + noise * chance.normal(size=(rows, 6)), labels


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize(
    ("backend", "kind", "noise"), [("numba", np.float64, 0.0), ("torch", np.float32, 1e-9), ("numba", np.float16, 1e-9)]
)
def test_equal_rows_score_the_prevalence_of_each_query(distance: str, backend: str, kind: Any, noise: float) -> None:
    embeddings, labels = collapsed(noise)
    rows = embeddings.astype(kind)
    assert len(np.unique(rows, axis=0)) == 1  # what noise there was is below what the type can hold
    options: dict[str, Any] = {"distance": distance, "backend": backend}
    same = labels[:, None] == labels
    own, part = same.sum(axis=1) - 1, same[:, :100].sum(axis=1)
    assert np.ptp(own) > 10
    for report, positives, gallery in (
        (evaluate(rows, labels, **options, max_memory="64KiB"), own, 149),
        (evaluate(rows, labels, rows[:100], labels[:100], **options), part, 100),
    ):
        kept = np.flatnonzero(positives)
        assert report.per_query["query"].tolist() == kept.tolist()
        prevalence = (positives / gallery)[kept]
        assert report.per_query["ap"] == pytest.approx(prevalence, rel=1e-15)
        low, high = report.tie_bounds
        assert low < report.mauprc < high == 1.0
        assert f"{report.mauprc:.4f}  (threshold; equal scores allow {low:.4f} to 1.0000)" in str(report)
        assert report.metrics["recall@1"] == report.metrics["auroc"] == 0.0

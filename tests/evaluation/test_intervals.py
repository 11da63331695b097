"""Bootstrap by class: against a slow loop, against theory; the same digits whatever the order, names and threads."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from testing.listing import ranks_of, read

from aurank.evaluation.bootstrap import CELLS, Resampling, drawn_units, resampled_means, unit_terms
from aurank.evaluation.evaluate import build_report


def per_query(values: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    return {"query": np.arange(len(values)), "label": labels.astype(np.int64), "ap": values}


def data(seed: int, *, classes: int = 30) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(seed)
    labels = chance.integers(0, classes, 10 * classes)
    values = 0.5 + 0.2 * chance.normal(size=classes)[labels] + 0.1 * chance.normal(size=len(labels))
    return np.clip(values, 0, 1), labels


def interval(values: np.ndarray, labels: np.ndarray, **options: Any) -> tuple[float, float]:
    report = build_report(ranks_of([read("+ -")] * len(values)), labels=labels, metrics=["mauprc"])
    return replace(report, per_query=per_query(values, labels)).with_intervals(**options).intervals.bounds["mauprc"]


@pytest.mark.parametrize("name", ["mauprc", "macro:mauprc"])
def test_resampled_means_equal_those_of_a_slow_loop_that_draws_classes(name: str) -> None:
    values, labels = data(0)
    groups = [values[labels == label].tolist() for label in np.unique(labels)]
    parts = [(math.fsum(g), float(len(g))) if name == "mauprc" else (math.fsum(g) / len(g), 1.0) for g in groups]
    parts.sort(key=lambda part: (part[1], part[0]))
    drawn = np.random.default_rng(5).integers(len(parts), size=(200, len(parts)))
    slow = [sum(parts[i][0] for i in row) / sum(parts[i][1] for i in row) for row in drawn.tolist()]
    units, _ = drawn_units(per_query(values, labels))
    (fast,) = resampled_means(unit_terms(name, values, units)[None], resamples=200, seed=5)
    assert fast == pytest.approx(slow, abs=1e-12)
    low, high = Resampling(200, 5, 0.9).interval(fast)
    assert (low, high) == pytest.approx(np.percentile(slow, [5, 95]), abs=1e-12)


def test_row_order_label_names_and_threads_change_no_digit() -> None:
    values, labels = data(1, classes=300)
    reference = interval(values, labels)
    order = np.random.default_rng(9).permutation(len(values))
    names = np.random.default_rng(8).permutation(300) * 1000 - 7
    assert interval(values[order], names[labels][order]) == reference
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert interval(values, labels) == reference
    finally:
        torch.set_num_threads(threads)
    assert interval(values, labels, seed=1) != reference


def test_intervals_have_the_width_of_theory() -> None:
    values = np.random.default_rng(3).normal(0.5, 0.1, 2000)
    low, high = interval(values, np.arange(2000), resamples=4000)
    deviation = values.std() / math.sqrt(2000)
    assert (values.mean() - low) / deviation == pytest.approx(1.96, abs=0.15)
    assert (high - values.mean()) / deviation == pytest.approx(1.96, abs=0.15)
    narrow = interval(values, np.arange(2000), resamples=4000, level=0.5)
    assert (narrow[1] - narrow[0]) / deviation == pytest.approx(2 * 0.674, abs=0.1)


def test_equal_values_leave_no_doubt() -> None:
    assert interval(np.full(12, 0.25), np.arange(12) % 3) == (0.25, 0.25)
    assert interval(np.zeros(12), np.arange(12) % 3) == (0.0, 0.0)
    # 0.1 has no end in binary: only exact addition gives every draw the same digits.
    low, high = interval(np.full(999, 0.1), np.arange(999))
    assert low == high == pytest.approx(0.1, abs=1e-12)


def test_more_units_than_are_drawn_at_a_time_give_the_same_draws_in_one_row_each() -> None:
    # One resample more than a piece holds: the pieces continue one stream of draws.
    units = CELLS // 64
    terms = np.stack([np.arange(units) % 7 / 7, np.ones(units)], axis=1)
    (many,) = resampled_means(terms[None], resamples=65, seed=0)
    (few,) = resampled_means(terms[None], resamples=64, seed=0)
    assert np.array_equal(many[:64], few)
    assert many[64] not in many[:64]

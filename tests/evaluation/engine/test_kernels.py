"""Every kernel counts what comparing each score with each edge counts."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from aurank.errors import UserError
from aurank.evaluation.engine import compiled, tiles
from aurank.evaluation.engine.tiles import count_by_search
from aurank.evaluation.inputs import Work

CPU = np.zeros((1, 1))


def count(backend: str, scores: np.ndarray, *arguments: Any) -> tuple[np.ndarray, list[tuple[int, int, int]]]:
    above, near = np.zeros(len(arguments[2]), np.int64), np.empty((3, 2 * scores.size), np.int32)
    if backend == "torch":
        near = count_by_search(torch.from_numpy(scores), *arguments, above)
    else:
        near = near[:, : compiled.count(scores, *arguments, above, near)]
    return above, list(zip(*near.tolist(), strict=True))


def tile(counts: list[int], *, width: float, dtype: type, others: int = 70, spread: float = 0.3, seed: int = 0):  # type: ignore[no-untyped-def]
    """Return scores [query, other], some at the edges and some left out, so many thresholds each, and their edges."""
    chance = np.random.default_rng(seed)
    offset = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    scores = spread * chance.normal(size=(len(counts), others)).astype(dtype)
    thresholds = np.empty(offset[-1])
    for start, stop in pairwise(offset):
        thresholds[start:stop] = np.sort(spread * chance.normal(size=stop - start))
        thresholds[start + 1 : stop : 3] = thresholds[start : stop - 1 : 3]  # equal ones
    rounding = 2 * float(np.finfo(dtype).eps)
    room = width + rounding * np.abs(thresholds)
    low, high = (thresholds - room).astype(dtype), (thresholds + room).astype(dtype)
    for query, (start, stop) in enumerate(pairwise(offset)):
        some = min(stop - start, others // 4)
        scores[query, :some] = low[start:stop][:some]
        scores[query, some : 2 * some] = high[start:stop][:some]
    scores[chance.random(scores.shape) < 0.1] = -np.inf
    errors = np.full(len(counts), width)
    return (scores, offset[:-1], offset[1:], thresholds, 1.0, errors, rounding), (low, high)


def counted_by_hand(scores: np.ndarray, first: np.ndarray, last: np.ndarray, low: np.ndarray, high: np.ndarray):  # type: ignore[no-untyped-def]
    """Return how many scores are above each upper edge, and each near score with the first threshold not passed."""
    query = np.repeat(np.arange(len(scores)), last - first)
    near = set()
    for row, column in np.ndindex(scores.shape):
        passed = first[row] + int((high[first[row] : last[row]] < scores[row, column]).sum())
        if passed < last[row] and low[passed] <= scores[row, column]:
            near.add((row, column, passed))
    return (scores[query] > high[:, None]).sum(1), near


COUNTS = {
    "few": [1, 4, 0, 2, 0, 0, 3, 4, 1, 2] * 4,
    "none": [0, 0, 0],
    "around the limit": [*range(compiled.MOST_DIRECT - 1, compiled.MOST_DIRECT + 2), 0, compiled.MOST_DIRECT + 2],
    "many": [280, 25, 0, 500],
    "one query": [40],
}


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("kind", list(COUNTS))
@pytest.mark.parametrize("width", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_kernel_counts_what_comparing_every_pair_counts(
    backend: str, kind: str, width: float, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "PADDED", 2000)
    case, edges = tile(COUNTS[kind], width=width, dtype=dtype)
    above, near = counted_by_hand(*case[:3], *edges)
    counted, listed = count(backend, *case)
    assert (counted == above).all()
    assert len(listed) == len(near)
    assert set(listed) == near
    if near and backend == "numba":
        assert compiled.count(*case, np.zeros(len(above), np.int64), np.empty((3, len(near) - 1), np.int32)) == -1


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("number", [60, 400])
def test_thresholds_that_all_but_coincide_are_told_apart(backend: str, number: int) -> None:
    third = number // 3
    middle = np.nextafter(np.full(number, 0.5, np.float32), np.float32(1))
    middle[:third], middle[2 * third :] = 0.5, np.nextafter(middle[0], np.float32(1))
    scores = np.array([[0.25, 0.5, middle[third], middle[-1], 0.75]], np.float32)
    ranges = np.array([0]), np.array([number])
    above, near = counted_by_hand(scores, *ranges, middle, middle)
    counted, listed = count(backend, scores, *ranges, middle.astype(np.float64), 1.0, np.zeros(1), 0.0)
    assert (counted == above).all()
    assert set(listed) == near


def test_a_backend_that_is_unknown_or_cannot_be_had_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    how: dict[str, Any] = {"distributed": False}
    assert Work.of(CPU, **how).backend == "numba"
    assert Work.of(CPU, backend="torch", **how).backend == "torch"
    with pytest.raises(UserError, match="backend must be one of auto, numba, torch; got 'jax'"):
        Work.of(CPU, backend="jax", **how)
    monkeypatch.setitem(__import__("sys").modules, "numba", None)
    assert Work.of(CPU, **how).backend == "torch"
    with pytest.raises(UserError, match="needs the package numba"):
        Work.of(CPU, backend="numba", **how)

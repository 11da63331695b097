"""Every kernel counts what comparing each score with each edge counts."""

from typing import Any

import numpy as np
import pytest
import torch
from testing.listing import COUNTS, counted_by_hand, tile

from aurank.errors import UserError
from aurank.evaluation.engine import compiled, tiles
from aurank.evaluation.engine.tiles import Work, count_by_search

CPU = np.zeros((1, 1))


def count(backend: str, scores: np.ndarray, *arguments: Any) -> tuple[np.ndarray, list[tuple[int, int, int]]]:
    above, near = np.zeros(len(arguments[2]), np.int64), np.empty((3, 2 * scores.size), np.int32)
    if backend == "torch":
        near = count_by_search(torch.from_numpy(scores), *arguments, above)
    else:
        near = near[:, : compiled.count(scores, *arguments, above, near)]
    return above, list(zip(*near.tolist(), strict=True))


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

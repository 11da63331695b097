"""Every kernel counts what comparing each score with each edge counts."""

from typing import Any

import numpy as np
import pytest
import torch
from testing.listing import COUNTS, counted_by_hand, tile

from aurank.errors import UserError
from aurank.evaluation.engine.codes import Edges
from aurank.evaluation.engine.tiles import check_backend, make_kernel

CPU = torch.device("cpu")
RARE = {"numba, all at once": -(10**9), "numba, all picked": 10**9}
KERNELS = ["numba", *RARE, "torch"]


def kernel_of(name: str) -> Any:
    """Return a kernel by name; all at once: none that picks few scores, all picked: none that compares all."""
    if name not in RARE:
        return make_kernel(name)
    from aurank.evaluation.engine.compiled import CompiledKernel

    return CompiledKernel(RARE[name])


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("kind", list(COUNTS))
@pytest.mark.parametrize("width", [0.0, 0.1])
@pytest.mark.parametrize(("dtype", "transposed"), [(np.float32, False), (np.float32, True), (np.float64, True)])
def test_a_kernel_counts_what_comparing_every_pair_counts(
    backend: str, kind: str, width: float, dtype: type, transposed: bool
) -> None:
    kernel = kernel_of(backend)
    scores, edges = tile(COUNTS[kind], width=width)
    scores = scores.astype(dtype)
    edges = Edges(edges.offset, edges.low.astype(dtype), edges.high.astype(dtype))
    above, near, pairs = counted_by_hand(scores, edges)
    given = torch.from_numpy(np.ascontiguousarray(scores.T) if transposed else scores)
    none = Edges(np.zeros(len(given) + 1, np.int64), edges.low[:0], edges.high[:0])
    sides = [none, edges] if transposed else [edges]
    *_, counted = kernel.count(given, sides, room=len(pairs))
    assert (counted[0] == above).all()
    assert (counted[1] == near).all()
    assert len(counted[2]) == len(pairs)
    assert set(zip(counted[2].tolist(), counted[3].tolist(), strict=True)) == pairs
    *_, unlisted = kernel.count(given, sides, room=None)
    assert (unlisted[1] == near).all()
    assert len(unlisted[2]) == 0
    if pairs:
        assert kernel.count(given, sides, room=len(pairs) - 1) is None


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("kind", list(COUNTS))
def test_a_tile_that_serves_both_of_its_sides_counts_each(backend: str, kind: str) -> None:
    scores, edges = tile(COUNTS[kind], width=0.1)
    other = Edges(np.array([*range(scores.shape[1]), scores.shape[1] - 1]), edges.low[:1], edges.high[:1])
    low = np.linspace(-0.5, 0.5, scores.shape[1] - 1).astype(scores.dtype)
    other = other._replace(low=low, high=low + scores.dtype.type(0.1))
    counted = kernel_of(backend).count(torch.from_numpy(scores), [edges, other], room=scores.size * 64)
    for side, (held, table) in zip(counted, ((edges, scores), (other, scores.T)), strict=True):
        above, near, pairs = counted_by_hand(table, held)
        assert (side[0] == above).all()
        assert (side[1] == near).all()
        assert set(zip(side[2].tolist(), side[3].tolist(), strict=True)) == pairs


@pytest.mark.parametrize("backend", KERNELS)
def test_thresholds_that_all_but_coincide_are_told_apart(backend: str) -> None:
    middle = np.nextafter(np.full(60, 0.5, np.float32), np.float32(1))
    middle[:20], middle[40:] = 0.5, np.nextafter(middle[0], np.float32(1))
    scores = np.array([[0.25, 0.5, middle[0], middle[50], 0.75]], np.float32)
    edges = Edges(np.array([0, 60]), middle, middle)
    above, near, _ = counted_by_hand(scores, edges)
    counted = kernel_of(backend).count(torch.from_numpy(scores), [edges], room=None)[0]
    assert (counted[0] == above).all()
    assert (counted[1] == near).all()


def test_a_backend_that_is_unknown_or_does_not_fit_the_device_is_refused() -> None:
    assert check_backend("auto", CPU) == "numba"
    assert check_backend("torch", CPU) == "torch"
    assert check_backend("auto", torch.device("cuda")) == "torch"
    with pytest.raises(UserError, match="backend must be one of auto, numba, torch; got 'jax'"):
        check_backend("jax", CPU)
    with pytest.raises(UserError, match="does not run on cuda"):
        check_backend("numba", torch.device("cuda"))


def test_without_numba_plain_torch_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "numba", None)
    assert check_backend("auto", CPU) == "torch"
    with pytest.raises(UserError, match="needs the package numba"):
        check_backend("numba", CPU)

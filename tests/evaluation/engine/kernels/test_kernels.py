"""Every kernel counts what comparing each score with each edge counts."""

import numpy as np
import pytest
import torch

from aurank.errors import UserError
from aurank.evaluation.engine.kernels import Lines, check_backend, compiled, make_kernel

CPU = torch.device("cpu")
KERNELS = ["numba", "torch"]


def tile(counts: list[int], *, others: int = 70, spread: float = 0.3, width: float = 1e-2, seed: int = 0):  # type: ignore[no-untyped-def]
    """Scores [line, other] with some at the edges and some left out, and lines with so many thresholds each."""
    chance = np.random.default_rng(seed)
    offset = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    scores = spread * chance.normal(size=(len(counts), others))
    low, high = np.empty(offset[-1]), np.empty(offset[-1])
    for line in range(len(counts)):
        here = slice(offset[line], offset[line + 1])
        middle = np.sort(spread * chance.normal(size=counts[line]))
        middle[1::3] = middle[:-1:3]  # equal thresholds
        low[here], high[here] = middle - width, middle + width
        some = min(counts[line], others // 4)
        scores[line, :some] = low[here][:some]
        scores[line, some : 2 * some] = high[here][:some]
    scores[chance.random(scores.shape) < 0.1] = -np.inf
    return scores, Lines(offset, low, high)


def expected(scores: np.ndarray, lines: Lines):  # type: ignore[no-untyped-def]
    line = np.repeat(np.arange(len(lines.offset) - 1), np.diff(lines.offset))
    above = scores[line] > lines.high[:, None]
    near = (scores[line] >= lines.low[:, None]) & ~above
    return above.sum(1), near.sum(1), {(int(at), int(other)) for at, other in zip(*np.nonzero(near), strict=True)}


COUNTS = {
    "few": [1, 4, 0, 2, 0, 0, 3, 4, 1, 2] * 4,
    "none": [0, 0, 0],
    "around the limit": [compiled.DIRECT - 1, compiled.DIRECT, compiled.DIRECT + 1, 0, compiled.DIRECT + 2],
    "many": [180, 25, 0, 500],
    "one line": [40],
}


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("kind", list(COUNTS))
@pytest.mark.parametrize("width", [0.0, 1e-3, 0.5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_kernel_counts_what_comparing_every_pair_counts(
    backend: str, kind: str, width: float, dtype: type, transposed: bool
) -> None:
    kernel = make_kernel(backend)
    for seed in range(3):
        scores, lines = tile(COUNTS[kind], width=width, seed=seed)
        scores = scores.astype(dtype)
        lines = Lines(lines.offset, lines.low.astype(dtype), lines.high.astype(dtype))
        above, near, pairs = expected(scores, lines)
        given = torch.from_numpy(np.ascontiguousarray(scores.T) if transposed else scores)
        counted = kernel.count(given, lines, transposed=transposed, room=len(pairs))
        assert counted is not None
        assert (counted.above == above).all()
        assert (counted.near == near).all()
        assert len(counted.threshold) == len(pairs)
        assert set(zip(counted.threshold.tolist(), counted.other.tolist(), strict=True)) == pairs
        unlisted = kernel.count(given, lines, transposed=transposed, room=None)
        assert unlisted is not None
        assert (unlisted.near == near).all()
        assert len(unlisted.threshold) == 0
        if pairs:
            assert kernel.count(given, lines, transposed=transposed, room=len(pairs) - 1) is None


@pytest.mark.parametrize("backend", KERNELS)
def test_thresholds_that_all_but_coincide_are_told_apart(backend: str) -> None:
    middle = np.nextafter(np.full(60, 0.5, np.float32), np.float32(1))
    middle[:20], middle[40:] = 0.5, np.nextafter(middle[0], np.float32(1))
    scores = np.array([[0.25, 0.5, middle[0], middle[50], 0.75]], np.float32)
    lines = Lines(np.array([0, 60]), middle, middle)
    above, near, _ = expected(scores, lines)
    counted = make_kernel(backend).count(torch.from_numpy(scores), lines, transposed=False, room=None)
    assert counted is not None
    assert (counted.above == above).all()
    assert (counted.near == near).all()


def test_a_backend_that_is_unknown_or_does_not_fit_the_device_is_refused() -> None:
    assert check_backend("auto", CPU) == "numba"
    assert check_backend("torch", CPU) == "torch"
    with pytest.raises(UserError, match="backend must be one of auto, numba, torch, triton; got 'jax'"):
        check_backend("jax", CPU)
    with pytest.raises(UserError, match="'numba' does not run on cuda"):
        check_backend("numba", torch.device("cuda"))


def test_without_numba_plain_torch_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "numba", None)
    assert check_backend("auto", CPU) == "torch"
    with pytest.raises(UserError, match="needs the package numba: install it"):
        check_backend("numba", CPU)

"""Ranks are exact whichever tier, block or class size found them."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from testing.listing import same

import aurank
from aurank.errors import UserError
from aurank.evaluation import positive_ranks
from aurank.evaluation.engine import tiles
from aurank.evaluation.engine.scores import ExactScores


def mixed(rows: int = 300, dim: int = 24, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A third far apart, a third within 1e-7 of one point, a third exact copies; one class large, many small."""
    chance = np.random.default_rng(seed)
    embeddings = chance.normal(size=(rows, dim))
    third = rows // 3
    embeddings[third : 2 * third] = embeddings[0] + 1e-7 * chance.normal(size=(third, dim))
    embeddings[2 * third :] = embeddings[chance.integers(0, third, rows - 2 * third)]
    labels = np.where(chance.random(rows) < 0.2, 2**40, chance.integers(-60, 60, rows))
    order = chance.permutation(rows)
    return embeddings[order].astype(np.float32), labels[order]


@pytest.mark.parametrize("near", [1.0, 0.0])  # float32 and single scores; float64 and single scores
@pytest.mark.parametrize("says_nothing", [False, True])  # the bound of products, so that each score is taken exactly
@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_every_product_finds_the_same_ranks(
    near: float, says_nothing: bool, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    embeddings, labels = mixed()
    reference = positive_ranks(embeddings, labels)
    monkeypatch.setattr(tiles, "NEAR", near)
    if says_nothing:
        monkeypatch.setattr(ExactScores, "error", lambda *_: 1e30)
    assert same(positive_ranks(embeddings, labels, backend=backend), reference)
    for memory in ("256KiB", 1):  # the latter is below the smallest tile
        assert same(positive_ranks(embeddings, labels, backend=backend, max_memory=memory), reference)


def test_float64_and_float32_input_of_equal_values_have_the_same_ranks() -> None:
    embeddings, labels = mixed(seed=1)
    reference = positive_ranks(embeddings, labels)
    assert same(positive_ranks(embeddings.astype(np.float64), labels), reference)
    assert same(positive_ranks(embeddings.astype(">f4"), labels), reference)  # as a foreign file may hold it
    assert same(positive_ranks(np.asfortranarray(embeddings)[:, ::-1][:, ::-1], labels), reference)
    assert same(positive_ranks(torch.from_numpy(embeddings).T.contiguous().T, torch.from_numpy(labels)), reference)


def test_tiles_of_odd_sizes_pass_from_float32_to_float64() -> None:
    # 109 queries of 150 positives make a tile of 109 x 297 scores; the queries that tie with everything come after it,
    # in a smaller one.
    chance = np.random.default_rng(0)
    queries = np.concatenate([chance.normal(size=(109, 4)), np.zeros((50, 4))]).astype(np.float32)
    queries[:, 3] = np.arange(159) >= 109
    gallery = np.concatenate([chance.normal(size=(297, 3)), np.ones((297, 1))], axis=1).astype(np.float32)
    sides = (queries, (np.arange(159) >= 109).astype(int), gallery, (np.arange(297) >= 150).astype(int))
    reference = positive_ranks(*sides, distance="dot")
    assert reference.tied.max() == 150
    assert same(positive_ranks(*sides, distance="dot", max_memory="4MiB"), reference)


def test_extreme_lengths_are_normalised_and_impossible_ones_named() -> None:
    embeddings, labels = mixed(rows=90, seed=4)
    reference = positive_ranks(embeddings, labels)
    scale = 2.0 ** np.random.default_rng(0).integers(-400, 400, size=(90, 1))
    assert same(positive_ranks(embeddings.astype(np.float64) * scale, labels), reference)
    float32 = embeddings * (2.0 ** np.random.default_rng(0).integers(-90, 90, size=(90, 1))).astype(np.float32)
    for backend in ("numba", "torch"):
        assert same(positive_ranks(float32, labels, backend=backend), reference)
    embeddings = embeddings.astype(np.float64)
    embeddings[17] *= 1e200
    with pytest.raises(UserError, match="row 17 of the query embeddings has length inf"):
        positive_ranks(embeddings, labels)
    embeddings[17] = np.nan
    with pytest.raises(UserError, match="row 17 of the gallery embeddings holds NaN or infinity"):
        positive_ranks(embeddings[:10], labels[:10], embeddings, labels)


MEASURE = """
import sys
from pathlib import Path
import numpy as np
import aurank
import aurank.evaluation

heavy = {"faiss", "numba", "pyarrow", "pytorch_metric_learning", "scipy", "sklearn"} & sys.modules.keys()
assert not heavy, f"imported before their first use: {heavy}"

def kibibytes(name):  # ru_maxrss would begin at the parent's
    return next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith(name))

rows = np.load(sys.argv[1], mmap_mode="r")
labels = np.arange(len(rows)) // 5
collapsed = np.float32(1) + np.float32(1e-7) * rows
for some in (rows, collapsed):  # code that is compiled or loaded once
    aurank.evaluation.positive_ranks(some[:500], labels[:500])
aurank.evaluate(rows[:100], labels[:100] % 2, resampling=aurank.evaluation.Resampling(100), neighbours=5)
before = kibibytes("VmRSS")
aurank.evaluation.positive_ranks(rows, labels, max_memory="16MiB")
aurank.evaluation.positive_ranks(collapsed, labels, max_memory="16MiB")
# Of two classes, 4.5 million positives of 110 bytes each would take 495 MB.
aurank.evaluate(rows, labels % 2, max_memory="16MiB", resampling=aurank.evaluation.Resampling(100), neighbours=5)
print((kibibytes("VmHWM") - before) // 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_importing_is_light_and_memory_stays_within_the_budget_collapsed_or_of_two_classes(tmp_path: Any) -> None:
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(3000, 64)).astype(np.float32))
    script = [sys.executable, "-c", MEASURE, str(tmp_path / "rows.npy")]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    grown = int(subprocess.run(script, check=True, capture_output=True, text=True, env=one_thread).stdout)
    # The rows (0.8 MB) and the allocator's own share come on top.
    assert grown <= 16 + 16


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_gpu_finds_the_ranks_of_the_cpu() -> None:
    embeddings, labels = mixed(rows=3000)
    reference = positive_ranks(embeddings, labels)
    assert same(positive_ranks(embeddings, labels, device="cuda"), reference)
    assert same(positive_ranks(torch.from_numpy(embeddings).cuda(), labels, max_memory="8MiB"), reference)
    assert same(positive_ranks(torch.from_numpy(embeddings).cuda(), labels, device="cpu"), reference)
    assert aurank.evaluate(embeddings, labels, device="cuda").metrics == aurank.evaluate(embeddings, labels).metrics

"""The triton kernels count what brute force counts: on a device where there is one, and always in the interpreter.

Triton looks at TRITON_INTERPRET when it is imported, so one test runs the others in a process of their own.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from testing.kernel_tiles import COUNTS, expected, tile

from aurank.evaluation import Ranks, positive_ranks
from aurank.evaluation.engine.kernels import Edges, FusedKernel, check_backend, make_kernel
from aurank.evaluation.engine.scores import full_precision, make_distance

CHECKOUT = Path(__file__).parents[4]
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
on_device = pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="needs CUDA")
on_gpu = pytest.mark.skipif(INTERPRETED or not torch.cuda.is_available(), reason="needs CUDA")


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="is in the interpreter")
def test_everything_that_follows_holds_in_tritons_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", __file__]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.slow
def test_the_kernels_compile_for_a_device_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from aurank.evaluation.engine.kernels import gpu

    kinds = {"offset": "*i32", "edges": "*fp32", "counts": "*i32", "pairs": "*i32", "found": "*i64"}
    kinds |= {f"other_{name}": kind for name, kind in kinds.items()}
    kinds |= {"left": "*fp32", "right": "*fp32", "left_out": "*i32", "query_stride": "i64"}
    for function, constants in (
        (gpu.count_scores, {"other_stride": 1, "MANY": True, "QUERIES": gpu.QUERIES, "OTHERS": gpu.OTHERS}),
        (gpu.multiply_and_count, {"BOTH": True, "MANY": True, "SIDE": gpu.SIDES[True], "DEPTH": gpu.DEPTH}),
    ):
        scores = {"scores": "*fp64", "edges": "*fp64"} if function is gpu.count_scores else {}
        known = {**kinds, **scores, **dict.fromkeys(constants, "constexpr")}
        signature = {name: known.get(name, "i32") for name in function.arg_names}
        options = {"num_warps": gpu.WARPS[constants["MANY"]], **gpu.OPTIONS}
        code = triton.compile(ASTSource(function, signature, constants), GPUTarget("cuda", 80, 32), options)
        if function is gpu.multiply_and_count:
            assert "fma.rn.f32" in code.asm["ptx"]
            assert "tf32" not in code.asm["ptx"]
            assert "mma.sync" not in code.asm["ptx"]


@pytest.mark.gpu
@on_device
@pytest.mark.parametrize(
    ("kind", "width", "dtype", "transposed"),
    [
        ("few", 0.02, np.float32, True),
        ("few", 0.0, np.float64, False),
        ("none", 0.02, np.float32, False),
        ("around the limit", 0.02, np.float32, False),
        ("around the limit", 0.0, np.float64, True),
        ("one query", 0.02, np.float32, True),
    ],
)
def test_scores_are_counted_as_comparing_every_pair_counts(
    kind: str, width: float, dtype: type, transposed: bool
) -> None:
    kernel = make_kernel("triton")
    scores, edges = tile(COUNTS[kind], width=width, others=150)
    scores = scores.astype(dtype)
    edges = Edges(edges.offset, edges.low.astype(dtype), edges.high.astype(dtype))
    given = torch.from_numpy(np.ascontiguousarray(scores.T) if transposed else scores).to(DEVICE)
    check(kernel.count(given, edges, transposed=transposed, room=10**5), scores, edges)
    unlisted = kernel.count(given, edges, transposed=transposed, room=None)
    above, near, pairs = expected(scores, edges)
    assert unlisted is not None
    assert (unlisted.above == above).all()
    assert (unlisted.near == near).all()
    assert len(unlisted.threshold) == 0
    if pairs:
        assert kernel.count(given, edges, transposed=transposed, room=len(pairs) - 1) is None
        check(kernel.count(given, edges, transposed=transposed, room=len(pairs)), scores, edges)


@pytest.mark.gpu
@on_device
def test_the_kernel_passes_its_comparison_with_plain_torch() -> None:
    assert check_backend("triton", DEVICE) == "triton"


@pytest.mark.gpu
@on_device
@pytest.mark.parametrize("number", [3, 30])
def test_a_single_score_is_counted_for_every_threshold_below_it(number: int) -> None:
    edges = np.arange(number, dtype=np.float32)
    edges = Edges(np.array([0, 0, number]), edges, edges)
    scores = np.array([[9, 9, 9], [-np.inf, number - 1.5, -1]], np.float32)
    check(
        make_kernel("triton").count(torch.from_numpy(scores).to(DEVICE), edges, transposed=False, room=9), scores, edges
    )


def check(counted: Any, scores: np.ndarray, edges: Edges) -> None:
    above, near, pairs = expected(scores, edges)
    assert counted is not None
    assert (counted.above == above).all()
    assert (counted.near == near).all()
    assert len(counted.threshold) == len(pairs)
    assert set(zip(counted.threshold.tolist(), counted.other.tolist(), strict=True)) == pairs


def thresholds(scores: np.ndarray, counts: list[int], chance: np.random.Generator, width: float = 0.0) -> Edges:
    """So many of each line's own scores as its thresholds."""
    middle = [np.sort(chance.choice(line, count)) for line, count in zip(scores, counts, strict=True)]
    together = np.concatenate(middle).astype(np.float32)
    return Edges(np.concatenate([[0], np.cumsum(counts)]), together - np.float32(width), together + np.float32(width))


@pytest.mark.gpu
@on_device
@pytest.mark.parametrize(("rows", "columns", "width", "most"), [(70, 150, 37, 4), (70, 20, 16, 24), (1, 1, 1, 2)])
def test_a_multiplied_tile_is_counted_for_rows_and_columns(rows: int, columns: int, width: int, most: int) -> None:
    kernel, chance = make_kernel("triton"), np.random.default_rng(0)
    assert isinstance(kernel, FusedKernel)
    # Products of such numbers are exact in any order, so that many tie.
    left, right = (chance.integers(-2, 3, (size, width)).astype(np.float32) / 8 for size in (rows, columns))
    scores = left @ right.T
    left_out = np.sort(chance.integers(0, columns + 1, (2, rows)), axis=0)
    sides = [
        thresholds(side, chance.integers(0, most, len(side)).tolist(), chance, 1 / 64) for side in (scores, scores.T)
    ]
    place = np.arange(columns)
    scores[(place >= left_out[0][:, None]) & (place < left_out[1][:, None])] = -np.inf
    here, there = torch.from_numpy(left).to(DEVICE), torch.from_numpy(right).to(DEVICE)
    both = kernel.multiply_and_count(here, there, left_out, sides, room=10**6)
    for counted, side, edges in zip(both, (scores, scores.T), sides, strict=True):
        check(counted, side, edges)
    (alone,) = kernel.multiply_and_count(here, there, left_out, sides[:1], room=10**6)
    check(alone, scores, sides[0])
    found = [len(expected(side, edges)[2]) for side, edges in zip((scores, scores.T), sides, strict=True)]
    if found[0] != found[1]:
        fits = kernel.multiply_and_count(here, there, left_out, sides, room=min(found))
        assert [counted is not None for counted in fits] == [number == min(found) for number in found]


@pytest.mark.gpu
@on_device
@pytest.mark.parametrize("name", ["cosine", "euclidean"])
def test_products_on_the_wrong_side_of_a_threshold_are_near(name: str) -> None:
    chance = np.random.default_rng(1)
    first, second = (torch.from_numpy(chance.normal(size=(size, 300))) for size in (90, 140))
    second[:40] = first[:40] * (1 + 1e-7 * torch.from_numpy(chance.normal(size=(40, 300))))
    distance = make_distance(name, float(first.norm(dim=1).max()), float(second.norm(dim=1).max()))
    left, right = (
        distance.features(rows.clone(), rows.norm(dim=1), gallery=gallery)
        for rows, gallery in ((first, False), (second, True))
    )
    scores = (left @ right.T).numpy()
    edges = thresholds(scores, [3] * len(scores), chance, distance.error(300, torch.float32))
    with full_precision():
        (counted,) = make_kernel("triton").multiply_and_count(  # type: ignore[attr-defined]
            left.float().to(DEVICE), right.float().to(DEVICE), np.zeros((2, 90), np.int64), [edges], room=10**5
        )
    line = np.repeat(np.arange(90), 3)
    middle = (edges.low.astype(np.float64) + edges.high) / 2
    near = {(int(at), int(other)) for at, other in zip(counted.threshold, counted.other, strict=True)}
    for at, threshold in enumerate(middle):
        sure = [other for other in range(scores.shape[1]) if (at, other) not in near]
        assert counted.above[at] == (scores[line[at], sure] > threshold).sum()
    assert len(near) < scores.size / 20


def near_ties(rows: int = 120, dim: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Mostly points far apart, some within 1e-8 of another and some copies; one class has many positives."""
    chance = np.random.default_rng(2)
    embeddings, some = chance.normal(size=(rows, dim)), rows // 12
    embeddings[some : 2 * some] = embeddings[:some] + 1e-8 * chance.normal(size=(some, dim))
    embeddings[2 * some : 3 * some] = embeddings[:some]
    labels = np.where(np.arange(rows) % 7 == 0, -5, chance.integers(0, rows // 4, rows))
    order = chance.permutation(rows)
    return embeddings[order], labels[order]


def same(left: Ranks, right: Ranks) -> bool:
    names = ("query", "labels", "num_negatives", "offset", "positive", "higher", "tied", "at_least")
    return all(np.array_equal(getattr(left, name), getattr(right, name)) for name in names)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[bool]]:
    """For each tile that is multiplied by the kernel, which sides it has counted."""
    from aurank.evaluation.engine.kernels import gpu

    positive_ranks(*near_ties(24), backend="triton", device=DEVICE)  # the first use compares the kernel with torch

    found: list[list[bool]] = []
    before = gpu.TritonKernel.multiply_and_count

    def listening(*arguments: Any, **named: Any) -> Any:
        counted = before(*arguments, **named)
        found.append([side is not None for side in counted])
        return counted

    monkeypatch.setattr(gpu.TritonKernel, "multiply_and_count", listening)
    return found


MODES: dict[str, dict[str, Any]] = {
    "one tile": {},
    "many tiles": {"max_memory": "64KiB"},
    "euclidean": {"distance": "euclidean"},
    "gallery": {"gallery": near_ties()[0][:100], "gallery_labels": near_ties()[1][:100]},
}


@pytest.mark.gpu
@on_device
@pytest.mark.parametrize("mode", list(MODES))
def test_ranks_are_those_of_plain_torch(mode: str, calls: list[list[bool]]) -> None:
    embeddings, labels = near_ties()
    ranks = positive_ranks(embeddings, labels, backend="triton", device=DEVICE, **MODES[mode])
    assert same(ranks, positive_ranks(embeddings, labels, backend="torch", device="cpu", **MODES[mode]))
    assert ranks.num_rechecked > 0
    if mode == "many tiles":  # some with so many copies that one side went on to float64
        assert [False, True] in calls
        assert [True, True] in calls
    else:
        assert calls == [[True]]


@pytest.mark.gpu
@on_device
def test_with_pairs_to_leave_out_scores_are_kept_and_ranks_the_same(calls: list[list[bool]]) -> None:
    embeddings, labels = near_ties()
    ignore = [(row, (row + 1) % 120) for row in range(120)]
    ranks = positive_ranks(embeddings, labels, ignore=ignore, backend="triton", device=DEVICE)
    assert same(ranks, positive_ranks(embeddings, labels, ignore=ignore, backend="torch", device="cpu"))
    assert not calls


@pytest.mark.gpu
@on_device
def test_a_collapsed_set_goes_on_from_tier_to_tier_to_the_same_ranks(calls: list[list[bool]]) -> None:
    embeddings, labels = near_ties(60)
    embeddings = 1 + 1e-9 * embeddings
    embeddings[:50] = embeddings[0]
    ranks = positive_ranks(embeddings, labels, backend="triton", device=DEVICE)
    assert same(ranks, positive_ranks(embeddings, labels, backend="torch", device="cpu"))
    assert calls == [[False]]


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("classes", [1000, 40])
def test_counts_on_a_gpu_are_those_of_float64(classes: int, backend: str) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (6000,), generator=generator)
    centres = torch.randn(classes, 64, generator=generator)
    rows = torch.nn.functional.normalize(centres[labels] + 2 * torch.randn(6000, 64, generator=generator), dim=1)
    rows = rows.double().cuda()
    scores, kinds = rows @ rows.T, labels.cuda()
    negatives = kinds[:, None] != kinds
    ranks = positive_ranks(rows, labels, max_memory="512MiB", backend=backend)
    query = torch.from_numpy(np.repeat(ranks.query, ranks.num_positives)).cuda()
    positive = torch.from_numpy(ranks.positive).cuda()
    higher = torch.cat(
        [
            ((scores[some] > scores[some, other][:, None]) & negatives[some]).sum(1)
            for some, other in zip(query.split(1000), positive.split(1000), strict=True)
        ]
    )
    # Not the digits of the exact score: a pair in a hundred million may stand on the other side.
    assert (higher.cpu().numpy() != ranks.higher).mean() < 1e-4
    assert same(ranks, positive_ranks(rows.cpu(), labels))

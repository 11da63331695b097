"""Products of codes of eight bits never stray beyond their bound, and ranks counted with them are the exact ones."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from testing.listing import same

from aurank.evaluation import RetrievalProblem, positive_ranks
from aurank.evaluation.engine import ranks
from aurank.evaluation.engine.scores import ExactScores
from aurank.evaluation.engine.tiles import TileCounter, Tiles
from aurank.evaluation.inputs import Work

codes = pytest.importorskip("aurank.evaluation.engine.codes")
BOTH, HIGH, Accelerator, multiply_codes = codes.BOTH, codes.HIGH, codes.Accelerator, codes.multiply_codes

DISTANCES = ("cosine", "dot", "euclidean")

pytestmark = pytest.mark.skipif(codes.int8_speed(64) == 0, reason="products of int8 are not exact on this processor")


def random(chance: np.random.Generator, rows: int, dim: int) -> np.ndarray:
    return chance.normal(size=(rows, dim))


def clustered(chance: np.random.Generator, rows: int, dim: int) -> np.ndarray:
    """Five rows around each centre, as trained embeddings stand, beside a mean that all share."""
    return 1 + np.repeat(random(chance, rows // 5, dim), 5, axis=0) + 0.3 * random(chance, rows // 5 * 5, dim)


def duplicated(chance: np.random.Generator, rows: int, dim: int) -> np.ndarray:
    return random(chance, rows // 2, dim)[chance.integers(0, rows // 2, rows)]


def near(chance: np.random.Generator, rows: int, dim: int) -> np.ndarray:
    """Around few points, as far from each as the steps of first and second codes, of float32 and of float64 are."""
    noise = 10.0 ** -chance.integers(1, 15, (rows, 1))
    return random(chance, 4, dim)[chance.integers(0, 4, rows)] + noise * random(chance, rows, dim)


def collapsed(chance: np.random.Generator, rows: int, dim: int) -> np.ndarray:
    return random(chance, 1, dim) + 1e-7 * random(chance, rows, dim)


def uneven(chance: np.random.Generator, rows: int, dim: int) -> np.ndarray:
    """Lengths over 40 powers of ten, single numbers that outweigh their row, and a row of almost nothing."""
    values = random(chance, rows, dim) * 10.0 ** chance.uniform(-20, 20, (rows, 1))
    values[::3, 5] *= 1e6
    values[1] = 1e-30
    return values


SETS: dict[str, Callable[[np.random.Generator, int, int], np.ndarray]] = {
    made.__name__: made for made in (random, clustered, duplicated, near, collapsed, uneven)
}


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> Counter[Any]:
    """How many tiles each product decided, 1.0 for float64; codes are used for whatever little work."""
    monkeypatch.setattr(ranks, "FEWEST", 0)
    monkeypatch.setattr(codes, "int8_speed", lambda dim: 100.0)
    found: Counter[Any] = Counter()
    names = {share: kind for kind, share in codes.NEAR.items()}
    before = TileCounter.decide

    def listening(self: Any, *given: Any, most: float, **options: Any) -> bool:
        decides = before(self, *given, most=most, **options)
        found[names.get(most, most)] += decides
        return decides

    monkeypatch.setattr(TileCounter, "decide", listening)
    return found


def encoded(exact: ExactScores) -> tuple[Any, Any]:
    coder = Accelerator(exact)
    left = coder.encode(slice(0, len(exact.queries.order)), gallery=False)
    return left, coder.encode(slice(0, len(exact.gallery.order)), gallery=True)


def check_bound(queries: np.ndarray, gallery: np.ndarray, distance: str) -> None:
    orders = np.arange(len(queries)), np.arange(len(gallery))
    exact = ExactScores(RetrievalProblem(queries, [], gallery, []), *orders, distance=distance)
    row, column = np.divmod(np.arange(len(queries) * len(gallery)), len(gallery))
    truth = exact.pairs(row, column).reshape(len(queries), -1) / exact.factor
    rough, fine = Accelerator(exact).feature_errors
    queries, gallery = (
        exact.features(slice(0, len(side)), torch.float32, gallery=number == 1).numpy()
        for number, side in enumerate((queries, gallery))
    )
    for (one, other), score in np.ndenumerate(truth):
        assert abs(codes.rough_dot(queries[one], gallery[other]) - score) <= rough
        assert abs(codes.dot(queries[one], gallery[other]) - score) <= fine
    left, right = encoded(exact)
    products, scores = (torch.empty(truth.shape, dtype=kind) for kind in (torch.int32, torch.float32))
    slack = 4 * exact.error(torch.float64)
    for kind in (HIGH, BOTH):
        multiply_codes(left, right, kind, products, scores)
        away = np.abs(scores.numpy() - truth)
        assert (away <= left.error(right, kind, slack)[:, None]).all()
        assert (away <= right.error(left, kind, slack)).all()


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("kind", SETS)
def test_no_product_of_codes_strays_beyond_its_bound(kind: str, distance: str) -> None:
    for dim in (16, 100, 512):
        chance = np.random.default_rng(dim)
        check_bound(SETS[kind](chance, 60, dim), SETS[kind](chance, 40, dim).astype(np.float32), distance)


def test_the_bound_is_narrow_around_a_centre_and_where_few_numbers_outweigh_the_others() -> None:
    chance = np.random.default_rng(0)
    rows = random(chance, 100, 512)
    spiked, shifted = rows.copy(), rows + 10
    spiked[:, :4] *= 30
    for embeddings, kind, most in (
        (rows, HIGH, 0.03),
        (rows, BOTH, 3e-4),
        (spiked, HIGH, 0.07),
        (shifted, HIGH, 1e-3),
        (shifted, BOTH, 1e-5),
    ):
        order = np.arange(100)
        problem = RetrievalProblem(embeddings, order)
        left, right = encoded(ExactScores(problem, order, order, distance="cosine"))
        assert left.error(right, kind, 0.0).max() < most


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), dim=st.integers(16, 80), distance=st.sampled_from(DISTANCES), data=st.data())
def test_no_product_of_adverse_rows_strays_beyond_its_bound(seed: int, dim: int, distance: str, data: Any) -> None:
    chance = np.random.default_rng(seed)
    numbers = st.sampled_from([0.0, 1.0, -1.0, 0.5, 127.0, 126.5, 63.5, 1 / 254, 1e-3, 1e-30, -1e20, 1e-45])
    rows = np.array(data.draw(st.lists(st.lists(numbers, min_size=4, max_size=4), min_size=4, max_size=12)))
    rows = np.tile(rows, (1, dim))[:, :dim] * chance.choice([-1, 1, 1, 2], (len(rows), dim))
    rows[:, 0] += 1e-3  # none is all zeros
    check_bound(rows, rows[::-1][:7].copy(), distance)


def labelled(kind: str, rows: int = 300, dim: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(seed)
    embeddings = SETS[kind](chance, rows, dim)
    labels = np.arange(rows) // 5
    labels[::11] = 10**6  # a class with many positives
    order = chance.permutation(rows)
    return embeddings[order], labels[order]


@pytest.mark.slow
@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("kind", SETS)
def test_ranks_are_those_without_codes(kind: str, distance: str, decided: Counter[Any]) -> None:
    embeddings, labels = labelled(kind)
    for memory in ("1GiB", "200KiB"):  # one tile, and many
        ranks = positive_ranks(embeddings, labels, distance=distance, max_memory=memory)
        assert same(ranks, positive_ranks(embeddings, labels, distance=distance, backend="torch"))
        split = (embeddings[:120], labels[:120], embeddings[120:], labels[120:])
        ranks = positive_ranks(*split, distance=distance, max_memory=memory)
        assert same(ranks, positive_ranks(*split, distance=distance, backend="torch"))
    assert decided[HIGH] + decided[BOTH] > 0 or kind in ("collapsed", "near", "uneven")


def test_trained_random_and_collapsed_rows_are_decided_in_their_tiers(decided: Counter[Any]) -> None:
    for kind, tier in (("clustered", HIGH), ("random", BOTH), ("collapsed", 1.0)):
        decided.clear()
        chance = np.random.default_rng(1)
        positive_ranks(SETS[kind](chance, 600, 256), np.arange(600) // 5, max_memory="4MiB")
        assert decided.most_common(1)[0][0] == tier, (kind, decided)


def test_equal_scores_tie_on_both_sides_of_codes(decided: Counter[Any]) -> None:
    """Copies of positives among the negatives stand exactly on a threshold: no bound may decide them."""
    chance = np.random.default_rng(2)
    rows = clustered(chance, 200, 64)
    rows = np.concatenate([rows, rows[chance.permutation(200)]])
    labels = np.concatenate([np.arange(200) // 5, 1000 + np.arange(200) // 5])
    ranks = positive_ranks(rows, labels)
    assert same(ranks, positive_ranks(rows, labels, backend="torch"))
    assert int(ranks.tied.sum()) > 0
    assert decided[HIGH] + decided[BOTH] > 0


def test_groups_pairs_and_junk_are_left_out(decided: Counter[Any]) -> None:
    embeddings, labels = labelled("clustered")
    groups = np.arange(300) % 3
    ignore = [(row, (7 * row + 1) % 300) for row in range(300)]
    for given_ in ({"groups": groups}, {"ignore": ignore}, {"junk": list(range(0, 300, 13))}, {"positives": ignore}):
        given: dict[str, Any] = given_ if "positives" in given_ else {"query_labels": labels, **given_}
        ranks = positive_ranks(embeddings, max_memory="300KiB", **given)
        assert same(ranks, positive_ranks(embeddings, backend="torch", **given))
    assert decided[HIGH] + decided[BOTH] > 0


def test_codes_are_left_alone_for_little_work_whole_numbers_and_slow_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def kinds(rows: np.ndarray) -> tuple[str, ...]:
        problem, order = RetrievalProblem(rows, [0] * len(rows)), np.arange(len(rows))
        exact, work = ExactScores(problem, order, order, distance="cosine"), Work.of(rows, distributed=False)
        found = ranks.accelerator_of(Tiles(exact, work, symmetric=True))
        return () if found is None else found.kinds

    rows = random(np.random.default_rng(0), 50, 32)
    monkeypatch.setattr(codes, "int8_speed", lambda dim: 100.0)
    assert kinds(rows) == ()
    monkeypatch.setattr(ranks, "FEWEST", 50 * 50 * 32)
    assert kinds(rows) == (HIGH, BOTH)
    assert kinds(random(np.random.default_rng(0), 10, 1024)) == ()  # more work, but a trial takes twice as long
    monkeypatch.setattr(ranks, "FEWEST", 0)
    assert kinds(rows) == (HIGH, BOTH)
    assert kinds(rows[:, :8]) == ()
    assert kinds(np.sign(rows)) == ()
    for speed, expected in ((0.0, ()), (1.2, ()), (2.2, (HIGH,))):
        monkeypatch.setattr(codes, "int8_speed", lambda dim, speed=speed: speed)
        assert kinds(rows) == expected


@pytest.mark.parametrize("fault", [AttributeError, RuntimeError, None])
def test_products_of_int8_that_are_missing_or_saturate_are_not_used(
    fault: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        if fault is not None:
            raise fault("no int8 here")
        return out.copy_((left.int() @ right.int()).clamp(-(2**22), 2**22))

    monkeypatch.setattr(torch, "_int_mm", broken)
    assert codes.int8_speed.__wrapped__(512) == 0

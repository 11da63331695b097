"""Each step equals a dense reference in float64; what is learnt comes from the training rows alone."""

import numpy as np
import pytest
from oracles.postprocessing import expanded, k_reciprocal_distances, ranks_by_scores, unit
from sklearn.covariance import shrunk_covariance
from sklearn.decomposition import PCA

from aurank.evaluation import RetrievalProblem
from aurank.evaluation.engine import tiles
from aurank.evaluation.engine.nearest import nearest_rows
from aurank.evaluation.engine.ranks import Ranks, positive_ranks
from aurank.evaluation.postprocessing import PostProcessing
from aurank.evaluation.postprocessing.neighbour_steps import nearest_lists, pair_scores, reordered_ranks


def clusters(rows: int, classes: int, dim: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows that scatter around a centre for each class."""
    generator = np.random.default_rng(seed)
    labels = np.arange(rows) % classes
    return (generator.normal(size=(classes, dim))[labels] + 0.8 * generator.normal(size=(rows, dim))), labels


def ranked(problem: RetrievalProblem, text: str, training: np.ndarray | None = None) -> Ranks:
    processing = PostProcessing.parse(text)
    processed = (processing if training is None else processing.fit(training)).apply(problem)
    return processed.finish(positive_ranks(processed.problem))


def as_listed(ranks: Ranks) -> dict[int, list[tuple[int, int, int, int]]]:
    columns = zip(*(x.tolist() for x in (ranks.positive, ranks.higher, ranks.tied, ranks.at_least)), strict=True)
    values = list(columns)
    return {
        query: values[first:last]
        for query, first, last in zip(ranks.query.tolist(), ranks.offset[:-1], ranks.offset[1:], strict=True)
    }


@pytest.mark.parametrize("shrinkage", [0.0, 0.3])
def test_whitened_training_rows_have_the_covariance_that_shrinkage_leaves(shrinkage: float) -> None:
    rows = unit(clusters(400, 7, 12)[0] * np.linspace(1, 4, 12))
    axes = PostProcessing.parse(f"whiten:shrinkage={shrinkage}").fit(rows).states[0]["axes"]
    # axes = Λ^-1/2 U with Λ of the shrunk covariance: the inverse of that is axesᵀ axes.
    shrunk = shrunk_covariance(np.cov(rows.T, bias=True), shrinkage=shrinkage)
    np.testing.assert_allclose(axes.T @ axes, np.linalg.inv(shrunk), rtol=1e-9)


def test_whitening_is_scikit_learns_up_to_the_direction_of_an_axis() -> None:
    rows = clusters(300, 5, 10)[0]
    ours = PostProcessing.parse("whiten:dim=4").fit(rows).rows(rows)
    theirs = PCA(4, whiten=True, svd_solver="full").fit_transform(unit(rows)) * np.sqrt(300 / 299)
    np.testing.assert_allclose(np.abs(ours), np.abs(theirs), atol=1e-9)


def test_steps_learn_behind_those_before_them() -> None:
    train, rows = clusters(200, 5, 6, seed=1)[0], clusters(40, 5, 6)[0]
    centred = unit(train) - unit(train).mean(axis=0)
    expected = unit(unit(rows) - unit(train).mean(axis=0)) - unit(centred).mean(axis=0)
    np.testing.assert_allclose(PostProcessing.parse("center, center").fit(train).rows(rows), expected, atol=1e-12)


@pytest.mark.parametrize(("count", "k", "alpha"), [(60, 4, 0), (60, 4, 3), (12, 11, 1), (12, 40, 1)])
def test_queries_are_expanded_as_by_a_full_matrix(count: int, k: int, alpha: int) -> None:
    rows, labels = clusters(count, 6, 8)
    problem = RetrievalProblem(rows, labels)
    processed = PostProcessing.parse(f"query_expansion:k={k},alpha={alpha}").apply(problem).problem
    np.testing.assert_allclose(processed.embeddings, expanded(rows, rows, k, alpha, np.arange(count)), atol=1e-12)
    np.testing.assert_allclose(processed.gallery, rows)
    assert positive_ranks(processed).num_gallery == count  # a query is still left out of its own list
    assert len(positive_ranks(processed).positive) == len(positive_ranks(problem).positive)


def test_a_gallery_is_augmented_as_by_a_full_matrix_and_junk_stays() -> None:
    rows, labels = clusters(80, 8, 8)
    junk = np.arange(60, 80)
    problem = RetrievalProblem(rows[:10], labels[:10], rows, labels, np.arange(10), np.arange(80), junk=junk)
    processed = PostProcessing.parse("database_augmentation:k=3,alpha=2").apply(problem).problem
    np.testing.assert_allclose(processed.gallery[:60], expanded(rows[:60], rows[:60], 3, 2, np.arange(60)), atol=1e-12)
    np.testing.assert_array_equal(processed.gallery[60:], rows[60:])
    np.testing.assert_array_equal(processed.embeddings, rows[:10])


@pytest.mark.parametrize(("k1", "k2", "weight"), [(6, 3, 0.3), (5, 1, 0.0), (40, 6, 1.0)])
def test_k_reciprocal_is_the_published_code_where_lists_hold_the_whole_gallery(k1: int, k2: int, weight: float) -> None:
    rows, labels = clusters(70, 10, 5)
    ranks = ranked(RetrievalProblem(rows, labels), f"k_reciprocal:k1={k1},k2={k2},weight={weight},depth=100")
    scores = -k_reciprocal_distances(rows, k1, k2, weight)
    expected = ranks_by_scores(scores.round(12), labels[:, None] == labels, np.eye(70, dtype=bool))
    assert as_listed(ranks) == expected


def test_k_reciprocal_of_two_sides_takes_queries_into_the_graph_once() -> None:
    rows, labels = clusters(70, 10, 5)
    # The last five queries are gallery rows too; the first ten are not.
    queries = np.concatenate([np.arange(10), np.arange(65, 70)])
    gallery = np.arange(10, 70)
    sides = (rows[queries], labels[queries], rows[gallery], labels[gallery], queries, gallery)
    ranks = ranked(RetrievalProblem(*sides), "k_reciprocal:k1=6,k2=3,depth=60")
    nodes = np.concatenate([gallery, np.arange(10)])
    distances = k_reciprocal_distances(rows[nodes], 6, 3, 0.3)
    node = {row: place for place, row in enumerate(nodes.tolist())}
    scores = -distances[[node[row] for row in queries.tolist()]][:, :60]
    same = labels[queries][:, None] == labels[gallery]
    assert as_listed(ranks) == ranks_by_scores(scores.round(12), same, queries[:, None] == gallery)


def test_what_stands_behind_the_depth_stays_as_it_was() -> None:
    rows, labels = clusters(120, 12, 4, seed=3)
    problem = RetrievalProblem(rows, labels)
    plain, ranks = positive_ranks(problem), ranked(problem, "k_reciprocal:k1=6,k2=3,depth=20")
    behind = plain.rank > 20
    assert behind.any()
    assert not behind.all()
    for name in ("positive", "higher", "tied", "at_least"):
        np.testing.assert_array_equal(getattr(ranks, name)[behind], getattr(plain, name)[behind])
    assert (ranks.rank[~behind] <= 20).all()
    assert (ranks.rank[~behind] != plain.rank[~behind]).any()


@pytest.mark.parametrize("code", ["int8", "truncate:dim=3"])
def test_rescoring_the_whole_list_gives_back_the_plain_ranks(code: str) -> None:
    rows, labels = clusters(90, 9, 8)
    problem = RetrievalProblem(rows.astype(np.float32), labels)
    again = ranked(problem, f"{code}, rescore:depth=90", rows)
    assert as_listed(again) == as_listed(positive_ranks(problem))
    assert as_listed(ranked(problem, code, rows)) != as_listed(again)


def test_binary_rows_rank_by_the_hamming_distance() -> None:
    rows, labels = clusters(60, 6, 16)
    ranks = ranked(RetrievalProblem(rows, labels), "binary")
    hamming = ((rows > 0)[:, None] != (rows > 0)).sum(axis=2)
    assert as_listed(ranks) == ranks_by_scores(-hamming, labels[:, None] == labels, np.eye(60, dtype=bool))
    assert ranks.tied.any()


def all_scores(queries: np.ndarray, gallery: np.ndarray) -> np.ndarray:
    query, row = np.divmod(np.arange(len(queries) * len(gallery)), len(gallery))
    return pair_scores(queries, gallery, query, row).reshape(len(queries), -1)


@pytest.mark.parametrize("noise", [1.0, 1e-9])
@pytest.mark.parametrize("alone", [True, False])
def test_lists_are_those_of_a_plain_sort(alone: bool, noise: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "SIDES", {"cpu": 32, "cuda": 64})
    rng = np.random.default_rng(0)
    gallery = np.ones((150, 8)) + noise * rng.standard_normal((150, 8))
    queries = gallery if alone else gallery[::-1][:40].copy()
    own = np.arange(150) if alone else 149 - np.arange(40)
    scores = all_scores(queries, gallery)
    scores[np.arange(len(own)), own] = -np.inf
    row, score = nearest_lists(queries, gallery, 5, leave_out=own)
    assert score.tolist() == (-np.sort(-scores, axis=1)[:, :5]).tolist()
    assert np.take_along_axis(scores, row, 1).tolist() == score.tolist()


@pytest.mark.parametrize("depth", [1, 11, 40])
@pytest.mark.parametrize("seed", range(2))
def test_reordered_lists_are_counted_as_by_hand(seed: int, depth: int) -> None:
    generator = np.random.default_rng(seed)
    rows = generator.integers(-2, 3, size=(40, 3))  # whole numbers: exact scores, and many ties
    labels = generator.integers(0, 9, 40)
    groups = generator.integers(-1, 2, 40)
    problem = RetrievalProblem(rows, labels, groups=groups)
    ranks, lists = positive_ranks(problem, distance="dot"), nearest_rows(problem, depth, distance="dot")
    score = np.where(lists.row >= 0, generator.integers(0, 4, lists.row.shape), np.nan)
    found = reordered_ranks(ranks, lists, score)

    combined = rows @ rows.T
    for query, listed, new in zip(lists.query, lists.row, score, strict=True):
        combined[query, listed[listed >= 0]] = 100 + new[listed >= 0]
    same = labels[:, None] == labels
    left_out = np.eye(40, dtype=bool) | (same & (groups[:, None] == groups) & (groups >= 0))
    expected = ranks_by_scores(combined, same, left_out)
    assert as_listed(found) == expected

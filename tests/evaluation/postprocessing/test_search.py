"""`GallerySearch` finds what `PostProcessing.apply` finds among all rows; the oracle is that, or plain float64."""

import numpy as np
import pytest
from oracles.brute_force import all_scores

from aurank.evaluation import RetrievalProblem
from aurank.evaluation.index.neighbours import Index
from aurank.evaluation.postprocessing import GallerySearch, PostProcessing, processed_gallery

GENERATOR = np.random.default_rng(4)
GALLERY = GENERATOR.normal(size=(120, 8)).astype(np.float32) + 1
QUERIES = GENERATOR.normal(size=(7, 8)).astype(np.float32) + 1


def plain(distance: str = "cosine", factory: str = "Flat") -> GallerySearch:
    return GallerySearch(Index.build(GALLERY, factory, distance=distance, device="cpu"), GALLERY, GALLERY)


@pytest.mark.parametrize("distance", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("exact", [False, True])
def test_lists_are_those_of_all_pairs(distance: str, exact: bool) -> None:
    expected = all_scores(QUERIES, GALLERY, distance)
    row, score = plain(distance).nearest(QUERIES, 9, exact=exact)
    assert row.tolist() == np.argsort(-expected, axis=1)[:, :9].tolist()
    np.testing.assert_allclose(score, -np.sort(-expected, axis=1)[:, :9], rtol=1e-12)


@pytest.mark.parametrize("distance", ["cosine", "dot", "euclidean"])
def test_some_rows_are_searched_exactly_and_an_own_row_is_not_found(
    distance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aurank.evaluation.postprocessing.search.TILE", 100)  # several tiles
    among, own = np.arange(3, 120, 4), np.array([3, -1, 7, 4])
    row, score = plain(distance).nearest(GALLERY[own], 40, leave_out=own, among=among)
    expected = all_scores(GALLERY[own], GALLERY[among], distance)
    for place, (found, values) in enumerate(zip(row, score, strict=True)):
        order = [one for one in np.argsort(-expected[place], kind="stable") if among[one] != own[place]]
        assert [one for one in found if one >= 0] == among[order].tolist()
        assert np.isnan(values[found < 0]).all()
        np.testing.assert_allclose(values[found >= 0], expected[place][order], atol=1e-12)


@pytest.mark.parametrize(
    "steps",
    [
        "center, database_augmentation:k=2, query_expansion:k=3,alpha=1",
        "whiten:dim=5, query_expansion:k=2, k_reciprocal:k1=6,k2=2,depth=25",
        "binary, rescore:depth=20",
        "center, truncate:dim=3, rescore:depth=20",
        "query_expansion:k=3, rescore:depth=10",
    ],
)
@pytest.mark.parametrize("exact", [False, True])
def test_post_processing_is_that_of_an_evaluation(steps: str, exact: bool) -> None:
    processing = PostProcessing.parse(steps).fit(GALLERY[:60])
    vectors = processed_gallery(processing, GALLERY)
    search = GallerySearch(Index.build(vectors, device="cpu"), GALLERY, vectors, processing)
    everything = {"labels": np.zeros(7, int), "gallery_labels": np.zeros(120, int)}  # all are positives: by rank alone
    expected = processing.apply(RetrievalProblem(QUERIES, gallery=GALLERY, **everything)).nearest(12)
    row, score = search.nearest(QUERIES, 12, exact=exact)
    if exact or "binary" not in steps:  # whose scores tie in masses: of those faiss lists some
        assert row.tolist() == expected.row.tolist()
        np.testing.assert_allclose(score, expected.score, rtol=1e-6)


def test_an_approximate_index_is_scored_exactly() -> None:
    row, score = plain(factory="IVF4,SQ8").nearest(QUERIES, 5)
    expected = all_scores(QUERIES, GALLERY, "cosine")
    exists = row >= 0
    np.testing.assert_allclose(score[exists], np.take_along_axis(expected, row.clip(0), 1)[exists], rtol=1e-12)
    row, _ = plain(factory="IVF4,SQ8").nearest(QUERIES, 5, exact=True)
    assert row.tolist() == plain().nearest(QUERIES, 5)[0].tolist()

"""Few-shot episodes: all of them, scikit-learn on the same ones, and which rows are drawn."""

from itertools import islice

import numpy as np
import pytest
from oracles.few_shot import accuracy_of_all_episodes
from sklearn.neighbors import KNeighborsClassifier

from aurank.evaluation import few_shot
from aurank.evaluation.probes import draw_episodes

LABELS = np.repeat(np.arange(6), 4)
WITHIN = np.repeat([7, 8], 12)
CAMERAS = np.tile([1, 1, 2, 3], 6)
ROWS = np.random.default_rng(0).normal(size=(24, 3)) + 2 * np.random.default_rng(1).normal(size=(6, 3))[LABELS]
ROWS[5] = ROWS[1]  # of another class: a tie
DRAWS = [
    (None, None, 2, 1),
    (WITHIN, None, 2, 1),
    (WITHIN, None, 2, 2),
    (WITHIN, CAMERAS, 3, 1),
    (None, CAMERAS, 2, 2),
    (np.where(WITHIN == 7, -1, 8), np.where(CAMERAS == 3, -1, CAMERAS), 2, 1),
]


@pytest.mark.parametrize(("within", "cameras", "ways", "shots"), DRAWS)
def test_the_mean_over_episodes_tends_to_that_of_all_episodes(
    within: np.ndarray | None, cameras: np.ndarray | None, ways: int, shots: int
) -> None:
    result = few_shot(ROWS, LABELS, within=within, groups=cameras, ways=ways, shots=shots, episodes=2000, seeds=[3, 4])
    known = np.all([column != -1 for column in (within, cameras, LABELS) if column is not None], axis=0)
    columns = [None if column is None else column[known].tolist() for column in (within, cameras)]
    expected = accuracy_of_all_episodes(ROWS[known], LABELS[known].tolist(), *columns, ways=ways, shots=shots)
    low, high = result.intervals["accuracy"]
    assert abs(result.metrics["accuracy"] - expected) < high - low  # four standard errors
    assert 0.3 < expected < 0.95
    assert 0 < high - low < 0.03


@pytest.mark.parametrize(("within", "cameras", "ways", "shots"), DRAWS)
def test_scikit_learn_is_right_as_often_on_the_same_episodes(
    within: np.ndarray | None, cameras: np.ndarray | None, ways: int, shots: int
) -> None:
    rows = ROWS + np.random.default_rng(2).normal(size=ROWS.shape)  # no ties
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    accuracy = []
    for drawn in islice(draw_episodes(LABELS, within, cameras, ways=ways, shots=shots, seed=5), 50):
        assert drawn.shape == (ways, shots + 1)
        assert len(np.unique(drawn)) == drawn.size
        assert (LABELS[drawn] == LABELS[drawn[:, :1]]).all()
        assert len(np.unique(LABELS[drawn])) == ways
        assert within is None or len(np.unique(within[drawn])) == 1
        if cameras is not None:
            learnt, asked = np.unique(cameras[drawn[:, :-1]]), np.unique(cameras[drawn[:, -1]])
            assert len(learnt) == len(asked) == len({*learnt, *asked} - {-1}) - 1 == 1
        model = KNeighborsClassifier(1, metric="cosine").fit(unit[drawn[:, :-1]].mean(axis=1), np.arange(ways))
        accuracy.append(model.score(unit[drawn[:, -1]], np.arange(ways)))
    sizes = {"ways": ways, "shots": shots, "episodes": 50}
    result = few_shot(rows, LABELS, within=within, groups=cameras, **sizes, seeds=[5])
    assert result.metrics["accuracy"] == pytest.approx(np.mean(accuracy), abs=1e-12)
    assert result != few_shot(rows, LABELS, within=within, groups=cameras, **sizes, seeds=[6])

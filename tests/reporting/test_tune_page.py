"""tune.html of few trials shows them all; of many the worst lie below the pictures."""

import numpy as np
import pytest

from aurank.ranges import Range
from aurank.reporting.tune_page import _around, tune_page


def line(number: int, value: float) -> dict[str, object]:
    settings = {"optim.lr": f"{number * 1e-4}"}
    return {
        "number": number, "state": "complete", "value": value, "seconds": 12.0, "folds": [value], "settings": settings,
        "error": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("values", "is_cut"),
    [
        (np.linspace(0.88, 0.9, 2), False),
        (np.linspace(0.88, 0.9, 40), True),
        (np.repeat([0.5, 0.9], [4, 8]), False),  # many, but the worst fifth are alike
        (np.full(12, 0.5), False),
    ],
)
def test_the_page_says_of_trials_below_the_picture_only_where_there_are_some(values: np.ndarray, is_cut: bool) -> None:
    assert (_around(values.tolist())[0] > min(values)) == is_cut
    lines = [line(number, value) for number, value in enumerate(values.tolist(), 1)]
    page = tune_page(lines, {"optim.lr": Range(1e-5, 1e-1, log=True)}, {}, [], "Search")
    assert ("the worst lie below the picture" in page) == is_cut
    assert "optim.lr" in page
    assert "seconds of training" in page or "minutes of training" in page

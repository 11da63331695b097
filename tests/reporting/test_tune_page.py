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


@pytest.mark.parametrize(("trials", "is_cut"), [(2, False), (40, True)])
def test_few_trials_are_all_in_the_picture(trials: int, is_cut: bool) -> None:
    values = np.linspace(0.88, 0.9, trials).tolist()
    assert (_around(values)[0] > min(values)) == is_cut
    lines = [line(number, value) for number, value in enumerate(values, 1)]
    page = tune_page(lines, {"optim.lr": Range(1e-5, 1e-1, log=True)}, {}, [], "Search")
    assert ("the worst lie below the picture" in page) == is_cut
    assert "optim.lr" in page
    assert "seconds of training" in page or "minutes of training" in page

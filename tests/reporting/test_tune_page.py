"""tune.html of few trials shows them all; of many the worst lie below the pictures."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from aurank.ranges import Range
from aurank.reporting.tune_page import _around, _slice, tune_page


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


@pytest.mark.parametrize(
    ("within", "texts"),
    [
        (Range(1e-5, 0.03, log=True), ["1e-05", "0.0001", "0.001", "0.01"]),
        (Range(0.1, 10, log=True), ["0.1", "1", "10"]),
        (Range(2e-3, 500, log=True), ["0.01", "0.1", "1", "10", "100"]),
        (Range(1e-12, 1, log=True), ["1e-12", "1e-10", "1e-08", "1e-06", "0.0001", "0.01", "1"]),
        (Range(0.02, 0.5, log=True), ["0.02", "0.5"]),  # one power of ten alone says no scale
        (Range(0.05, 0.8), ["0.05", "0.3", "0.55", "0.8"]),
    ],
)
def test_ticks_of_a_logarithmic_range_are_powers_of_ten(within: Range, texts: list[str]) -> None:
    axes = Figure().add_subplot()
    _slice(axes, [(f"{within.low}", 0.5), (f"{within.high}", 0.6)], within)
    assert [label.get_text() for label in axes.get_xticklabels()] == texts
    assert not any(label.get_text() for label in axes.get_xticklabels(minor=True))

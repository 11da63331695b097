"""The maps of the embeddings: PCA."""

import numpy as np
import pytest

import aurank
from aurank.reporting.charts import SCALE, draw_map, principal


def test_principal_components_are_those_of_the_singular_values() -> None:
    rows = np.random.default_rng(0).normal(size=(40, 6)) * [5, 3, 1, 1, 1, 1] + 7
    points, part = principal(rows)
    left, values, _ = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    assert np.abs(points) == pytest.approx(np.abs(left[:, :2] * values[:2]))
    assert part == pytest.approx(values[:2] ** 2 / (values**2).sum())
    assert principal(rows[:, :1])[0].shape == (40, 2)


@pytest.mark.slow
def test_the_page_says_what_the_map_is() -> None:
    rows, labels = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 20
    report = aurank.evaluate(rows, labels)
    assert list(draw_map(report, rows)) == [
        "40 queries on their first two principal components (PCA), average precision by colour."
    ]


def test_every_colour_of_the_scale_is_seen_on_light_and_dark_pages() -> None:
    def light(rgb: np.ndarray) -> float:  # relative luminance of WCAG 2
        return float(np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722])

    pages = [light(np.array(page) / 255) for page in ((255, 255, 255), (0x14, 0x17, 0x1A))]
    for colour in SCALE(np.linspace(0, 1, 21)):
        for page in pages:
            low, high = sorted((light(colour[:3]), page))
            assert (high + 0.05) / (low + 0.05) > 3

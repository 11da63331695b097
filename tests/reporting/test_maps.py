"""The maps of the embeddings: PCA always, UMAP where it is installed."""

import sys
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import aurank
from aurank.reporting import maps
from aurank.reporting.charts import SCALE
from aurank.reporting.maps import draw_maps, principal, umap_points


def test_principal_components_are_those_of_the_singular_values() -> None:
    rows = np.random.default_rng(0).normal(size=(40, 6)) * [5, 3, 1, 1, 1, 1] + 7
    points, part = principal(rows)
    left, values, _ = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    assert np.abs(points) == pytest.approx(np.abs(left[:, :2] * values[:2]))
    assert part == pytest.approx(values[:2] ** 2 / (values**2).sum())
    assert principal(rows[:, :1])[0].shape == (40, 2)


@pytest.mark.slow
def test_the_page_says_which_map_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 20
    report = aurank.evaluate(rows, labels)
    monkeypatch.setitem(sys.modules, "umap", None)  # not installed
    assert list(draw_maps(report, rows)) == [
        "40 queries on their first two principal components (PCA), average precision by colour."
    ]
    given: list[Any] = []

    def placed(unit: np.ndarray) -> np.ndarray:
        given.append(unit)
        return unit[:, :2]

    monkeypatch.setattr(maps, "umap_points", placed)
    monkeypatch.setattr(maps, "UMAP_POINTS", 30)
    pca, by_umap = draw_maps(report, rows)
    assert "PCA" in pca
    assert by_umap.startswith("30 of 40 queries placed by UMAP with seed 0")
    assert np.linalg.norm(given[0], axis=1) == pytest.approx(np.ones(30))


def test_every_colour_of_the_scale_is_seen_on_light_and_dark_pages() -> None:
    def light(rgb: np.ndarray) -> float:  # relative luminance of WCAG 2
        return float(np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722])

    pages = [light(np.array(page) / 255) for page in ((255, 255, 255), (0x14, 0x17, 0x1A))]
    for colour in SCALE(np.linspace(0, 1, 21)):
        for page in pages:
            low, high = sorted((light(colour[:3]), page))
            assert (high + 0.05) / (low + 0.05) > 3


def test_umap_gets_a_seed_and_no_more_neighbours_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def reducer(**options: Any) -> SimpleNamespace:
        given.update(options)
        return SimpleNamespace(fit_transform=lambda rows: rows[:, :2])

    module = ModuleType("umap")
    module.UMAP = reducer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "umap", module)
    points = umap_points(np.eye(6))
    assert points is not None
    assert points.tolist() == np.eye(6)[:, :2].tolist()
    assert (given["random_state"], given["n_neighbors"], given["n_jobs"]) == (0, 5, 1)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("umap") is None, reason="needs umap-learn")
def test_umap_places_classes_apart_and_the_same_again() -> None:
    labels = np.repeat(np.arange(3), 20)
    rows = np.random.default_rng(0).normal(size=(60, 8)) + 20 * np.eye(8)[labels]
    points = umap_points(rows)
    assert points is not None
    centres = np.stack([points[labels == one].mean(axis=0) for one in range(3)])
    assert (np.linalg.norm(points[:, None] - centres, axis=2).argmin(axis=1) == labels).all()
    assert np.array_equal(umap_points(rows), points)

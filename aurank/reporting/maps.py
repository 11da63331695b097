"""A map of embeddings: their first two principal components, and what UMAP makes of them where it is installed."""

import warnings
from collections.abc import Sequence
from functools import partial

import numpy as np
from jaxtyping import Float, Float64
from markupsafe import Markup

from aurank.arrays import Rows
from aurank.evaluation.report import Report
from aurank.reporting.charts import dots, svg
from aurank.reporting.grids import query_names

POINTS, UMAP_POINTS = 4000, 2000  # drawn at most; UMAP takes a quarter of a minute for 2,000 rows on one core
EPOCHS = 200  # of UMAP, as it takes for large data itself
MOST_COLOURS = 10  # classes beyond which average precision is coloured
SEED = 0
Points = Float64[np.ndarray, "point 2"]


def draw_maps(report: Report, embeddings: Float[Rows, "query dim"]) -> dict[str, Markup]:
    """Return the maps of the embeddings of all queries as SVG text, by the sentences that say what they are."""
    some = _sample(report, POINTS)
    points, part = principal(_rows(report, embeddings, some))
    axes = [f"component {place} ({share:.0%} of the variance)" for place, share in enumerate(part.tolist(), 1)]
    maps = _drawn(report, some, points, "on their first two principal components (PCA)", axes)
    few = _sample(report, UMAP_POINTS)
    placed_by_umap = umap_points(_rows(report, embeddings, few)) if len(few) > 3 else None
    if placed_by_umap is not None:
        placed = f"placed by UMAP with seed {SEED}: near dots are similar, distances between groups mean little"
        maps |= _drawn(report, few, placed_by_umap, placed, ("", ""))
    return maps


def principal(rows: Float64[np.ndarray, "point dim"]) -> tuple[Points, Float64[np.ndarray, " 2"]]:
    """Return rows on their first two principal components, and what part of the variance each has."""
    rows = rows - rows.mean(axis=0)
    values, axes = np.linalg.eigh(rows.T @ rows)
    part = values[::-1][:2].clip(0) / max(values.sum(), np.finfo(float).tiny)
    points = rows @ axes[:, ::-1][:, :2]
    if points.shape[1] < 2:  # embeddings of one number
        points, part = np.pad(points, ((0, 0), (0, 1))), np.pad(part, (0, 1))
    return points, part


def umap_points(rows: Float64[np.ndarray, "point dim"]) -> Points | None:
    """Return rows as UMAP places them by Euclidean distance, always in the same places; None where it is not installed.

    Source: McInnes, Healy, Melville, "UMAP", 2018 (https://arxiv.org/abs/1802.03426).
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of parts of it that are not used here
        try:
            import umap
        except ImportError:
            return None
        near = min(15, len(rows) - 1)
        fitted = umap.UMAP(n_neighbors=near, n_epochs=EPOCHS, random_state=SEED, n_jobs=1, init="pca")
        return np.asarray(fitted.fit_transform(np.asarray(rows, np.float32)), np.float64)


def _sample(report: Report, most: int) -> np.ndarray:
    return np.sort(np.random.default_rng(SEED).permutation(len(report.per_query["query"]))[:most])


def _rows(report: Report, embeddings: Rows, some: np.ndarray) -> Float64[np.ndarray, "point dim"]:
    """Return some queries' rows, by the cosine those of length 1."""
    rows = np.asarray(embeddings[report.per_query["query"][some]], np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True) if report.distance == "cosine" else rows


def _drawn(
    report: Report, some: np.ndarray, points: Points, placed: str, axis_names: Sequence[str]
) -> dict[str, Markup]:
    """Return the map by what it is."""
    names, count = query_names(report)[some], len(report.per_query["query"])
    by_class = 1 < len(set(names.tolist())) <= MOST_COLOURS
    classes, values = names if by_class else None, report.per_query["ap"][some]
    of = f"{len(some):,} of {count:,}" if len(some) < count else f"{count:,}"
    caption = f"{of} queries {placed}, {'classes' if by_class else 'average precision'} by colour."
    draw = partial(dots, points=points, values=values, classes=classes, axis_names=axis_names)
    return {caption: svg(draw, caption, size=(5.4, 4.6))}

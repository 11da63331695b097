"""A map of embeddings: their first two principal components."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from jaxtyping import Float, Float64
from markupsafe import Markup

from aurank.arrays import Rows
from aurank.evaluation.report import Report
from aurank.reporting.charts import dots, svg
from aurank.reporting.grids import query_names

POINTS = 4000  # drawn at most
MOST_COLOURS = 10  # classes beyond which average precision is coloured
SEED = 0
Points = Float64[np.ndarray, "point 2"]


def draw_maps(report: Report, embeddings: Float[Rows, "query dim"]) -> dict[str, Markup]:
    some = _sample(report, POINTS)
    points, part = principal(_rows(report, embeddings, some))
    axes = [f"component {place} ({share:.0%} of the variance)" for place, share in enumerate(part.tolist(), 1)]
    return _drawn(report, some, points, "on their first two principal components (PCA)", axes)


def principal(rows: Float64[np.ndarray, "point dim"]) -> tuple[Points, Float64[np.ndarray, " 2"]]:
    rows = rows - rows.mean(axis=0)
    values, axes = np.linalg.eigh(rows.T @ rows)
    part = values[::-1][:2].clip(0) / max(values.sum(), np.finfo(float).tiny)
    points = rows @ axes[:, ::-1][:, :2]
    if points.shape[1] < 2:  # embeddings of one number
        points, part = np.pad(points, ((0, 0), (0, 1))), np.pad(part, (0, 1))
    return points, part


def _sample(report: Report, most: int) -> np.ndarray:
    return np.sort(np.random.default_rng(SEED).permutation(len(report.per_query["query"]))[:most])


def _rows(report: Report, embeddings: Rows, some: np.ndarray) -> Float64[np.ndarray, "point dim"]:
    rows = np.asarray(embeddings[report.per_query["query"][some]], np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True) if report.distance == "cosine" else rows


def _drawn(
    report: Report, some: np.ndarray, points: Points, placed: str, axis_names: Sequence[str]
) -> dict[str, Markup]:
    names, count = query_names(report)[some], len(report.per_query["query"])
    by_class = 1 < len(set(names.tolist())) <= MOST_COLOURS
    classes, values = names if by_class else None, report.per_query["ap"][some]
    of = f"{len(some):,} of {count:,}" if len(some) < count else f"{count:,}"
    caption = f"{of} queries {placed}, {'classes' if by_class else 'average precision'} by colour."
    draw = partial(dots, points=points, values=values, classes=classes, axis_names=axis_names)
    return {caption: svg(draw, caption, size=(5.4, 4.6))}

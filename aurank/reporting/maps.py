"""A map of embeddings: their first two principal components."""

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
    count = len(report.per_query["query"])
    some = np.sort(np.random.default_rng(SEED).permutation(count)[:POINTS])
    rows = np.asarray(embeddings[report.per_query["query"][some]], np.float64)
    if report.distance == "cosine":
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    points, part = principal(rows)
    axis_names = [f"component {place} ({share:.0%} of the variance)" for place, share in enumerate(part.tolist(), 1)]
    names = query_names(report)[some]
    by_class = 1 < len(set(names.tolist())) <= MOST_COLOURS
    of = f"{len(some):,} of {count:,}" if len(some) < count else f"{count:,}"
    by = "classes" if by_class else "average precision"
    caption = f"{of} queries on their first two principal components (PCA), {by} by colour."
    values, classes = report.per_query["ap"][some], names if by_class else None
    draw = partial(dots, points=points, values=values, classes=classes, axis_names=axis_names)
    return {caption: svg(draw, caption, size=(5.4, 4.6))}


def principal(rows: Float64[np.ndarray, "point dim"]) -> tuple[Points, Float64[np.ndarray, " 2"]]:
    rows = rows - rows.mean(axis=0)
    values, axes = np.linalg.eigh(rows.T @ rows)
    part = values[::-1][:2].clip(0) / max(values.sum(), np.finfo(float).tiny)
    points = rows @ axes[:, ::-1][:, :2]
    if points.shape[1] < 2:  # embeddings of one number
        points, part = np.pad(points, ((0, 0), (0, 1))), np.pad(part, (0, 1))
    return points, part

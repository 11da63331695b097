"""What a configuration says of measuring, as arguments of ``aurank.evaluate``."""

from dataclasses import replace
from typing import Any

import numpy as np

from aurank.config import Config
from aurank.embedding.embed import Embedded
from aurank.evaluation.report import Report
from aurank.evaluation.two_way import TwoWayReport


def evaluation_options(config: Config) -> dict[str, Any]:
    """The arguments of ``aurank.evaluate`` that a configuration holds."""
    settings = config.evaluate
    options: dict[str, Any] = {
        "recall_at": tuple(settings.recall_at),
        "ties": settings.ties,
        "max_memory": settings.max_memory,
    }
    if settings.metrics is not None:
        options["metrics"] = ("mauprc", *settings.metrics)  # by which the best validation is chosen
    return {**options, "distributed": False}  # the main process alone evaluates


def two_way_options(config: Config) -> dict[str, Any]:
    """Return the options of `two_way`: its recalls are at 1, 5 and 10, whatever evaluate.recall_at says."""
    return {name: value for name, value in evaluation_options(config).items() if name not in ("recall_at", "metrics")}


TRIAL = Embedded(
    embeddings=np.array([[1, 0], [1, 0.5], [0, 1], [0.5, 1]], dtype=np.float32),
    labels=np.array([0, 0, 1, 1]),
    ids=np.arange(4),
    paths=np.array(["a", "b", "c", "d"]),
    is_query=np.ones(4, dtype=np.bool_),
    is_gallery=np.ones(4, dtype=np.bool_),
    groups=np.full(4, -1),
)
"""Rows that options are tried on, before hours of embedding or training."""


def try_evaluation(config: Config) -> None:
    """Measure four rows, so that errors come and code is compiled before the first step."""
    TRIAL.evaluate(**evaluation_options(config))


def noted(report: Report, note: str) -> Report:
    """The report with one more note."""
    return replace(report, notes=[*report.notes, note])


def noted_both(report: TwoWayReport, note: str) -> TwoWayReport:
    """The report with one more note in each direction."""
    return TwoWayReport(noted(report.image_to_text, note), noted(report.text_to_image, note))

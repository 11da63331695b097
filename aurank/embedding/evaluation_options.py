"""What a configuration says of measuring, as arguments of ``aurank.evaluate``; rows to try them on; further notes."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from aurank.config import Config
from aurank.data import Manifest
from aurank.distributed import ProcessGroup
from aurank.embedding.embed import Embedded
from aurank.evaluation.metrics import hierarchical_names
from aurank.evaluation.report import Report
from aurank.evaluation.two_way import TwoWayReport

Result = TypeVar("Result", Report, TwoWayReport)
_ALL, _LABELS, _PATHS = np.ones(4, dtype=np.bool_), np.array([0, 0, 1, 1]), np.array(["a", "b", "c", "d"])
_ROWS = np.array([[1, 0], [1, 0.5], [0, 1], [0.5, 1]], dtype=np.float32)
TRIAL = Embedded(
    *(_ROWS, _LABELS, np.arange(4), _PATHS, _ALL, _ALL), groups=np.full(4, -1), super_labels=np.zeros(4, np.int64)
)
"""Rows that options are tried on, before hours of embedding or training."""


def evaluation_options(config: Config) -> dict[str, Any]:
    return {**options_of(vars(config.evaluate)), "distributed": False}


def options_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    wanted = ("recall_at", "ties", "max_memory", "metrics")
    named: dict[str, Any] = {name: settings[name] for name in wanted if settings.get(name) is not None}
    return named | ({"metrics": ("mauprc", *named["metrics"])} if "metrics" in named else {})


def evaluate_together(measure: Callable[..., Result], group: ProcessGroup, **options: Any) -> Result:
    if group.size == 1:
        return measure(**options)
    if measured_alone(**options):
        return group.in_first(lambda: measure(**{**options, "distributed": False}))
    return measure(**{**options, "distributed": None})


def measured_alone(**options: Any) -> bool:
    by_one = any(options.get(name) for name in ("index", "postprocess", "codes"))
    return by_one or bool(hierarchical_names(options.get("metrics")))


def two_way_options(config: Config) -> dict[str, Any]:
    return {name: value for name, value in evaluation_options(config).items() if name not in ("recall_at", "metrics")}


def trial_of(manifest: Manifest) -> Embedded:
    return TRIAL if manifest.super_labels is not None else replace(TRIAL, super_labels=None)


def noted(result: Result, *notes: str) -> Result:
    if isinstance(result, TwoWayReport):
        return TwoWayReport(noted(result.image_to_text, *notes), noted(result.text_to_image, *notes))
    return replace(result, notes=[*result.notes, *notes])

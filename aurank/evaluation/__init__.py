"""Exact evaluation of embeddings over the full gallery: embeddings → ranks → metrics → report."""

from typing import TYPE_CHECKING

from aurank.lazy import lazy_attributes

if TYPE_CHECKING:
    from aurank.evaluation.accuracy_calculator import AccuracyCalculator
    from aurank.evaluation.bootstrap import Resampling
    from aurank.evaluation.calibration import Calibration, calibrate, calibrate_report
    from aurank.evaluation.compare import Comparison, compare, compare_all
    from aurank.evaluation.engine.problem import RetrievalProblem
    from aurank.evaluation.engine.ranks import Ranks, positive_ranks
    from aurank.evaluation.evaluate import evaluate
    from aurank.evaluation.index.approximate import Approximation, approximate_report
    from aurank.evaluation.index.neighbours import Index, Neighbours, neighbours
    from aurank.evaluation.metrics import Curve, precision_recall_curve
    from aurank.evaluation.postprocessing import Codes, PostProcessing
    from aurank.evaluation.probes import ProbeResult, knn, linear_probe
    from aurank.evaluation.report import Report
    from aurank.evaluation.two_way import TwoWayReport, ensemble, prompts, two_way, zero_shot
else:
    __getattr__, __dir__ = lazy_attributes(__name__)

__all__ = [
    "AccuracyCalculator",
    "Approximation",
    "Calibration",
    "Codes",
    "Comparison",
    "Curve",
    "Index",
    "Neighbours",
    "PostProcessing",
    "ProbeResult",
    "Ranks",
    "Report",
    "Resampling",
    "RetrievalProblem",
    "TwoWayReport",
    "approximate_report",
    "calibrate",
    "calibrate_report",
    "compare",
    "compare_all",
    "ensemble",
    "evaluate",
    "knn",
    "linear_probe",
    "neighbours",
    "positive_ranks",
    "precision_recall_curve",
    "prompts",
    "two_way",
    "zero_shot",
]

"""Exact evaluation of embeddings over the full gallery: embeddings → ranks → metrics → report."""

from aurank.evaluation.accuracy_calculator import AccuracyCalculator
from aurank.evaluation.approximate import Approximation, approximate_report, faiss_ranks
from aurank.evaluation.compare import Comparison, compare
from aurank.evaluation.curves import Curve, precision_recall_curve
from aurank.evaluation.evaluate import evaluate
from aurank.evaluation.index import Index, Neighbours, neighbours
from aurank.evaluation.intervals import Resampling
from aurank.evaluation.lists import Sides
from aurank.evaluation.probe_knn import knn
from aurank.evaluation.probe_linear import linear_probe
from aurank.evaluation.probe_result import ProbeResult
from aurank.evaluation.ranks import Ranks, positive_ranks
from aurank.evaluation.report import Report
from aurank.evaluation.two_way import TwoWayReport, ensemble, prompts, two_way, zero_shot

__all__ = [
    "AccuracyCalculator",
    "Approximation",
    "Comparison",
    "Curve",
    "Index",
    "Neighbours",
    "ProbeResult",
    "Ranks",
    "Report",
    "Resampling",
    "Sides",
    "TwoWayReport",
    "approximate_report",
    "compare",
    "ensemble",
    "evaluate",
    "faiss_ranks",
    "knn",
    "linear_probe",
    "neighbours",
    "positive_ranks",
    "precision_recall_curve",
    "prompts",
    "two_way",
    "zero_shot",
]

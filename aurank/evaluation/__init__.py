"""Exact evaluation of embeddings over the full gallery: embeddings → ranks → metrics → report."""

from typing import TYPE_CHECKING

from aurank.lazy import lazy_names

if TYPE_CHECKING:  # the names of these files
    from aurank.evaluation.accuracy_calculator import *
    from aurank.evaluation.bootstrap import *
    from aurank.evaluation.calibration import *
    from aurank.evaluation.compare import *
    from aurank.evaluation.engine.ranks import *
    from aurank.evaluation.evaluate import *
    from aurank.evaluation.index.neighbours import *
    from aurank.evaluation.inputs import *
    from aurank.evaluation.metrics import *
    from aurank.evaluation.postprocessing import *
    from aurank.evaluation.probes import *
    from aurank.evaluation.report import *
    from aurank.evaluation.two_way import *
else:
    NAMES = {
        "accuracy_calculator": ["AccuracyCalculator"],
        "bootstrap": ["Resampling"],
        "calibration": ["Calibration", "calibrate"],
        "compare": ["Comparison", "compare", "compare_all"],
        "engine.ranks": ["Ranks", "positive_ranks"],
        "evaluate": ["evaluate"],
        "inputs": ["RetrievalProblem"],
        "index.neighbours": ["Index", "Neighbours", "neighbours"],
        "metrics": ["Curve", "precision_recall_curve"],
        "postprocessing": ["Codes", "PostProcessing"],
        "probes": ["ProbeResult", "few_shot", "probe"],
        "report": ["Report"],
        "two_way": ["TwoWayReport", "ensemble", "prompts", "two_way", "zero_shot"],
    }
    __getattr__, __dir__, __all__ = lazy_names(__name__, NAMES)

"""Exact evaluation of embeddings over the full gallery: embeddings → ranks → metrics → report."""

from aurank.evaluation.evaluate import evaluate
from aurank.evaluation.ranks import Ranks, positive_ranks
from aurank.evaluation.report import Report

__all__ = ["Ranks", "Report", "evaluate", "positive_ranks"]

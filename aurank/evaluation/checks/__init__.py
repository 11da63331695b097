"""What is wrong with embeddings, or shown by them: pure functions of arrays that `aurank doctor` calls."""

from aurank.evaluation.checks.closeness import close_rows, crowded, near_rows, with_cosines
from aurank.evaluation.checks.labels import DoubtfulLabels, doubtful_labels
from aurank.evaluation.checks.numbers import FaultyRows, Spread, faulty_rows, spread

__all__ = [
    "DoubtfulLabels",
    "FaultyRows",
    "Spread",
    "close_rows",
    "crowded",
    "doubtful_labels",
    "faulty_rows",
    "near_rows",
    "spread",
    "with_cosines",
]

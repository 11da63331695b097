"""Losses that train what retrieval is measured by; each is a pytorch-metric-learning loss."""

from aurank.losses.base import PairLoss
from aurank.losses.miners import MINERS
from aurank.losses.multiple import MultipleLosses
from aurank.losses.pairs import Pairs, Positives, make_pairs
from aurank.losses.smooth_ap import SmoothAPLoss
from aurank.losses.soprc import SOPRCLoss
from aurank.losses.state import RowTable

LOSSES: dict[str, type[PairLoss]] = {
    "smooth_ap": SmoothAPLoss,
    "soprc": SOPRCLoss,
}

__all__ = [
    "LOSSES",
    "MINERS",
    "MultipleLosses",
    "PairLoss",
    "Pairs",
    "Positives",
    "RowTable",
    "SOPRCLoss",
    "SmoothAPLoss",
    "make_pairs",
]

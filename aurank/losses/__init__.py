"""Losses that train what retrieval is measured by; each is a pytorch-metric-learning loss."""

from collections.abc import Callable

from torch import nn

from aurank.losses.auroc import AUROCLoss
from aurank.losses.base import PairLoss
from aurank.losses.blackbox_ap import BlackBoxAPLoss
from aurank.losses.cross_batch import CrossBatchMemory
from aurank.losses.fast_ap import FastAPLoss
from aurank.losses.listwise_ap import ListwiseAPLoss
from aurank.losses.miners import MINERS
from aurank.losses.multiple import MultipleLosses
from aurank.losses.pairs import Pairs, Positives, make_pairs
from aurank.losses.pml import PMLLoss, contrastive, multi_similarity, triplet
from aurank.losses.recall_at_k import RecallAtKLoss
from aurank.losses.semi_variance import SemiVarianceLoss
from aurank.losses.smooth_ap import SmoothAPLoss
from aurank.losses.sogclr import SogCLRLoss
from aurank.losses.soprc import SOPRCLoss
from aurank.losses.state import RowTable, Undoable

LOSSES: dict[str, Callable[..., nn.Module]] = {
    "auroc": AUROCLoss,
    "blackbox_ap": BlackBoxAPLoss,
    "contrastive": contrastive,
    "fast_ap": FastAPLoss,
    "listwise_ap": ListwiseAPLoss,
    "multi_similarity": multi_similarity,
    "recall_at_k": RecallAtKLoss,
    "semi_variance": SemiVarianceLoss,
    "smooth_ap": SmoothAPLoss,
    "sogclr": SogCLRLoss,
    "soprc": SOPRCLoss,
    "triplet": triplet,
}

__all__ = [
    "LOSSES",
    "MINERS",
    "AUROCLoss",
    "BlackBoxAPLoss",
    "CrossBatchMemory",
    "FastAPLoss",
    "ListwiseAPLoss",
    "MultipleLosses",
    "PMLLoss",
    "PairLoss",
    "Pairs",
    "Positives",
    "RecallAtKLoss",
    "RowTable",
    "SOPRCLoss",
    "SemiVarianceLoss",
    "SmoothAPLoss",
    "SogCLRLoss",
    "Undoable",
    "contrastive",
    "make_pairs",
    "multi_similarity",
    "triplet",
]

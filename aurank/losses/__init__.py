"""Losses that train what retrieval is measured by; each is a pytorch-metric-learning loss."""

from collections.abc import Callable

from torch import nn

from aurank.losses.auroc import AUROCLoss
from aurank.losses.base import PairLoss
from aurank.losses.blackbox_ap import BlackBoxAPLoss
from aurank.losses.clip import CLIPLoss, SigLIPLoss
from aurank.losses.cross_batch import CrossBatchMemory
from aurank.losses.cyclip import CyCLIPLoss
from aurank.losses.decoupled import DCLLoss, FlatNCELoss, SiMoLoss
from aurank.losses.emc2 import EMC2Loss
from aurank.losses.emc2_miner import EMC2Miner
from aurank.losses.fast_ap import FastAPLoss
from aurank.losses.fastclip import FastCLIPLoss
from aurank.losses.info_nce import InfoNCELoss, SupConLoss
from aurank.losses.isogclr import ISogCLRLoss
from aurank.losses.lightly import LightlyLoss, barlow_twins, from_lightly, vicreg
from aurank.losses.listwise_ap import ListwiseAPLoss
from aurank.losses.miners import MINERS
from aurank.losses.multiple import MultipleLosses
from aurank.losses.negative_cache import NegativeCacheLoss
from aurank.losses.neuclip import NeuCLIPLoss
from aurank.losses.pairs import Pairs, Positives, make_pairs
from aurank.losses.pml import PMLLoss, contrastive, multi_similarity, triplet
from aurank.losses.recall_at_k import RecallAtKLoss
from aurank.losses.semi_variance import SemiVarianceLoss
from aurank.losses.simco import SimCoLoss
from aurank.losses.smooth_ap import SmoothAPLoss
from aurank.losses.sogclr import SogCLRLoss
from aurank.losses.soprc import SOPRCLoss
from aurank.losses.spectral import SpectralContrastiveLoss
from aurank.losses.state import RowTable, Undoable

LOSSES: dict[str, Callable[..., nn.Module]] = {
    "auroc": AUROCLoss,
    "barlow_twins": barlow_twins,
    "blackbox_ap": BlackBoxAPLoss,
    "clip": CLIPLoss,
    "contrastive": contrastive,
    "cyclip": CyCLIPLoss,
    "dcl": DCLLoss,
    "emc2": EMC2Loss,
    "fast_ap": FastAPLoss,
    "fastclip": FastCLIPLoss,
    "flat_nce": FlatNCELoss,
    "info_nce": InfoNCELoss,
    "isogclr": ISogCLRLoss,
    "lightly": from_lightly,
    "listwise_ap": ListwiseAPLoss,
    "multi_similarity": multi_similarity,
    "negative_cache": NegativeCacheLoss,
    "neuclip": NeuCLIPLoss,
    "recall_at_k": RecallAtKLoss,
    "semi_variance": SemiVarianceLoss,
    "siglip": SigLIPLoss,
    "simco": SimCoLoss,
    "simo": SiMoLoss,
    "smooth_ap": SmoothAPLoss,
    "sogclr": SogCLRLoss,
    "soprc": SOPRCLoss,
    "spectral": SpectralContrastiveLoss,
    "sup_con": SupConLoss,
    "triplet": triplet,
    "vicreg": vicreg,
}

__all__ = [
    "LOSSES",
    "MINERS",
    "AUROCLoss",
    "BlackBoxAPLoss",
    "CLIPLoss",
    "CrossBatchMemory",
    "CyCLIPLoss",
    "DCLLoss",
    "EMC2Loss",
    "EMC2Miner",
    "FastAPLoss",
    "FastCLIPLoss",
    "FlatNCELoss",
    "ISogCLRLoss",
    "InfoNCELoss",
    "LightlyLoss",
    "ListwiseAPLoss",
    "MultipleLosses",
    "NegativeCacheLoss",
    "NeuCLIPLoss",
    "PMLLoss",
    "PairLoss",
    "Pairs",
    "Positives",
    "RecallAtKLoss",
    "RowTable",
    "SOPRCLoss",
    "SemiVarianceLoss",
    "SiMoLoss",
    "SigLIPLoss",
    "SimCoLoss",
    "SmoothAPLoss",
    "SogCLRLoss",
    "SpectralContrastiveLoss",
    "SupConLoss",
    "Undoable",
    "barlow_twins",
    "contrastive",
    "from_lightly",
    "make_pairs",
    "multi_similarity",
    "triplet",
    "vicreg",
]

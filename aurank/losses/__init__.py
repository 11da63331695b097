"""Losses that train what retrieval is measured by; each is a pytorch-metric-learning loss."""

from collections.abc import Callable

from torch import nn

from aurank.losses.contrastive.clip import CLIPLoss, SigLIPLoss
from aurank.losses.contrastive.cyclip import CyCLIPLoss
from aurank.losses.contrastive.decoupled import DCLLoss, FlatNCELoss, SiMoLoss
from aurank.losses.contrastive.info_nce import InfoNCELoss, SupConLoss
from aurank.losses.contrastive.simco import SimCoLoss
from aurank.losses.contrastive.spectral import SpectralContrastiveLoss
from aurank.losses.core.pair_loss import PairLoss
from aurank.losses.core.pairs import Pairs, Positives, make_pairs
from aurank.losses.core.row_table import RowTable, Undoable
from aurank.losses.global_contrastive.emc2 import EMC2Loss
from aurank.losses.global_contrastive.fastclip import FastCLIPLoss
from aurank.losses.global_contrastive.isogclr import ISogCLRLoss
from aurank.losses.global_contrastive.negative_cache import NegativeCacheLoss
from aurank.losses.global_contrastive.neuclip import NeuCLIPLoss
from aurank.losses.global_contrastive.sogclr import SogCLRLoss
from aurank.losses.miners import MINERS
from aurank.losses.miners.emc2 import EMC2Miner
from aurank.losses.ranking.auroc import AUROCLoss
from aurank.losses.ranking.blackbox_ap import BlackBoxAPLoss
from aurank.losses.ranking.fast_ap import FastAPLoss
from aurank.losses.ranking.listwise_ap import ListwiseAPLoss
from aurank.losses.ranking.recall_at_k import RecallAtKLoss
from aurank.losses.ranking.semi_variance import SemiVarianceLoss
from aurank.losses.ranking.smooth_ap import SmoothAPLoss
from aurank.losses.ranking.soprc import SOPRCLoss
from aurank.losses.wrappers.cross_batch import CrossBatchMemory
from aurank.losses.wrappers.lightly import LightlyLoss, barlow_twins, from_lightly, vicreg
from aurank.losses.wrappers.multiple import MultipleLosses
from aurank.losses.wrappers.pml import PMLLoss, contrastive, multi_similarity, triplet

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

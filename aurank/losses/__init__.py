"""Losses that train what retrieval is measured by; each is a pytorch-metric-learning loss.

The tables list every name that a configuration may give; a loss is imported when it is first used.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from aurank.lazy import LazyTable, lazy_attributes

if TYPE_CHECKING:
    from torch import nn

    from aurank.losses.core.pair_loss import PairLoss
    from aurank.losses.core.pairs import Pairs, Positives, make_pairs
    from aurank.losses.core.row_table import RowTable
    from aurank.losses.global_contrastive.emc2 import EMC2Loss
    from aurank.losses.global_contrastive.negative_cache import NegativeCacheLoss
    from aurank.losses.global_contrastive.neuclip import NeuCLIPLoss
    from aurank.losses.global_contrastive.sogclr import FastCLIPLoss, ISogCLRLoss, SogCLRLoss
    from aurank.losses.in_batch.clip import CLIPLoss, CyCLIPLoss, SigLIPLoss
    from aurank.losses.in_batch.coding_rate import CodingRateLoss
    from aurank.losses.in_batch.contrastive import (
        DCLLoss,
        FlatNCELoss,
        InfoNCELoss,
        SimCoLoss,
        SiMoLoss,
        SpectralContrastiveLoss,
        SupConLoss,
    )
    from aurank.losses.ranking.binned_ap import FastAPLoss, ListwiseAPLoss
    from aurank.losses.ranking.blackbox_ap import BlackBoxAPLoss
    from aurank.losses.ranking.bounded_ranks import HierarchicalAPLoss, SupAPLoss, SupRecallLoss
    from aurank.losses.ranking.smooth_ranks import AUROCLoss, PNPLoss, RecallAtKLoss, SmoothAPLoss
    from aurank.losses.ranking.soprc import SemiVarianceLoss, SOPRCLoss
    from aurank.losses.wrappers.cross_batch import CrossBatchMemory
    from aurank.losses.wrappers.multiple import MultipleLosses
    from aurank.losses.wrappers.pml import (
        PMLLoss,
        ProxyLoss,
        arcface,
        circle,
        contrastive,
        cosface,
        multi_similarity,
        normalized_softmax,
        proxy_anchor,
        proxy_nca,
        soft_triple,
        subcenter_arcface,
        triplet,
    )
else:
    __getattr__, __dir__ = lazy_attributes(__name__)

LOSSES: "LazyTable[Callable[..., nn.Module]]" = LazyTable(
    "aurank.losses",
    {
        "arcface": "wrappers.pml:arcface",
        "auroc": "ranking.smooth_ranks:AUROCLoss",
        "blackbox_ap": "ranking.blackbox_ap:BlackBoxAPLoss",
        "circle": "wrappers.pml:circle",
        "clip": "in_batch.clip:CLIPLoss",
        "coding_rate": "in_batch.coding_rate:CodingRateLoss",
        "contrastive": "wrappers.pml:contrastive",
        "cosface": "wrappers.pml:cosface",
        "cyclip": "in_batch.clip:CyCLIPLoss",
        "dcl": "in_batch.contrastive:DCLLoss",
        "emc2": "global_contrastive.emc2:EMC2Loss",
        "fast_ap": "ranking.binned_ap:FastAPLoss",
        "fastclip": "global_contrastive.sogclr:FastCLIPLoss",
        "flat_nce": "in_batch.contrastive:FlatNCELoss",
        "hierarchical_ap": "ranking.bounded_ranks:HierarchicalAPLoss",
        "info_nce": "in_batch.contrastive:InfoNCELoss",
        "isogclr": "global_contrastive.sogclr:ISogCLRLoss",
        "listwise_ap": "ranking.binned_ap:ListwiseAPLoss",
        "multi_similarity": "wrappers.pml:multi_similarity",
        "negative_cache": "global_contrastive.negative_cache:NegativeCacheLoss",
        "neuclip": "global_contrastive.neuclip:NeuCLIPLoss",
        "normalized_softmax": "wrappers.pml:normalized_softmax",
        "pnp": "ranking.smooth_ranks:PNPLoss",
        "proxy_anchor": "wrappers.pml:proxy_anchor",
        "proxy_nca": "wrappers.pml:proxy_nca",
        "recall_at_k": "ranking.smooth_ranks:RecallAtKLoss",
        "semi_variance": "ranking.soprc:SemiVarianceLoss",
        "siglip": "in_batch.clip:SigLIPLoss",
        "simco": "in_batch.contrastive:SimCoLoss",
        "simo": "in_batch.contrastive:SiMoLoss",
        "smooth_ap": "ranking.smooth_ranks:SmoothAPLoss",
        "soft_triple": "wrappers.pml:soft_triple",
        "sogclr": "global_contrastive.sogclr:SogCLRLoss",
        "soprc": "ranking.soprc:SOPRCLoss",
        "spectral": "in_batch.contrastive:SpectralContrastiveLoss",
        "subcenter_arcface": "wrappers.pml:subcenter_arcface",
        "sup_ap": "ranking.bounded_ranks:SupAPLoss",
        "sup_con": "in_batch.contrastive:SupConLoss",
        "sup_recall": "ranking.bounded_ranks:SupRecallLoss",
        "triplet": "wrappers.pml:triplet",
    },
)

MINERS: "LazyTable[type[nn.Module]]" = LazyTable(
    "aurank.losses",
    {
        "angular": "core.common:pml_miners.AngularMiner",
        "batch_easy_hard": "core.common:pml_miners.BatchEasyHardMiner",
        "batch_hard": "core.common:pml_miners.BatchHardMiner",
        "distance_weighted": "core.common:pml_miners.DistanceWeightedMiner",
        "hdc": "core.common:pml_miners.HDCMiner",
        "multi_similarity": "core.common:pml_miners.MultiSimilarityMiner",
        "pair_margin": "core.common:pml_miners.PairMarginMiner",
        "triplet_margin": "core.common:pml_miners.TripletMarginMiner",
        "uniform_histogram": "core.common:pml_miners.UniformHistogramMiner",
    },
)

__all__ = [
    "LOSSES",
    "MINERS",
    "AUROCLoss",
    "BlackBoxAPLoss",
    "CLIPLoss",
    "CodingRateLoss",
    "CrossBatchMemory",
    "CyCLIPLoss",
    "DCLLoss",
    "EMC2Loss",
    "FastAPLoss",
    "FastCLIPLoss",
    "FlatNCELoss",
    "HierarchicalAPLoss",
    "ISogCLRLoss",
    "InfoNCELoss",
    "ListwiseAPLoss",
    "MultipleLosses",
    "NegativeCacheLoss",
    "NeuCLIPLoss",
    "PMLLoss",
    "PNPLoss",
    "PairLoss",
    "Pairs",
    "Positives",
    "ProxyLoss",
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
    "SupAPLoss",
    "SupConLoss",
    "SupRecallLoss",
    "arcface",
    "circle",
    "contrastive",
    "cosface",
    "make_pairs",
    "multi_similarity",
    "normalized_softmax",
    "proxy_anchor",
    "proxy_nca",
    "soft_triple",
    "subcenter_arcface",
    "triplet",
]

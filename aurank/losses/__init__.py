"""Losses that train what retrieval is measured by; each is a pytorch-metric-learning loss.

The tables list every name that a configuration may give; a loss is imported when it is first used.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from aurank.lazy import LazyTable, lazy_names

LOSSES: "LazyTable[Callable[..., nn.Module]]" = LazyTable(
    __name__,
    {
        "arcface": "wrappers.pml:arcface",
        "auroc": "ranking.smooth_ranks:AUROCLoss",
        "blackbox_ap": "ranking.blackbox_ap:BlackBoxAPLoss",
        "circle": "wrappers.pml:circle",
        "clip": "in_batch.clip:CLIPLoss",
        "compatible": "in_batch.saved_rows:CompatibleLoss",
        "contrastive": "wrappers.pml:contrastive",
        "cosface": "wrappers.pml:cosface",
        "cyclip": "in_batch.clip:CyCLIPLoss",
        "dcl": "in_batch.contrastive:DCLLoss",
        "distill": "in_batch.saved_rows:DistillLoss",
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
    "pytorch_metric_learning",
    {
        "angular": "miners:AngularMiner",
        "batch_easy_hard": "miners:BatchEasyHardMiner",
        "batch_hard": "miners:BatchHardMiner",
        "distance_weighted": "miners:DistanceWeightedMiner",
        "hdc": "miners:HDCMiner",
        "multi_similarity": "miners:MultiSimilarityMiner",
        "pair_margin": "miners:PairMarginMiner",
        "triplet_margin": "miners:TripletMarginMiner",
        "uniform_histogram": "miners:UniformHistogramMiner",
    },
)

if TYPE_CHECKING:  # the names of these files
    from torch import nn

    from aurank.losses.core.pair_loss import *
    from aurank.losses.core.pairs import *
    from aurank.losses.core.row_table import *
    from aurank.losses.global_contrastive.emc2 import *
    from aurank.losses.global_contrastive.negative_cache import *
    from aurank.losses.global_contrastive.neuclip import *
    from aurank.losses.global_contrastive.sogclr import *
    from aurank.losses.in_batch.clip import *
    from aurank.losses.in_batch.contrastive import *
    from aurank.losses.in_batch.saved_rows import *
    from aurank.losses.ranking.binned_ap import *
    from aurank.losses.ranking.blackbox_ap import *
    from aurank.losses.ranking.bounded_ranks import *
    from aurank.losses.ranking.smooth_ranks import *
    from aurank.losses.ranking.soprc import *
    from aurank.losses.wrappers.cross_batch import *
    from aurank.losses.wrappers.multiple import *
    from aurank.losses.wrappers.pml import *
else:
    NAMES = {
        "core.pair_loss": ["PairLoss"],
        "core.pairs": ["Pairs", "Positives", "make_pairs"],
        "core.row_table": ["RowTable"],
        "wrappers.cross_batch": ["CrossBatchMemory"],
        "wrappers.multiple": ["MultipleLosses"],
        "wrappers.pml": ["PMLLoss", "ProxyLoss"],
    }
    for home in LOSSES.homes.values():
        NAMES.setdefault(home.partition(":")[0], []).append(home.partition(":")[2])
    __getattr__, __dir__, __all__ = lazy_names(__name__, NAMES)
    __all__ += ["LOSSES", "MINERS"]

"""Miners by name: PML's, and EMC²'s chains.

What they return only narrows the pairs a loss sees, so every loss takes every miner.
"""

from pytorch_metric_learning import miners
from torch import nn

from aurank.losses.miners.emc2 import EMC2Miner

MINERS: dict[str, type[nn.Module]] = {
    "angular": miners.AngularMiner,
    "batch_easy_hard": miners.BatchEasyHardMiner,
    "batch_hard": miners.BatchHardMiner,
    "distance_weighted": miners.DistanceWeightedMiner,
    "emc2": EMC2Miner,
    "hdc": miners.HDCMiner,
    "multi_similarity": miners.MultiSimilarityMiner,
    "pair_margin": miners.PairMarginMiner,
    "triplet_margin": miners.TripletMarginMiner,
    "uniform_histogram": miners.UniformHistogramMiner,
}

"""What aurank takes from pytorch-metric-learning (PML), imported without scipy.

PML imports scipy.stats and scipy.special, which take a third as long as torch, for two functions that nothing here
calls; scipy imports them by itself when one is called.
"""

from aurank.lazy import without

with without("scipy.stats"), without("scipy.special"):
    from pytorch_metric_learning import losses as pml_losses
    from pytorch_metric_learning import miners as pml_miners
    from pytorch_metric_learning.distances import BaseDistance, CosineSimilarity
    from pytorch_metric_learning.losses import BaseMetricLossFunction
    from pytorch_metric_learning.reducers import AvgNonZeroReducer, BaseReducer, DivisorReducer, MeanReducer, SumReducer
    from pytorch_metric_learning.regularizers import BaseRegularizer
    from pytorch_metric_learning.utils.loss_and_miner_utils import convert_to_triplets, convert_to_weights

__all__ = [
    "AvgNonZeroReducer",
    "BaseDistance",
    "BaseMetricLossFunction",
    "BaseReducer",
    "BaseRegularizer",
    "CosineSimilarity",
    "DivisorReducer",
    "MeanReducer",
    "SumReducer",
    "convert_to_triplets",
    "convert_to_weights",
    "pml_losses",
    "pml_miners",
]

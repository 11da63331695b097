"""What aurank takes from pytorch-metric-learning (PML), imported without scipy.

PML imports scipy.stats and scipy.special, which take a third as long as torch, for two functions that nothing here
calls; scipy imports them by itself when one is called.
"""

from functools import partial
from typing import Any, TypeVar

from torch import Tensor, nn

from aurank.lazy import without
from aurank.losses.core.dtypes import shrink_huge

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
    "for_any_length",
    "pml_losses",
    "pml_miners",
]

Module = TypeVar("Module", bound=nn.Module)


def for_any_length(module: Module) -> Module:
    """Return the module, whose distances now bring rows of any finite length to length 1: PML's squares overflow."""
    for part in module.modules():
        if isinstance(part, BaseDistance) and "normalize" not in vars(part):
            part.normalize = partial(_normalize, part)
    return module


def _normalize(distance: BaseDistance, embeddings: Tensor, dim: int = 1, **options: Any) -> Tensor:
    normalized: Tensor = type(distance).normalize(distance, shrink_huge(embeddings, dim), dim=dim, **options)
    return normalized

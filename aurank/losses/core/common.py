"""What all losses stand on: precision, devices, and what is taken of pytorch-metric-learning (PML), without scipy."""

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

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
    "HostCopy",
    "MeanReducer",
    "SumReducer",
    "convert_to_triplets",
    "convert_to_weights",
    "for_any_length",
    "in_common_precision",
    "normalize",
    "pml_losses",
    "pml_miners",
    "shrink_huge",
    "to_device_of",
    "without_autocast",
]

Module = TypeVar("Module", bound=nn.Module)

# the longest number whose square fits in a sum of squares, and by what a row with a longer one is multiplied
LARGEST = {torch.float32: (2.0**52, 2.0**-80), torch.float64: (2.0**500, 2.0**-530)}


class HostCopy:
    """Copies of tensors on the host; a GPU's are sent now and asked for a step later, so that nothing waits."""

    def __init__(self, *tensors: Tensor) -> None:
        self.copies = [tensor.to("cpu", non_blocking=tensor.is_cuda) for tensor in tensors]  # into pinned memory
        self.event: torch.cuda.Event | None = None
        if tensors[0].is_cuda:
            self.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.event.record()

    def wait(self) -> list[Tensor]:
        if self.event is not None:
            self.event.synchronize()
        return self.copies


def in_common_precision(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Both in float64 if either is, else in float32; the same tensor stays the same tensor."""
    dtype = torch.float64 if torch.float64 in (left.dtype, right.dtype) else torch.float32
    converted = left.to(dtype)
    return converted, converted if right is left else right.to(dtype)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A context in which autocast is off for the device: half precision cannot tell close similarities apart."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def normalize(rows: Tensor, dim: int = 1) -> Tensor:
    return functional.normalize(shrink_huge(rows, dim), dim=dim)


def shrink_huge(rows: Tensor, dim: int = 1) -> Tensor:
    """Return the rows, those whose squares would overflow times a power of two, which changes no direction."""
    if rows.dtype not in LARGEST:
        return rows
    largest, factor = LARGEST[rows.dtype]
    known = rows.detach()
    peak = torch.maximum(known.amax(dim, keepdim=True), -known.amin(dim, keepdim=True))
    huge = peak > largest
    return rows * torch.ones_like(peak).masked_fill(huge, factor)


def to_device_of(like: Tensor, values: Tensor) -> Tensor:
    return values.to(like.device, non_blocking=True)


def for_any_length(module: Module) -> Module:
    """Return the module, whose distances now bring rows of any finite length to length 1: PML's squares overflow."""
    for part in module.modules():
        if isinstance(part, BaseDistance) and "normalize" not in vars(part):
            part.normalize = partial(_normalize, part)
    return module


def _normalize(distance: BaseDistance, embeddings: Tensor, dim: int = 1, **options: Any) -> Tensor:
    normalized: Tensor = type(distance).normalize(distance, shrink_huge(embeddings, dim), dim=dim, **options)
    return normalized

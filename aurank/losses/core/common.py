"""Precision and devices, as all losses treat them."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


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


def to_device_of(like: Tensor, values: Tensor) -> Tensor:
    return values.to(like.device, non_blocking=True)

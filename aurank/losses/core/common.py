"""Precision and devices, as all losses treat them."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn import functional


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
    return functional.normalize(rows, dim=dim)


def to_device_of(like: Tensor, values: Tensor) -> Tensor:
    return values.to(like.device, non_blocking=True)

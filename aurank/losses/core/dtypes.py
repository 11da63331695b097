"""Where numbers live and how exact they are: the precision and the device of what a loss computes with."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn import functional

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
        """Return the copies, once they have come."""
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
    """Return the rows at length 1, those whose squares would overflow too."""
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
    """The values on the other tensor's device, sent without waiting for it."""
    return values.to(like.device, non_blocking=True)

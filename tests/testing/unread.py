"""A device whose numbers nobody can read: what waits for one fails here."""

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Unread(TorchDispatchMode):
    """While entered, tensors on `cuda` have shapes and no values, and those on the host are as ever.

    No GPU is needed. What would make the host wait for a device fails: a copy to the host, a number, an `if`, a shape
    that depends on values, as that of nonzero() and of boolean indexing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)

    def __enter__(self) -> "Unread":
        self.fake.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *reason: Any) -> None:
        super().__exit__(*reason)
        self.fake.__exit__(*reason)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        on_device = any(isinstance(value, FakeTensor) for value in tree_leaves((args, kwargs)))
        if on_device and device is not None and torch.device(device).type == "cpu":
            raise AssertionError(f"{func} copies numbers of the device to the host")
        if on_device or (device is not None and torch.device(device).type == "cuda"):
            return func(*args, **kwargs)
        with unset_fake_temporarily():
            return func(*args, **kwargs)


def on_device(values: Tensor) -> Tensor:
    """The tensor on the device, inside of `Unread`."""
    return values.to("cuda")

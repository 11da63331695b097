"""Losses and miners with a state: how each is made, compared and read."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from testing.cases import COUNTS, FURTHER, SAMPLES, TABLE
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from aurank import losses


def same_state(one: object, other: object) -> bool:
    """True if both hold the same keys, types, dtypes and values to the last bit, however deep."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and one.equal(other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_state(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same_state, one, other))
    return one == other


WIDTH = 6
PROXIES = ["arcface", "cosface", "normalized_softmax", "proxy_anchor", "proxy_nca", "soft_triple", "subcenter_arcface"]
KEYED = {"views": SAMPLES}
LABELS = torch.tensor([0] * 5 + [1] * 2 + [2] * 6 + [4] * 3 + [5] * 2)


class OfLabels(nn.Module):
    """A loss as one of embeddings and labels alone; `further` makes its other arguments of them."""

    def __init__(self, loss: nn.Module, further: Callable[[Tensor, Tensor], dict[str, Tensor]]) -> None:
        super().__init__()
        self.loss, self.further = loss, further

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        value: Tensor = self.loss(embeddings, labels, **self.further(embeddings, labels))
        return value


def against_another_modality(loss: nn.Module) -> nn.Module:
    """A two-way loss as one of a single batch: the texts are the images moved a little."""
    return OfLabels(loss, lambda images, labels: {"ref_emb": images.roll(1, 1), "ref_labels": labels})


def with_falling_gamma() -> nn.Module:
    """FastCLIP with a temperature for each sample, some way into a training."""
    loss = losses.FastCLIPLoss(SAMPLES, "v2", rho=0.3, **KEYED)
    loss.gamma.set_progress(step=1, steps=9, epoch=1, epochs=9.0)
    return against_another_modality(loss)


def reencoded(loss: losses.NegativeCacheLoss | losses.EMC2Loss) -> nn.Module:
    """The loss with a function that embeds images anew."""
    loss.reencode = lambda ids: torch.nn.functional.one_hot(ids % WIDTH, WIDTH).float()
    return loss


def of_saved_rows(name: str) -> nn.Module:
    """A loss of saved rows as one of labels alone, which are taken for rows of the data set."""
    rows = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(0))
    return OfLabels(losses.LOSSES[name](rows), lambda embeddings, labels: {"ids": labels})


def several() -> nn.Module:
    """Losses side by side, one of them in a memory."""
    memory = losses.CrossBatchMemory(losses.SOPRCLoss(COUNTS), embedding_size=WIDTH, memory_size=40)
    return losses.MultipleLosses(
        {"memory": memory, "sogclr": losses.SogCLRLoss(SAMPLES, views=SAMPLES), "pml": losses.contrastive()}
    )


FURTHER_STATEFUL: dict[str, Callable[[], nn.Module]] = {
    "blackbox_ap margin": losses.BlackBoxAPLoss,
    "clip two_way": lambda: against_another_modality(losses.CLIPLoss()),
    "circle": losses.LOSSES["circle"],
    "compatible": partial(of_saved_rows, "compatible"),
    "contrastive": losses.LOSSES["contrastive"],
    "cross_batch_memory": lambda: losses.CrossBatchMemory(losses.contrastive(), embedding_size=WIDTH, memory_size=40),
    "distill": partial(of_saved_rows, "distill"),
    "emc2 reencode": lambda: reencoded(losses.EMC2Loss(SAMPLES, out_of_batch="reencode", **KEYED)),
    "fastclip v2 cosine": with_falling_gamma,
    "hierarchical_ap clustering": lambda: losses.HierarchicalAPLoss([0] * 6, clustering=0.1, embedding_size=WIDTH),
    "multi_similarity": losses.LOSSES["multi_similarity"],
    "negative_cache refresh": lambda: reencoded(
        losses.NegativeCacheLoss(SAMPLES, out_of_batch="reencode", refresh=0.2, embedding_size=WIDTH, **KEYED)
    ),
    "neuclip two_way": lambda: against_another_modality(losses.NeuCLIPLoss(WIDTH, 16, restart_every=2)),
    "recall_at_k similarity_mixup": lambda: losses.RecallAtKLoss(similarity_mixup=True),
    "several": several,
    "triplet": losses.LOSSES["triplet"],
}
EVERY: dict[str, Callable[[], nn.Module]] = {name: case.make for name, case in (TABLE | FURTHER).items()}
EVERY |= FURTHER_STATEFUL
EVERY |= {name: partial(losses.LOSSES[name], num_classes=6, embedding_size=WIDTH) for name in PROXIES}
STATEFUL = {name: make for name, make in EVERY.items() if make().state_dict()}


def batch(seed: int) -> tuple[Tensor, Tensor]:
    """Embeddings in float32, which ask for a gradient, and labels, in an order of its own."""
    random = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(LABELS), generator=random)
    return torch.randn(len(LABELS), WIDTH, generator=random).requires_grad_(), LABELS[order]


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

"""No loss makes the host wait for the device, where labels and ids are on the host."""

from collections.abc import Callable, Iterator

import pytest
import torch
from testing.cases import MADE_MINERS
from testing.stateful import EVERY, PROXIES, Unread
from torch import Tensor, nn

from aurank.losses import LOSSES, contrastive
from aurank.losses.core.row_table import SavedGenerator

LABELS = torch.tensor([0] * 5 + [1] * 2 + [2] * 6 + [3] + [4] * 3 + [5])
IDS = torch.arange(len(LABELS))
ROWS = torch.randn(len(LABELS), 6, generator=torch.Generator().manual_seed(0))

# Of everything else nothing is read; docs/losses.md has the same list.
WAIT = {
    "cross_batch_memory": "how full it is comes a step late, through a copy that a device is needed for",
    "several": "it holds a memory",
    "emc2 miner": "what a miner finds has a shape that depends on values",
    "emc2 reencode": "images are embedded anew by their ids, which are read for that",
    "negative_cache refresh": "images are embedded anew by their ids, which are read for that",
}
# Nothing is read, but they need a device that is there.
ELSEWHERE = {
    "isogclr host": "rows of a table on the host go through pinned memory; in core/test_losses_gpu.py",
    "sogclr host": "the same",
    "neuclip steps": "gradients are taken within; on meta in test_contract.py",
    "neuclip two_way": "the same",
}
MINERS_WAIT = set(MADE_MINERS)  # all: a list of pairs or triplets is as long as values have it
MISSING = {"lightly", "barlow_twins", "vicreg"}  # a library that may not be there: test_lightly.py
FORWARD = sorted(EVERY.keys() - WAIT.keys() - ELSEWHERE.keys())


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Drawn on the device without being looked at: but there is no generator of a device that is not there.
    monkeypatch.setattr(SavedGenerator, "on_device", lambda self, device: None)
    with Unread():
        yield


def moved(module: nn.Module) -> nn.Module:
    """The module on the device; `Module.to` would ask whether the device is there."""
    for part in module.modules():
        for name, value in part._parameters.items():
            part._parameters[name] = None if value is None else nn.Parameter(value.detach().to("cuda"))
        for name, value in part._buffers.items():
            part._buffers[name] = None if value is None else value.to("cuda")
    return module


def test_every_loss_is_tried() -> None:
    assert {name.split()[0] for name in EVERY} >= LOSSES.keys() - MISSING
    assert (WAIT | ELSEWHERE).keys() <= EVERY.keys()


@pytest.mark.slow
@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", FORWARD)
def test_a_forward_pass_reads_nothing_of_the_device(name: str) -> None:
    loss, rows = moved(EVERY[name]()), ROWS.to("cuda").requires_grad_()
    takes_ids = hasattr(loss, "gather")
    for _ in range(2):
        value = loss(rows, LABELS, ids=IDS) if takes_ids else loss(rows, LABELS)
    assert value.shape == ()
    assert value.device.type == "cuda"


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", [name for name in FORWARD if name in {"contrastive", "triplet", "multi_similarity"}])
def test_a_loss_of_pml_with_references_reads_nothing(name: str) -> None:
    loss, rows = EVERY[name](), ROWS.to("cuda").requires_grad_()
    value = loss(rows, LABELS, ref_emb=rows.detach(), ref_labels=LABELS.clone(), ids=IDS, ref_ids=IDS)
    assert value.shape == ()


@pytest.mark.parametrize("name", [*PROXIES, "circle", "contrastive", "multi_similarity", "triplet"])
def test_a_backward_pass_of_pml_reads_nothing(name: str) -> None:
    """Those of aurank's own are in test_contract.py."""
    loss, rows = EVERY[name]().to("meta"), ROWS.to("meta").requires_grad_()
    loss(rows, LABELS, ids=IDS).backward()
    assert rows.grad is not None
    assert rows.grad.is_meta
    assert all(one.grad is not None for one in loss.parameters())


@pytest.mark.parametrize(
    "read", [Tensor.item, Tensor.cpu, Tensor.nonzero, lambda rows: rows[rows > 0], Tensor.__bool__]
)
def test_the_device_refuses_to_be_read(read: Callable[[Tensor], object]) -> None:
    with Unread():
        values = torch.ones(()).to("cuda") if read in (Tensor.item, Tensor.__bool__) else torch.ones(3).to("cuda")
        with pytest.raises(Exception, match=r"copies numbers|nonzero|_local_scalar_dense|data-dependent"):
            read(values)
        assert torch.ones(3).nonzero().shape == (3, 1)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", sorted(MINERS_WAIT))
def test_a_miner_waits(name: str) -> None:
    rows = ROWS.to("cuda").requires_grad_()
    with pytest.raises(Exception):  # noqa: B017, PT011 (of several kinds)
        contrastive()(rows, LABELS, MADE_MINERS[name](), ids=IDS)

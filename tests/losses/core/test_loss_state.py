"""What losses, memories and miners keep: when it is written, and that tensors hold all of it."""

import copy
from collections.abc import Callable

import pytest
import torch
from safetensors.torch import load, save
from testing.stateful import STATEFUL, batch
from testing.states import same_state
from torch import nn

from aurank.losses import BlackBoxAPLoss, NegativeCacheLoss, NeuCLIPLoss, SogCLRLoss

EACH = pytest.mark.parametrize("make", STATEFUL.values(), ids=STATEFUL.keys())


@pytest.mark.parametrize(
    ("name", "disabled"),
    [(name, torch.no_grad) for name in STATEFUL]
    + [(name, torch.inference_mode) for name in ("soprc", "neuclip steps", "several")],
)
def test_nothing_is_written_while_gradients_are_disabled(name: str, disabled: Callable[[], torch.no_grad]) -> None:
    # fastai and an external loss in HF's Trainer validate so: the model in evaluation mode, the loss in training mode
    loss = STATEFUL[name]()
    for _ in range(2):  # before its first batch, and after
        other, before = copy.deepcopy(loss), copy.deepcopy(loss.state_dict())
        with disabled():
            value = loss(*batch(seed=1))
        assert same_state(loss.state_dict(), before)
        assert value == other.eval()(*batch(seed=1))
        other.train()
        for each in (other, loss):
            each(*batch(seed=2)).backward()
        assert same_state(loss.state_dict(), other.state_dict())


@EACH
def test_a_state_goes_through_safetensors_and_the_next_step_is_the_same_to_the_last_bit(
    make: Callable[[], nn.Module],
) -> None:
    # HF's Trainer and Accelerate write their checkpoints so
    loss, restored = make(), make()
    for seed in range(3):
        loss(*batch(seed)).backward()
    restored.load_state_dict(load(save(loss.state_dict())))
    assert same_state(restored.state_dict(), loss.state_dict())
    values, gradients = [], []
    for each in (loss, restored):
        embeddings, labels = batch(seed=3)
        values.append(each(embeddings, labels))
        gradients.append(torch.autograd.grad(values[-1], embeddings)[0])
    assert values[0] == values[1]
    assert gradients[0].equal(gradients[1])
    assert same_state(restored.state_dict(), loss.state_dict())


OLD: dict[str, tuple[Callable[[], nn.Module], dict[str, object]]] = {
    "negative_cache": (lambda: NegativeCacheLoss(8, embedding_dim=2), {"_extra_state": {"turn": 3}}),
    "neuclip": (
        lambda: NeuCLIPLoss(2, 4, two_way=False),
        {"networks.0._extra_state": {"steps": 5, "count": 4, "position": 1, "filled": 3}},
    ),
    "sogclr": (lambda: SogCLRLoss(8, gamma_schedule="cosine"), {"gamma._extra_state": 0.625}),
    "blackbox_ap": (
        lambda: BlackBoxAPLoss(official=True, batch_memory=2),
        {
            "memory._extra_state": [
                (
                    torch.tensor([[0.5, -0.25]]),
                    torch.tensor([[True, False]]),
                    torch.tensor([[0]]),
                    torch.tensor([[True]]),
                )
            ]
        },
    ),
}


@pytest.mark.parametrize("name", OLD)
def test_a_checkpoint_from_before_states_were_tensors_still_loads(name: str) -> None:
    make, old = OLD[name]
    loss, again = make(), make()
    assert old.keys() <= loss.state_dict().keys()
    loss.load_state_dict({**loss.state_dict(), **old})
    ((key, saved),) = old.items()
    part = loss.get_submodule(key.removesuffix("_extra_state").removesuffix("."))
    if isinstance(saved, dict):
        assert {each: getattr(part, each) for each in saved} == saved
    elif isinstance(saved, list):
        assert same_state([tuple(lists) for lists in part.batches], saved)
    else:
        assert part.value == saved
    again.load_state_dict(loss.state_dict())
    assert same_state(again.state_dict(), loss.state_dict())

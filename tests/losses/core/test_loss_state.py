"""What losses, memories and miners keep: when it is written, and that tensors hold all of it."""

import copy
from collections.abc import Callable

import pytest
import torch
from safetensors.torch import load, save
from testing.stateful import STATEFUL, batch, same_state
from torch import nn

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
        assert same_state(before, other.state_dict())
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
    for seed in range(2):
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

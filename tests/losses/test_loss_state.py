"""What losses, memories and miners keep: when it is written."""

import copy
from collections.abc import Callable

import pytest
import torch
from stateful import EVERY, batch
from states import same_state
from torch import nn

EACH = pytest.mark.parametrize("make", EVERY.values(), ids=EVERY.keys())


@EACH
@pytest.mark.parametrize("disabled", [torch.no_grad, torch.inference_mode])
def test_nothing_is_written_while_gradients_are_disabled(
    make: Callable[[], nn.Module], disabled: Callable[[], torch.no_grad]
) -> None:
    # fastai and an external loss in HF's Trainer validate so: the model in evaluation mode, the loss in training mode
    loss = make()
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

"""Gradients of a compiled encoder, with all that goes with it, and how far they are from those without any of it.

Alone, since checks of types keep functions from being compiled. The backend given on the command line compiles:
aot_eager in the tests, as what inductor writes takes a compiler minutes; `inductor` by hand.
"""

import json
import sys
from functools import partial
from typing import Any

import torch
from accelerate.state import AcceleratorState
from testing.runs import tiny_config

from aurank.data import view_keys
from aurank.training import read_config
from aurank.training.build import build_splits
from aurank.training.state import seed_everything
from aurank.training.trainer import Trainer

TOGETHER = {"compile": True, "micro_batch": 5}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "all in float32": ({"channels_last": True}, TOGETHER),
    "all in bfloat16": ({"channels_last": True}, {**TOGETHER, "mixed_precision": "bf16"}),
}


def gradient(model: dict[str, Any], train: dict[str, Any]) -> tuple[torch.Tensor, list[str]]:
    """The gradient of two accumulated batches, of which the last is smaller, and the names of the weights."""
    AcceleratorState._reset_state(reset_partial_state=False)  # a precision of its own
    network = {"backbone": "test_vit", "params": {"img_size": 16, "depth": 1}, **model}
    settings = {"train": {"accumulate": 2, **train}, "model": network}
    config = read_config(tiny_config({"name": "smooth_ap", "params": {"temperature": 0.1}}, **settings))
    seed_everything(0)
    trainer = Trainer(config, build_splits(config))
    whole = next(trainer.sampler.iterate(0, 0))[2]
    for rows in (whole, whole[:12]):
        _, loss = trainer.forward(trainer.train_data.__getitems__(view_keys(rows, 0)))
        trainer.backward(loss)
    found = [each.grad.flatten() for each in trainer.model.parameters() if each.grad is not None]
    return torch.cat(found), list(trainer.model.state_dict())


def main() -> None:
    torch.set_num_threads(1)
    torch.compile = partial(torch.compile, backend=sys.argv[1])
    plain, names = gradient({}, {})
    found = {}
    for case, (model, train) in CASES.items():
        other, same = gradient(model, train)
        assert same == names
        found[case] = float((other - plain).norm() / plain.norm())
    found["bfloat16 alone"] = float((gradient({}, {"mixed_precision": "bf16"})[0] - plain).norm() / plain.norm())
    print(json.dumps(found))


if __name__ == "__main__":
    main()

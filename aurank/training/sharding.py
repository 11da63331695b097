"""Weights, gradients and optimiser state shared out over the processes (train.sharded), and whole copies of them."""

import copy
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from aurank.config import Config
from aurank.errors import UserError

LARGE = 1_000_000  # parameters of a layer that is gathered by itself

_REFUSED = "train.sharded=true does not work with"


class ShardedCopy:
    """A model whose weights are shared out over the processes by FSDP2, beside the whole one that it was made of.

    The sharded one is trained. The whole one is measured and saved: `gather` takes the weights over, `spread` gives
    them back. All processes call these together.

    Args:
        whole: on the device that all train on.
    """

    def __init__(self, whole: nn.Module) -> None:
        self.whole = whole
        self.module = copy.deepcopy(whole)
        mesh = init_device_mesh(next(whole.parameters()).device.type, (distributed.get_world_size(),))
        for layer in _layers(self.module):
            fully_shard(layer, mesh=mesh)
        fully_shard(self.module, mesh=mesh)

    @torch.no_grad()
    def gather(self) -> None:
        """Give the whole model the weights as they stand, and the statistics of the first process."""
        for own, sharded in zip(self.whole.parameters(), self.module.parameters(), strict=True):
            own.copy_(whole_tensor(sharded))
        for kept, theirs in zip(self.whole.buffers(), self.module.buffers(), strict=True):
            kept.copy_(theirs)
            distributed.broadcast(kept, 0)

    @torch.no_grad()
    def spread(self) -> None:
        """Give the sharded model the weights and statistics of the whole one."""
        for own, sharded in zip(self.whole.parameters(), self.module.parameters(), strict=True):
            sharded.copy_(as_sharded(own, sharded))
        for kept, theirs in zip(self.whole.buffers(), self.module.buffers(), strict=True):
            theirs.copy_(kept)


def whole_tensor(value: Any) -> Any:
    """Return a tensor that is shared out as a whole one, which all processes ask for together; all else as it is."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def whole_state(state: Any) -> Any:
    """Return an optimiser's state, or any part of it, with whole tensors; all processes call it."""
    if isinstance(state, dict):
        return {name: whole_state(value) for name, value in state.items()}
    return [whole_state(value) for value in state] if isinstance(state, list) else whole_tensor(state)


def spread_state(optimiser: Optimizer, config: Config) -> None:
    """Share out what `load_state_dict` took over whole."""
    settle_on_shards(optimiser, config)
    for parameter, state in optimiser.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                state[name] = as_sharded(value, parameter)


def as_sharded(value: Tensor, like: Tensor) -> Tensor:
    """Return a whole tensor, which every process has, shared out as the other one is."""
    if not isinstance(like, DTensor) or isinstance(value, DTensor):
        return value
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)


def settle_on_shards(optimiser: Optimizer, config: Config) -> None:
    """Let the optimiser step shards; UserError for one that is not known to."""
    if config.optim.name not in ("sgd", "adam", "adamw"):
        raise UserError(f"{_REFUSED} optim.name={config.optim.name}; use adamw, adam or sgd")
    if config.optim.name == "sgd":  # torch has no fused one for shards
        for group in optimiser.param_groups:
            group["fused"] = False


def require_shardable(config: Config) -> None:
    """Raise UserError for what sharded weights cannot be combined with."""
    settings = config.train
    if settings.micro_batch is not None:
        raise UserError(
            f"{_REFUSED} train.micro_batch={settings.micro_batch}: processes may have other numbers of chunks; use "
            "model.gradient_checkpointing=true, or train.sharded=false"
        )
    if settings.mixed_precision == "fp16":
        raise UserError(f"{_REFUSED} train.mixed_precision=fp16; use bf16 or no")
    if settings.compile:
        raise UserError(f"{_REFUSED} train.compile=true; set one of them to false")
    if config.model.text is not None:
        raise UserError(f"{_REFUSED} model.text, which has two encoders; set train.sharded=false")


def _layers(model: nn.Module) -> list[nn.Module]:
    """The largest elements of lists of layers that are each gathered by themselves, as the blocks of a transformer."""
    found: list[nn.Module] = []
    for child in model.children():
        if isinstance(model, nn.Sequential | nn.ModuleList) and _size(child) >= LARGE:
            found.append(child)
        else:
            found += _layers(child)
    return found


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())

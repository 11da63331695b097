"""Weights, gradients and optimiser state that are sharded over the processes (train.sharded), and whole copies."""

import copy
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from aurank.config import Config
from aurank.distributed import ProcessGroup

LARGE = 1_000_000  # parameters of a layer that is gathered by itself


class ShardedCopy:
    """A model that FSDP2 shards over the processes, which is trained, beside the whole one that is measured and saved.

    All processes call the methods together.
    """

    def __init__(self, whole: nn.Module) -> None:
        self.whole = whole
        self.group = ProcessGroup(None)
        self.group.broadcast([*whole.parameters(), *whole.buffers()])
        device = next(whole.parameters()).device
        # On the host: a layer goes to the device when it is sharded, so that there are never two whole models.
        self.module = copy.deepcopy(whole.cpu())
        _make_shardable(self.module)
        mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
        for layer in [*_large_layers(self.module), self.module]:
            fully_shard(layer, mesh=mesh)
        whole.to(device)

    @torch.no_grad()
    def gather(self) -> None:
        """Give the whole model the weights as they stand, and the statistics of the first process."""
        for whole, sharded in zip(self.whole.parameters(), self.module.parameters(), strict=True):
            assert isinstance(sharded, DTensor)
            whole.copy_(sharded.full_tensor().view_as(whole))
        for value, own in zip(self.whole.buffers(), self.module.buffers(), strict=True):
            value.copy_(own)
        self.group.broadcast(self.whole.buffers())

    @torch.no_grad()
    def spread(self) -> None:
        for whole, sharded in zip(self.whole.parameters(), self.module.parameters(), strict=True):
            _copy_shard(whole, sharded)
        for value, own in zip(self.whole.buffers(), self.module.buffers(), strict=True):
            own.copy_(value)

    @torch.no_grad()
    def optimiser_state(self, optimiser: Optimizer, *, keep: bool) -> dict[str, Any]:
        """Return the optimiser's state on the host, as one of the whole model has it; nothing unless ``keep``."""
        state = optimiser.state_dict()
        wholes: dict[Any, Tensor] = dict(zip(self.module.parameters(), self.whole.parameters(), strict=True))
        held = {index: dict(values) for index, values in state["state"].items()}
        for index, parameter in enumerate(_parameters(optimiser)):
            for name, value in held.get(index, {}).items():
                if isinstance(value, DTensor):
                    gathered, like = value.full_tensor(), wholes[parameter]
                    held[index][name] = (
                        torch.empty_like(like, device="cpu").copy_(gathered.view_as(like)) if keep else None
                    )
        return {**state, "state": held} if keep else {}


def load_state(optimiser: Optimizer, saved: dict[str, Any]) -> None:
    parameters = _parameters(optimiser)

    @torch.no_grad()
    def fitted(value: Any, parameter: Tensor) -> Any:
        if not isinstance(value, Tensor) or value.shape != parameter.shape:
            return value
        if not isinstance(parameter, DTensor):  # laid out as the parameter, as a run that never stopped has it
            return torch.empty_like(parameter, dtype=value.dtype, device=value.device).copy_(value)
        shard = torch.zeros_like(parameter)
        _copy_shard(value, shard)
        return shard

    held = {
        index: {name: value if name == "step" else fitted(value, parameters[index]) for name, value in values.items()}
        for index, values in saved["state"].items()
    }
    optimiser.load_state_dict({**saved, "state": held})


def _parameters(optimiser: Optimizer) -> list[Tensor]:
    return [parameter for group in optimiser.param_groups for parameter in group["params"]]


def _copy_shard(whole: Tensor, sharded: Tensor) -> None:
    assert isinstance(sharded, DTensor)
    whole = whole.detach().view(sharded.shape)
    part = distribute_tensor(whole, sharded.device_mesh, sharded.placements, src_data_rank=None)
    sharded.to_local().copy_(part.to_local())


def _make_shardable(model: nn.Module) -> None:
    """Give single numbers a dimension, and lay out all weights in order: FSDP2 shards no others."""
    made: dict[nn.Parameter, nn.Parameter] = {}  # a parameter may stand in several modules
    for module in model.modules():
        for name, own in list(module._parameters.items()):
            if own is None or (own.ndim and own.is_contiguous()):
                continue
            if own not in made:
                made[own] = nn.Parameter(own.detach().reshape(own.shape or (1,)).contiguous(), own.requires_grad)
            setattr(module, name, made[own])


def _large_layers(model: nn.Module) -> list[nn.Module]:
    """The outermost large elements of lists of layers, such as the blocks of a transformer."""
    layers: list[nn.Module] = []
    for child in model.children():
        size = sum(parameter.numel() for parameter in child.parameters())
        is_large = isinstance(model, nn.Sequential | nn.ModuleList) and size >= LARGE
        layers += [child] if is_large else _large_layers(child)
    return layers


def prepare_for_shards(optimiser: Optimizer, config: Config) -> None:
    if config.optim.name == "sgd":  # torch has no fused one for shards
        for group in optimiser.param_groups:
            group["fused"] = False

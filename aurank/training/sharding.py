"""Weights, gradients and optimiser state shared out over the processes (train.sharded), and whole copies of them."""

import copy
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
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
        device = next(whole.parameters()).device
        for value in itertools.chain(whole.parameters(), whole.buffers()):
            _send_first(value)
        # On the host: a layer goes to the device when it is shared out, so that there are never two whole models.
        self.module = copy.deepcopy(whole.cpu())
        _make_shardable(self.module)
        mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
        for layer in _layers(self.module):
            fully_shard(layer, mesh=mesh)
        fully_shard(self.module, mesh=mesh)
        whole.to(device)

    @torch.no_grad()
    def gather(self) -> None:
        """Give the whole model the weights as they stand, and the statistics of the first process."""
        for own, sharded in zip(self.whole.parameters(), self.module.parameters(), strict=True):
            own.copy_(_whole(sharded).view_as(own))
        for kept, theirs in zip(self.whole.buffers(), self.module.buffers(), strict=True):
            kept.copy_(theirs)
            _send_first(kept)

    @torch.no_grad()
    def spread(self) -> None:
        """Give the sharded model the weights and statistics of the whole one."""
        for own, sharded in zip(self.whole.parameters(), self.module.parameters(), strict=True):
            _take_part(own, sharded)
        for kept, theirs in zip(self.whole.buffers(), self.module.buffers(), strict=True):
            theirs.copy_(kept)

    @torch.no_grad()
    def optimiser_state(self, optimiser: Optimizer, *, keep: bool) -> dict[str, Any]:
        """Return the state of the optimiser on the host, as one of the whole model has it.

        All processes call it, and those that do not keep it get nothing. No device holds more than one whole tensor.
        """
        state = optimiser.state_dict()
        wholes = dict(zip(self.module.parameters(), self.whole.parameters(), strict=True))

        def on_host(value: Any, parameter: Tensor) -> Any:
            if not isinstance(value, DTensor):
                return value
            whole, like = _whole(value), wholes[parameter]  # type: ignore[index]
            return torch.empty_like(like, device="cpu").copy_(whole.view_as(like)) if keep else None

        held = _each_value(on_host, state["state"], optimiser)
        return {**state, "state": held} if keep else {}


def load_state(optimiser: Optimizer, saved: dict[str, Any]) -> None:
    """Load an optimiser's state; of parameters that are shared out each process takes its part from the host."""

    def part(value: Any, parameter: Tensor) -> Any:
        if not isinstance(value, Tensor) or value.shape != parameter.shape:
            return value
        if not isinstance(parameter, DTensor):  # laid out as the parameter, as a run that never stopped has it
            return torch.empty_like(parameter, dtype=value.dtype, device=value.device).copy_(value)
        shard = torch.zeros_like(parameter)
        _take_part(value, shard)
        return shard

    with torch.no_grad():
        held = _each_value(part, saved["state"], optimiser)
    optimiser.load_state_dict({**saved, "state": held})


def _each_value(work: Callable[[Any, Tensor], Any], held: dict[int, Any], optimiser: Optimizer) -> dict[int, Any]:
    """Return the state of single parameters, its values as ``work`` makes them: all but the count of steps."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    return {
        index: {name: value if name == "step" else work(value, parameters[index]) for name, value in state.items()}
        for index, state in held.items()
    }


def _whole(sharded: Tensor) -> Tensor:
    """A tensor that is shared out as a whole one, which all processes ask for together."""
    assert isinstance(sharded, DTensor)
    return sharded.full_tensor()


def _take_part(whole: Tensor, sharded: Tensor) -> None:
    """Copy what this process has of a whole tensor, which may be on the host."""
    assert isinstance(sharded, DTensor)
    part, mesh = sharded.to_local(), sharded.device_mesh
    start = mesh.get_local_rank() * -(-len(sharded) // mesh.size())
    part.copy_(whole.view(sharded.shape)[start : start + len(part)])


@torch.no_grad()
def _send_first(value: Tensor) -> None:
    """Replace a tensor of all processes by that of the first."""
    sent = value.contiguous()
    distributed.broadcast(sent, 0)
    value.copy_(sent)


def _make_shardable(model: nn.Module) -> None:
    """Give single numbers a dimension, and lay out all weights in order: others cannot be shared out."""
    made: dict[nn.Parameter, nn.Parameter] = {}  # a parameter may stand in several places
    for module in model.modules():
        for name, own in list(module._parameters.items()):
            if own is None or (own.ndim and own.is_contiguous()):
                continue
            if own not in made:
                made[own] = nn.Parameter(own.detach().reshape(own.shape or (1,)).contiguous(), own.requires_grad)
            setattr(module, name, made[own])


def settle_on_shards(optimiser: Optimizer, config: Config) -> None:
    """Prepare the optimiser for sharded weights."""
    if config.optim.name == "sgd":  # torch has no fused one for shards
        for group in optimiser.param_groups:
            group["fused"] = False


def require_shardable(config: Config) -> None:
    """Raise UserError for what sharded weights cannot be combined with."""
    settings = config.train
    if config.optim.name not in ("sgd", "adam", "adamw"):
        raise UserError(f"{_REFUSED} optim.name={config.optim.name}; use adamw, adam or sgd")
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

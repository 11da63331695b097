"""What is trained of a backbone, and how: frozen parts, adapters of low rank, activations made anew, rates by layer."""

import importlib
from collections.abc import Sequence
from typing import Any

from torch import nn

from aurank.errors import UserError
from aurank.files import reading
from aurank.lazy import import_library
from aurank.models.encoder import Encoder, network_of
from aurank.names import meant, nearest

WHOLE = "backbone"  # what `freeze` says for all but the projection
# Linear layers that adapters stand beside, where no others are named: what goes into attention.
_ATTENTION = ("qkv", "q_proj", "k_proj", "v_proj", "query", "key", "value")
# Of towers that do not say it themselves, as timm's do: embeddings, then the layers by number, then what follows.
_LAYERS = {
    "stem": r"^(?:.*\.)?(?:\w*embed\w*|conv1|ln_pre|norm_pre|pre_layrnorm|cls_token|register_tokens)(?:\.|$)",
    "blocks": [(r"^(?:.*\.)?(?:layers?|blocks|resblocks|stages)\.(\d+)\.", None), (r".*", (99999,))],
}


def freeze(encoder: Encoder, parts: Sequence[str]) -> None:
    network = network_of(encoder.backbone)
    names = [name for name, _ in network.named_parameters()]
    beginnings = [""] if WHOLE in parts else list(parts)
    for beginning in beginnings:
        if not any(_begins(name, beginning) for name in names):
            modules = list(dict.fromkeys(name.split(".")[0] for name in names))
            hint = meant(nearest(beginning, modules)) or f"; they begin with {', '.join(modules[:9])}"
            raise UserError(f"model.freeze: no parameter begins with {beginning!r}{hint}")
    for name, parameter in network.named_parameters():
        if any(_begins(name, beginning) for beginning in beginnings):
            parameter.requires_grad_(False)
    _hold_batch_norms(encoder, beginnings)


def checkpoint_gradients(encoder: Encoder, name: str) -> None:
    """Have the backbone compute its activations again in the backward pass."""
    network: Any = network_of(encoder.backbone)
    try:
        # transformers calls it activation checkpointing since version 5, and warns of the other name.
        if hasattr(network, "activation_checkpointing_enable"):
            network.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
        elif hasattr(network, "gradient_checkpointing_enable"):
            network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        else:
            network.set_grad_checkpointing(True)
    except (AttributeError, AssertionError, ValueError) as error:
        message = f"{name} cannot compute its activations again; leave it out, or use train.micro_batch"
        raise UserError(f"model.gradient_checkpointing: {message}") from error


def add_lora(encoder: Encoder, *, rank: int, alpha: float, targets: Sequence[str] | None = None) -> None:
    """Add adapters of low rank to layers of the backbone, the rest of which is frozen, batch norms' statistics too.

    Source: Hu et al., LoRA: low-rank adaptation of large language models (ICLR 2022), https://arxiv.org/abs/2106.09685;
    peft's implementation.
    """
    peft: Any = import_library("peft", "model.lora")
    network = network_of(encoder.backbone)
    layers = dict.fromkeys(
        name.split(".")[-1] for name, module in network.named_modules() if isinstance(module, nn.Linear)
    )
    chosen = [name for name in _ATTENTION if name in layers] if targets is None else list(targets)
    with reading("model.lora.targets", "layers", remedy=f"this backbone has {', '.join(layers) or 'no linear layer'}"):
        peft.inject_adapter_in_model(peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=chosen), network)
    _hold_batch_norms(encoder, [""])


def merge_lora(encoder: nn.Module) -> None:
    tuners: Any = importlib.import_module("peft.tuners.tuners_utils")
    for name, module in list(encoder.named_modules()):
        if isinstance(module, tuners.BaseTunerLayer):
            module.merge()
            parent, _, attribute = name.rpartition(".")
            setattr(encoder.get_submodule(parent), attribute, module.get_base_layer())


def layer_scales(encoder: Encoder, decay: float, name: str) -> dict[nn.Parameter, float]:
    """Return what the learning rate of each parameter is multiplied by: `decay` times the next layer's."""
    helpers: Any = importlib.import_module("timm.models")
    network: Any = network_of(encoder.backbone)
    matcher = network.group_matcher(coarse=False) if hasattr(network, "group_matcher") else _LAYERS
    layers: dict[str, int] = helpers.group_parameters(network, matcher, reverse=True)
    last = max(layers.values(), default=0)
    if last == 0:
        raise UserError(f"optim.layer_decay: {name} has no layers that are known; leave it out")
    return {parameter: decay ** (last - layers.get(key, last)) for key, parameter in network.named_parameters()}


def _hold_batch_norms(encoder: Encoder, beginnings: Sequence[str]) -> None:
    encoder.held = [
        module
        for name, module in network_of(encoder.backbone).named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and any(_begins(name, start) for start in beginnings)
    ]
    encoder.train(encoder.training)


def _begins(name: str, beginning: str) -> bool:
    return not beginning or name == beginning or name.startswith(beginning.rstrip(".") + ".")

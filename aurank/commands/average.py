"""Several trainings of one network as one model, the mean of their weights: what ``aurank average`` calls."""

import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aurank.config import Config
from aurank.config.load import config_difference
from aurank.embedding.build import encoder_of, towers_of
from aurank.embedding.locations import BEST, require_checkpoint, resolve_checkpoint
from aurank.embedding.settings import read_trained
from aurank.embedding.stored.checkpoint import AVERAGE_OF, load_checkpoint, model_weights, save_checkpoint
from aurank.errors import AurankWarning, UserError
from aurank.files import require_writable
from aurank.models.encoder import HEADS

# What an embedding depends on beside the weights; of the model all but what acts in training alone.
_EMBEDS = re.compile(
    r"data\.(image_size|resize|channels|normalise|interpolation|test_transform)|"
    r"model\.(?!(pretrained|weights|init_from|freeze|freeze_batch_norm|gradient_checkpointing|channels_last|"
    r"features\.model|params\.\w*drop\w*)\b)"
)
_ALIKE = 0.5  # trainings from one network have cosines near 1, from random weights of their own near 0


class _Parent(NamedTuple):
    name: str
    config: Config
    weights: dict[str, Tensor]
    checkpoint: dict[str, Any]


def average_models(models: Sequence[Path | str], out: Path | str) -> Path:
    """Write the mean of the weights of several trainings of one network, a model as any other; return its checkpoint.

    The mean is taken in float64, of running statistics and moving averages too; counters are the first model's.
    Adapters (model.lora) are added to their layers first.

    Args:
        models: folders of runs, or DIR/best, DIR/last; all are of one network, and see images alike.
        out: folder to make, with best.safetensors in it.

    Raises:
        UserError: fewer than two models, models that differ in more than their training, or a folder in use.

    Warns:
        AurankWarning: where trainings began at different weights, whose average is usually ruined.

    Source: Wortsman et al., Model soups (ICML 2022), the uniform soup, https://arxiv.org/abs/2203.05482.

    Example:
        >>> average_models([], "runs/average")
        Traceback (most recent call last):
        aurank.errors.UserError: an average takes two different models or more, got none; name trainings of one network
    """
    names, out = [str(model).removeprefix("aurank:") for model in models], Path(out)
    for name in names:
        require_checkpoint(resolve_checkpoint(name))
    if len({resolve_checkpoint(name).resolve() for name in names}) < max(2, len(names)):
        came = ", ".join(names) or "none"
        raise UserError(f"an average takes two different models or more, got {came}; name trainings of one network")
    if out.is_dir() and any(not path.name.startswith(".") for path in out.iterdir()):
        raise UserError(f"--out {out} is not empty; name another folder")
    require_writable(out / BEST)
    first, *others = parents = [_read(name) for name in names]
    for other in others:
        _require_same_network(first, other)
    is_same = all(parent.checkpoint["manifest"] == first.checkpoint["manifest"] for parent in parents)
    content = {
        "config": first.config.model_dump(mode="json"),
        "manifest": first.checkpoint["manifest"] if is_same else "",
        "data": first.checkpoint["data"] if is_same else None,
        "progress": {},
        "tokeniser": first.checkpoint["tokeniser"],
        "encoder": mean_weights([parent.weights for parent in parents]),
        "average": None,
        AVERAGE_OF: [],
    }
    for name, _, _, checkpoint in parents:
        grandparents = {AVERAGE_OF: checkpoint[AVERAGE_OF]} if AVERAGE_OF in checkpoint else {}
        step = checkpoint["progress"].get("step")
        content[AVERAGE_OF].append({"name": name, "config": checkpoint["config"], "step": step, **grandparents})
    save_checkpoint(out / BEST, content)
    return out / BEST


def mean_weights(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    means = {}
    for name, first in states[0].items():
        wide = torch.stack([state[name].double() for state in states])
        is_equal = not first.is_floating_point() or bool((wide == wide[0]).all())
        means[name] = first.clone() if is_equal else wide.mean(dim=0).to(first.dtype)
    return means


def _read(name: str) -> _Parent:
    checkpoint = load_checkpoint(resolve_checkpoint(name))
    config, weights = read_trained(checkpoint["config"]), model_weights(checkpoint)
    if config.model.lora is not None:
        # The mean of products is not the product of means, and each run began with adapters of its own.
        merged: Any = (encoder_of if config.model.text is None else towers_of)(checkpoint, config, name)
        weights = merged.state_dict()
        config = config.model_copy(update={"model": config.model.model_copy(update={"lora": None})})
    return _Parent(name, config, weights, checkpoint)


def _require_same_network(first: _Parent, other: _Parent) -> None:
    lines = [line for line in config_difference(first.config, other.config) if _EMBEDS.match(line)]
    shapes = [{name: value.shape for name, value in parent.weights.items()} for parent in (first, other)]
    reason = "; ".join(sorted(lines, key=lambda line: not line.startswith("model.")))
    if not lines and first.checkpoint["tokeniser"] != other.checkpoint["tokeniser"]:
        reason = "they learnt other tokens"
    elif not lines and shapes[0] != shapes[1]:
        reason = "their weights differ in names or shapes"
    if reason:
        remedy = "name trainings of one network that see images and texts alike"
        raise UserError(f"{first.name} and {other.name} cannot be averaged: {reason}; {remedy}")
    matrices = [name for name, value in first.weights.items() if value.is_floating_point() and value.ndim > 1]
    heads = [name for name in matrices if name.startswith(HEADS)]
    parts = {"backbones": [name for name in matrices if name not in heads], "projections": heads}
    if first.config.model.discard_head:  # no embedding depends on the projection
        del parts["projections"]
    for part, names in parts.items():
        if not names:
            continue
        left, right = (torch.cat([parent.weights[name].flatten() for name in names]) for parent in (first, other))
        if (cosine := torch.cosine_similarity(left, right, dim=0).item()) < _ALIKE:
            reason = f"the {part} of {first.name} and {other.name} have a cosine of {cosine:.2f}"
            remedy = "begin all at one network (model.weights, model.init_from)"
            warnings.warn(f"{reason}: their average is usually ruined; {remedy}", AurankWarning, stacklevel=3)

"""Several trainings of one network as one model, the mean of their weights: what ``aurank average`` calls."""

import re
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.nn.utils import parameters_to_vector

from aurank.config.load import config_difference
from aurank.embedding.locations import BEST, resolve_checkpoint
from aurank.embedding.settings import read_trained
from aurank.embedding.stored.checkpoint import AVERAGE_OF, load_checkpoint, model_weights, save_checkpoint
from aurank.errors import AurankWarning, UserError
from aurank.files import require_absent
from aurank.models.encoder import HEADS

# The keys that an embedding depends on beside the weights; of the model all but those that act in training alone.
_EMBEDS = re.compile(
    r"data\.(image_size|resize|channels|normalise|interpolation|test_transform)|"
    r"model\.(?!(pretrained|weights|init_from|freeze|freeze_batch_norm|gradient_checkpointing|channels_last|"
    r"features\.model|params\.\w*drop\w*)\b)"
)
_ALIKE = 0.5  # trainings from one network have cosines near 1, from random weights of their own near 0


def average_models(models: Sequence[Path | str], out: Path | str) -> Path:
    """Write the mean of the weights of several trainings of one network, a model as any other; return its checkpoint.

    The mean is taken in float64, of running statistics and moving averages too; counters are the first model's.

    Args:
        models: folders of runs, or DIR/best, DIR/last; all are of one network, and see images alike.
        out: folder to make, with best.safetensors in it.

    Raises:
        UserError: fewer than two models, models that differ in more than their training, adapters (model.lora), or a
            folder in use.

    Warns:
        AurankWarning: where trainings began at different weights, whose average is usually ruined.

    Source: Wortsman et al., Model soups (ICML 2022), the uniform soup, https://arxiv.org/abs/2203.05482.

    Example:
        >>> average_models([], "runs/average")
        Traceback (most recent call last):
        aurank.errors.UserError: an average takes two different models or more, got none; name trainings of one network
    """
    names, out = [str(model).removeprefix("aurank:") for model in models], Path(out)
    paths = [resolve_checkpoint(name) for name in names]
    if len({path.resolve() for path in paths}) < max(2, len(paths)):
        came = ", ".join(names) or "none"
        raise UserError(f"an average takes two different models or more, got {came}; name trainings of one network")
    require_absent(out / BEST)
    checkpoints = [load_checkpoint(path) for path in paths]
    configs, states, parents = [], [], []
    for name, checkpoint in zip(names, checkpoints, strict=True):
        config = read_trained(checkpoint["config"])
        if config.model.lora is not None:  # the mean of products is not the product of means
            raise UserError(f"{name} has adapters (model.lora), which cannot be averaged")
        configs.append(config)
        states.append(model_weights(checkpoint))
        reasons = [line for line in config_difference(configs[0], config) if _EMBEDS.match(line)]
        if checkpoint["tokeniser"] != checkpoints[0]["tokeniser"]:
            reasons.append("they learnt other tokens")
        if reasons:
            remedy = "name trainings of one network that see images and texts alike"
            raise UserError(f"{names[0]} and {name} cannot be averaged: {'; '.join(reasons)}; {remedy}")
        matrices = [key for key, value in states[0].items() if value.is_floating_point() and value.ndim > 1]
        for part, is_head in (("backbones", False), ("projections", True)):
            keys = [key for key in matrices if key.startswith(HEADS) == is_head]
            if not keys or (is_head and config.model.discard_head):  # no embedding depends on what is discarded
                continue
            first, last = (parameters_to_vector(state[key] for key in keys) for state in (states[0], states[-1]))
            if (cosine := torch.cosine_similarity(first, last, dim=0).item()) < _ALIKE:
                reason = f"the {part} of {names[0]} and {name} have a cosine of {cosine:.2f}"
                remedy = "begin all at one network (model.weights, model.init_from)"
                warnings.warn(f"{reason}: their average is usually ruined; {remedy}", AurankWarning, stacklevel=2)
        parent = {"name": name, "config": checkpoint["config"], "step": checkpoint["progress"].get("step")}
        parents.append(parent | {key: checkpoint[key] for key in (AVERAGE_OF,) if key in checkpoint})
    means = {}
    for key, value in states[0].items():
        mean = torch.stack([state[key].double() for state in states]).mean(dim=0)
        means[key] = mean.to(value.dtype) if value.is_floating_point() else value.clone()
    manifest, data, tokeniser = (checkpoints[0][key] for key in ("manifest", "data", "tokeniser"))
    is_same = all(checkpoint["manifest"] == manifest for checkpoint in checkpoints)
    content = {
        "config": configs[0].model_dump(mode="json"),
        "manifest": manifest if is_same else "",
        "data": data if is_same else None,
        "progress": {},
        "tokeniser": tokeniser,
        "encoder": means,
        "average": None,
        AVERAGE_OF: parents,
    }
    save_checkpoint(out / BEST, content)
    return out / BEST

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
from aurank.config.schema import NO_BACKBONE
from aurank.embedding.choices import read_trained
from aurank.embedding.from_config import encoder_of, towers_of
from aurank.embedding.named import BEST, require_checkpoint, resolve_checkpoint
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


def average_models(models: Sequence[Path | str], out: Path | str) -> Path:
    """Write the mean of the weights of several trainings of one network, a model as any other; return its checkpoint.

    The mean is taken in float64, of running statistics and moving averages too; counters are the first model's.
    Adapters (model.lora) are added to their layers first.

    Args:
        models: ``DIR`` for the best checkpoint of a run, ``DIR/best``, ``DIR/last``; all are of one network, and see
            images alike.
        out: folder to make, in which ``best.safetensors`` is written.

    Raises:
        UserError: fewer than two models, models that differ in more than their training, or a folder in use.

    Warns:
        AurankWarning: where the average is known to fail: trainings from random weights, or that learnt batch-norm
            statistics; where each held out other images for validation.

    Source: Wortsman et al., Model soups (ICML 2022), the uniform soup, https://arxiv.org/abs/2203.05482.

    Example:
        >>> import tempfile
        >>> import aurank
        >>> config = {
        ...     "data": {"name": "digits", "image_size": 8, "channels": 1}, "sampler": {"batch": 16},
        ...     "model": {"backbone": "test_resnet", "pretrained": False, "dim": 8, "freeze_batch_norm": True},
        ...     "loss": {"name": "smooth_ap"}, "optim": {"lr": 1e-3}, "train": {"steps": 1},
        ... }
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = aurank.train(config, f"{folder}/start")
        ...     for lr in ("1e-4", "3e-4"):
        ...         changes = [f"model.init_from={folder}/start/best", f"optim.lr={lr}"]
        ...         _ = aurank.train(config, f"{folder}/{lr}", overrides=changes)
        ...     best = aurank.average_models([f"{folder}/1e-4", f"{folder}/3e-4"], f"{folder}/average")
        ...     model = aurank.load(best)
        >>> best.name
        'best.safetensors'
    """
    names, out = [str(model).removeprefix("aurank:") for model in models], Path(out)
    for name in names:
        require_checkpoint(resolve_checkpoint(name))
    paths, reason = [resolve_checkpoint(name).resolve() for name in names], ""
    if len(names) < 2:
        came = names[0] if names else "none"
        reason = f"an average takes two models or more, got {came}; name two trainings of one network"
    elif again := next((place for place, path in enumerate(paths) if path in paths[:place]), None):
        both = f"{names[paths.index(paths[again])]} and {names[again]}"
        reason = f"{both} are the same checkpoint; name each model once"
    elif out.is_dir() and any(not path.name.startswith(".") for path in out.iterdir()):
        reason = f"--out {out} is not empty; name another folder"
    if reason:
        raise UserError(reason)
    require_writable(out / BEST)
    first, *others = parts = [_read(name) for name in names]
    for other in others:
        _require_same_network(first, other)
    for text in _doubts(parts):
        warnings.warn(text, AurankWarning, stacklevel=2)
    is_same = all(part.checkpoint["manifest"] == first.checkpoint["manifest"] for part in parts)
    content = {
        "config": first.config.model_dump(mode="json"),
        "manifest": first.checkpoint["manifest"] if is_same else "",
        "data": first.checkpoint["data"] if is_same else None,
        "progress": {},
        "tokeniser": first.checkpoint["tokeniser"],
        "encoder": mean_weights([part.weights for part in parts]),
        "average": None,
        AVERAGE_OF: [],
    }
    for name, _, _, checkpoint in parts:
        further = {AVERAGE_OF: checkpoint[AVERAGE_OF]} if AVERAGE_OF in checkpoint else {}
        record = {"name": name, "config": checkpoint["config"], "step": checkpoint["progress"].get("step"), **further}
        content[AVERAGE_OF].append(record)
    save_checkpoint(out / BEST, content)
    return out / BEST


def mean_weights(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    means = {}
    for name, first in states[0].items():
        wide = torch.stack([state[name].double() for state in states])
        is_equal = not first.is_floating_point() or bool((wide == wide[0]).all())
        means[name] = first.clone() if is_equal else wide.mean(dim=0).to(first.dtype)
    return means


class _Part(NamedTuple):
    name: str
    config: Config
    weights: dict[str, Tensor]
    checkpoint: dict[str, Any]


def _read(name: str) -> _Part:
    checkpoint = load_checkpoint(resolve_checkpoint(name))
    config, weights = read_trained(checkpoint["config"]), model_weights(checkpoint)
    if config.model.lora is not None:
        # The mean of products is not the product of means, and each run began with adapters of its own.
        merged: Any = (encoder_of if config.model.text is None else towers_of)(checkpoint, config, name)
        weights = merged.state_dict()
        config = config.model_copy(update={"model": config.model.model_copy(update={"lora": None})})
    if (wrong := next((key for key, value in weights.items() if not bool(value.isfinite().all())), None)) is not None:
        raise UserError(f"{name} has a value in {wrong!r} that is not finite; name another checkpoint of that run")
    return _Part(name, config, weights, checkpoint)


def _require_same_network(first: _Part, other: _Part) -> None:
    lines = [line for line in config_difference(first.config, other.config) if _EMBEDS.match(line)]
    lines.sort(key=lambda line: not line.startswith("model."))  # the network before its images
    shapes = [{name: value.shape for name, value in part.weights.items()} for part in (first, other)]
    if lines:
        more = f", and {len(lines) - 1} more differ" if len(lines) > 1 else ""
        reason = f"{lines[0]}{more}; name trainings of one network that see images alike"
    elif first.checkpoint["tokeniser"] != other.checkpoint["tokeniser"]:
        reason = "they learnt other tokens, of other texts; train both on the same texts and splits"
    elif shapes[0] != shapes[1]:
        reason = "their weights differ in names or shapes; train both with one version of timm"
    else:
        return
    raise UserError(f"{first.name} and {other.name} cannot be averaged: {reason}")


def _doubts(parts: Sequence[_Part]) -> list[str]:
    first, *others = parts
    doubts: dict[str, str] = {}  # of each kind the first
    for part in parts:
        model = part.config.model
        if model.backbone != NO_BACKBONE and not (model.pretrained or model.weights or model.init_from):
            remedy = "begin all at one network (model.pretrained, model.weights or model.init_from)"
            said = f"{part.name} began at random weights, whose average with others is usually ruined; {remedy}"
            doubts.setdefault("start", said)
    is_discarded = first.config.model.discard_head  # then no embedding depends on the projection
    used = [name for name in first.weights if not (is_discarded and name.startswith(HEADS))]
    matrices = [name for name in used if first.weights[name].is_floating_point() and first.weights[name].ndim > 1]
    heads = [name for name in matrices if name.startswith(HEADS)]
    sides = {
        "backbones": ([name for name in matrices if name not in heads], "begin all at one network (model.weights)"),
        "projections": (heads, "begin all at one checkpoint (model.init_from), or set model.discard_head"),
    }
    statistics = [name for name in used if name.endswith(("running_mean", "running_var"))]
    for other in others:
        both = f"{first.name} and {other.name}"
        for what, (names, remedy) in sides.items():
            if "start" not in doubts and (cosine := _cosine(first.weights, other.weights, names)) < _ALIKE:
                said = "they began at weights of their own, and their average gains nothing or is worse"
                doubts["start"] = f"the {what} of {both} have a cosine of {cosine:.2f}: {said}; {remedy}"
        wrong = next((name for name in statistics if not first.weights[name].equal(other.weights[name])), None)
        if wrong is not None:
            is_head = wrong.startswith(HEADS)
            remedy = "model.head_layers=1 or model.discard_head" if is_head else "model.freeze_batch_norm=true"
            said = (
                f"{both} learnt other batch-norm statistics ({wrong}), whose mean is not that of the averaged network"
            )
            doubts.setdefault("statistics", f"{said}; train with {remedy}")
        if first.checkpoint["manifest"] != other.checkpoint["manifest"]:
            said = f"{both} were trained on other images, or held out others for validation (data, seed)"
            remedy = "measure the average on images that none saw"
            doubts.setdefault("images", f"{said}: what one held out the other has seen, so {remedy}")
    return list(doubts.values())


def _cosine(left: Mapping[str, Tensor], right: Mapping[str, Tensor], names: Sequence[str]) -> float:
    pairs = [(left[name].double().flatten(), right[name].double().flatten()) for name in names]
    product = sum(float(one @ other) for one, other in pairs)
    squares = sum(float(one @ one) for one, _ in pairs) * sum(float(other @ other) for _, other in pairs)
    return product / squares**0.5 if squares > 0 else 1.0

"""Several trainings of one network as one model, the mean of their weights: what ``aurank average`` calls."""

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aurank.config import Config
from aurank.config.load import config_difference
from aurank.config.schema import NO_BACKBONE
from aurank.embedding.choices import read_trained
from aurank.embedding.from_config import encoder_of, towers_of
from aurank.embedding.stored.checkpoint import (
    AVERAGE_OF,
    BEST,
    load_checkpoint,
    model_weights,
    resolve_checkpoint,
    save_checkpoint,
)
from aurank.errors import AurankWarning, UserError
from aurank.files import require_writable
from aurank.models.encoder import HEADS

# What an embedding depends on beside the weights; of the model all but what acts in training alone.
_EMBEDS = re.compile(
    r"data\.(image_size|channels|normalise|interpolation|test_transform)|"
    r"model\.(?!(pretrained|weights|init_from|freeze|freeze_batch_norm|gradient_checkpointing|channels_last|"
    r"features\.model|params\.\w*drop\w*)\b)"
)
_STATISTICS = ("running_mean", "running_var")
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
        ...     model, transform = aurank.load(best)
        >>> best.name
        'best.safetensors'
    """
    names, out = [str(model).removeprefix("aurank:") for model in models], Path(out)
    _require_several(names)
    require_writable(out / BEST)
    if out.is_dir() and any(not path.name.startswith(".") for path in out.iterdir()):
        raise UserError(f"--out {out} is not empty; name another folder")
    first = _read(names[0])
    parts = [first]
    for name in names[1:]:
        parts.append(_read(name))
        _require_same_network(first, parts[-1])
    for text in _doubts(parts):
        warnings.warn(text, AurankWarning, stacklevel=2)
    is_same = all(part.images["manifest"] == first.images["manifest"] for part in parts)
    known = first.images if is_same else {"manifest": "", "data": None}
    content: dict[str, Any] = {"config": first.config.model_dump(mode="json"), **known, "progress": {}}
    content |= {"tokeniser": first.tokeniser, "encoder": mean_weights([part.weights for part in parts])}
    save_checkpoint(out / BEST, {**content, "average": None, AVERAGE_OF: [part.record for part in parts]})
    return out / BEST


def mean_weights(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of each real tensor, in float64 and rounded once; of others, and of equal ones, the first."""
    return {name: _mean([state[name] for state in states]) for name in states[0]}


def _mean(values: Sequence[Tensor]) -> Tensor:
    first = values[0]
    if not first.is_floating_point():
        return first.clone()
    wide = torch.stack([value.double() for value in values])
    return first.clone() if bool((wide == wide[0]).all()) else wide.mean(dim=0).to(first.dtype)


@dataclass(frozen=True, eq=False)
class _Part:
    """A model to be averaged: its configuration without adapters, which are in the weights."""

    name: str
    config: Config
    weights: dict[str, Tensor]
    images: dict[str, Any]  # what a checkpoint knows of them and of their splits
    tokeniser: dict[str, Any] | None
    record: dict[str, Any]

    def used(self) -> list[str]:
        """The names of the weights that an embedding depends on."""
        return [name for name in self.weights if not (self.config.model.discard_head and name.startswith(HEADS))]


def _require_several(names: Sequence[str]) -> None:
    if len(names) < 2:
        came = names[0] if names else "none"
        raise UserError(f"an average takes two models or more, got {came}; name two trainings of one network")
    found: dict[Path, str] = {}
    for name in names:
        path = resolve_checkpoint(name).resolve()
        if path in found:
            raise UserError(f"{found[path]} and {name} are the same checkpoint; name each model once")
        found[path] = name


def _read(name: str) -> _Part:
    checkpoint = load_checkpoint(resolve_checkpoint(name))
    config = read_trained(checkpoint["config"])
    record = {"name": name, "config": checkpoint["config"], "step": checkpoint["progress"].get("step")}
    if AVERAGE_OF in checkpoint:
        record[AVERAGE_OF] = checkpoint[AVERAGE_OF]
    if config.model.lora is None:
        weights = model_weights(checkpoint)
    else:  # the mean of products is not the product of means, and each run began with adapters of its own
        merged: Any = (encoder_of if config.model.text is None else towers_of)(checkpoint, config, name)
        weights = merged.state_dict()
        config = config.model_copy(update={"model": config.model.model_copy(update={"lora": None})})
    wrong = next((key for key, value in weights.items() if not bool(value.isfinite().all())), None)
    if wrong is not None:
        raise UserError(f"{name} has a value in {wrong!r} that is not finite; name another checkpoint of that run")
    images = {"manifest": checkpoint["manifest"], "data": checkpoint["data"]}
    return _Part(name, config, weights, images, checkpoint["tokeniser"], record)


def _require_same_network(first: _Part, other: _Part) -> None:
    """Raise UserError unless both differ in their training alone."""
    both = f"{first.name} and {other.name} cannot be averaged"
    lines = [line for line in config_difference(first.config, other.config) if _EMBEDS.match(line)]
    lines.sort(key=lambda line: not line.startswith("model."))  # the network before its images
    if lines:
        more = f", and {len(lines) - 1} more differ" if len(lines) > 1 else ""
        raise UserError(f"{both}: {lines[0]}{more}; name trainings of one network that see images alike")
    if first.tokeniser != other.tokeniser:
        raise UserError(f"{both}: they learnt other tokens, of other texts; train both on the same texts and splits")
    shapes = [{name: value.shape for name, value in part.weights.items()} for part in (first, other)]
    if shapes[0] != shapes[1]:
        raise UserError(f"{both}: their weights differ in names or shapes; train both with one version of timm")


def _doubts(parts: Sequence[_Part]) -> list[str]:
    """Return a line for each reason why the average may be worth less than the models, or is measured too well."""
    first, *others = parts
    found = []
    for part in parts:
        model = part.config.model
        if model.backbone != NO_BACKBONE and not (model.pretrained or model.weights or model.init_from):
            remedy = "begin all at one network (model.pretrained, model.weights or model.init_from)"
            found.append(f"{part.name} began at random weights, whose average with others is usually ruined; {remedy}")
            break
    else:
        found += next(filter(None, (_apart(first, other) for other in others)), [])
    found += next(filter(None, (_statistics(first, other) for other in others)), [])
    for other in others:
        if other.images["manifest"] != first.images["manifest"]:
            found.append(
                f"{first.name} and {other.name} were trained on other images, or held out others for validation "
                "(data, seed): what one held out the other has seen, so measure the average on images that none saw"
            )
            break
    return found


def _apart(first: _Part, other: _Part) -> list[str]:
    """Return a line where two models have nothing in common: they began at weights of their own."""
    used = [name for name in first.used() if first.weights[name].is_floating_point() and first.weights[name].ndim > 1]
    heads = [name for name in used if name.startswith(HEADS)]
    remedies = {
        "backbones": ([name for name in used if name not in heads], "begin all at one network (model.weights)"),
        "projections": (heads, "begin all at one checkpoint (model.init_from), or set model.discard_head"),
    }
    for what, (names, remedy) in remedies.items():
        cosine = _cosine(first.weights, other.weights, names)
        if cosine < _ALIKE:
            both = f"the {what} of {first.name} and {other.name} have a cosine of {cosine:.2f}"
            return [
                f"{both}: they began at weights of their own, and their average gains nothing or is worse; {remedy}"
            ]
    return []


def _cosine(left: Mapping[str, Tensor], right: Mapping[str, Tensor], names: Sequence[str]) -> float:
    """Return the cosine of all these tensors as one vector each; 1 of none."""
    pairs = [(left[name].double().flatten(), right[name].double().flatten()) for name in names]
    product = sum(float(one @ other) for one, other in pairs)
    squares = sum(float(one @ one) for one, _ in pairs) * sum(float(other @ other) for _, other in pairs)
    return product / squares**0.5 if squares > 0 else 1.0


def _statistics(first: _Part, other: _Part) -> list[str]:
    """Return a line where running statistics differ, which are not those of the averaged network."""
    names = [name for name in first.used() if name.endswith(_STATISTICS)]
    wrong = [name for name in names if not torch.equal(first.weights[name], other.weights[name])]
    if not wrong:
        return []
    is_head = wrong[0].startswith(HEADS)
    remedy = "model.head_layers=1 or model.discard_head" if is_head else "model.freeze_batch_norm=true"
    return [
        f"{first.name} and {other.name} learnt other batch-norm statistics ({wrong[0]}), whose mean is not that of the "
        f"averaged network; train with {remedy}"
    ]

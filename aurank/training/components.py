"""The tables a configuration chooses from, and the reading of configurations against them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aurank.config import Choices, Config, known_keys, load_config, shipped_configs
from aurank.data import READERS, SAMPLERS, TRANSFORMS
from aurank.errors import UserError
from aurank.evaluation.metrics import check_names
from aurank.losses import LOSSES, MINERS
from aurank.models.adapters.backbones import HUBS, unknown_backbone, unknown_options
from aurank.models.adapters.texts import check_text_model
from aurank.models.encoder import FILLED
from aurank.training.optim import OPTIMISERS, SCHEDULES

_DEFAULT_BACKBONE = known_keys()["model", "backbone"].default

_TRANSFORMS = Choices(
    TRANSFORMS,
    filled=frozenset({"image_size", "channels", "mean", "std", "interpolation"}),
    trial={"image_size": 32, "channels": 3},
)

CHOICES = {
    "data": Choices(READERS, filled=frozenset({"root"}), trial=None),
    "data.train_transform": _TRANSFORMS,
    "data.test_transform": _TRANSFORMS,
    "sampler": Choices(
        SAMPLERS, filled=frozenset({"labels", "batch", "seed", "rank", "world_size", "neighbours"}), trial=None
    ),
    "loss": Choices(
        LOSSES,
        filled=frozenset({"class_counts", "num_samples", "embedding_dim", "distributed"}),
        trial={"class_counts": np.array([4, 4]), "num_samples": 8, "embedding_dim": 8},
    ),
    "miner": Choices(MINERS, filled=frozenset({"num_samples"}), trial={"num_samples": 8}),
    "optim": Choices(
        OPTIMISERS,
        filled=frozenset({"params", "lr"}),
        trial={"params": [torch.zeros(1, requires_grad=True)], "lr": 0.1},
    ),
    "optim.schedule": Choices(
        SCHEDULES, filled=frozenset({"steps", "warmup_steps"}), trial={"steps": 2, "warmup_steps": 0}
    ),
}


_OF_TRAINING = ("sampler", "loss", "miner", "optim", "optim.schedule")


def read_config(source: Path | str | dict[str, Any], overrides: Sequence[str] = ()) -> Config:
    """The configuration in ``source`` with dotted ``overrides``, checked against every table of components.

    Args:
        source: a YAML file, the name of a shipped configuration ("omniglot/soprc"), or a plain dict.

    Raises:
        ConfigError: lists every error at once.
    """
    if not isinstance(source, dict) and not Path(source).exists():
        source = shipped_configs().get(str(source), source)
    return load_config(source, overrides, choices=CHOICES, complaints=_complaints)


def read_trained(content: dict[str, Any], overrides: Sequence[str] = ()) -> Config:
    """The configuration of a model that was trained before, as ``read_config``, to use its weights alone.

    How it was trained is taken as it stands: what a loss no longer allows keeps nobody from measuring the model.
    """
    choices = {path: table for path, table in CHOICES.items() if path not in _OF_TRAINING}
    return load_config(content, overrides, choices=choices, complaints=_complaints)


def _complaints(look: Callable[[str], Any]) -> list[tuple[str, str]]:
    return _of_models(look) + _of_metrics(look)


def _of_metrics(look: Callable[[str], Any]) -> list[tuple[str, str]]:
    """What is wrong with the names of metrics."""
    names = look("evaluate.metrics")
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        return []
    try:
        check_names(names)
    except UserError as error:
        return [("evaluate.metrics", str(error))]
    return []


def _of_models(look: Callable[[str], Any]) -> list[tuple[str, str]]:
    """What is wrong with the names of models and their options, weights aside; nothing is loaded or fetched."""
    found = []
    backbone, params, text = look("model.backbone"), look("model.params"), look("model.text.name")
    # timm is imported, which takes seconds, for what is not known to be right.
    if isinstance(backbone, str) and (backbone != _DEFAULT_BACKBONE or params):
        if (complaint := unknown_backbone(backbone)) is not None:
            found.append(("model.backbone", complaint))
        elif isinstance(params, dict) and not backbone.startswith(HUBS):
            odd = unknown_options(backbone, params, filled=FILLED)
            found += [(f"model.params.{option}", text) for option, text in odd.items()]
    if isinstance(text, str) and ":" in text:
        try:
            check_text_model(text)
        except UserError as error:
            found.append(("model.text.name", str(error)))
    return found

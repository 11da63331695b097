"""The tables a configuration chooses from, and the reading of configurations against them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aurank.config import Choices, Config, load_config, shipped_configs
from aurank.data import SAMPLERS
from aurank.embedding.choices import DATA_CHOICES, wrong_names
from aurank.losses import LOSSES, MINERS
from aurank.training.optim import OPTIMISERS, SCHEDULES

_MINERS = Choices(MINERS, filled=frozenset({"num_samples"}), trial={"num_samples": 8})
CHOICES = {
    **DATA_CHOICES,
    "sampler": Choices(
        SAMPLERS,
        filled=frozenset({"labels", "super_labels", "batch", "seed", "rank", "world_size", "neighbours"}),
        trial=None,
    ),
    "loss": Choices(
        LOSSES,
        filled=frozenset(
            {"class_counts", "num_classes", "num_samples", "embedding_size", "super_labels", "distributed"}
        ),
        trial={
            "class_counts": np.array([4, 4]),
            "num_classes": 2,
            "num_samples": 8,
            "embedding_size": 8,
            "super_labels": np.array([0, 0]),
        },
    ),
    "loss.miner": _MINERS,
    "miner": _MINERS,
    "optim": Choices(
        OPTIMISERS,
        filled=frozenset({"params", "lr", "weight_decay"}),
        trial={"params": [torch.zeros(1, requires_grad=True)], "lr": 0.1},
        proven=frozenset({"sgd", "adam", "adamw"}),  # torch imports its compiler, seconds, for the first optimiser
    ),
    "optim.schedule": Choices(
        SCHEDULES, filled=frozenset({"steps", "warmup_steps"}), trial={"steps": 2, "warmup_steps": 0}
    ),
}


def read_config(source: Path | str | dict[str, Any], overrides: Sequence[str] = ()) -> Config:
    """The configuration in ``source`` with dotted ``overrides``, checked against every table of components.

    Args:
        source: a YAML file, the name of a shipped configuration ("omniglot/soprc"), or a plain dict.

    Raises:
        ConfigError: lists every error at once.

    Example:
        >>> read_config("digits/soprc", ["optim.lr=1e-4"]).optim.lr
        0.0001
    """
    if not isinstance(source, dict) and not Path(source).exists():
        source = shipped_configs().get(str(source), source)
    return load_config(source, overrides, choices=CHOICES, complaints=wrong_names)

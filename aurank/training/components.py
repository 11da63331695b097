"""The tables a configuration chooses from, and the reading of configurations against them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aurank.config import Choices, Config, load_config, shipped_configs
from aurank.embedding.settings import DATA_CHOICES, wrong_in
from aurank.lazy import LazyTable
from aurank.losses import LOSSES, MINERS

_OF_DATA = frozenset({"class_counts", "num_classes", "num_samples", "embedding_size", "super_labels", "distributed"})
_OF_BATCHES = frozenset({"labels", "super_labels", "batch", "seed", "rank", "world_size", "neighbours", "paths"})
CHOICES = {
    **DATA_CHOICES,
    "sampler": Choices(LazyTable("aurank.data", "samplers:SAMPLERS"), _OF_BATCHES),
    "loss": Choices(LOSSES, _OF_DATA),
    "miner": Choices(MINERS),
    "optim": Choices(LazyTable("aurank.training", "optim:OPTIMISERS"), frozenset({"params", "lr", "weight_decay"})),
    "optim.schedule": Choices(LazyTable("aurank.training", "optim:SCHEDULES"), frozenset({"steps", "warmup_steps"})),
}


def read_config(source: Config | Path | str | dict[str, Any], overrides: Sequence[str] = ()) -> Config:
    """The configuration in ``source`` with dotted ``overrides``, checked against every table of components.

    Args:
        source: a YAML file, a shipped configuration's name, a dict, or a ``Config`` (unchecked without overrides).

    Raises:
        ConfigError: lists every error at once.

    Example:
        >>> read_config("digits/soprc", ["optim.lr=1e-4"]).optim.lr
        0.0001
    """
    if isinstance(source, Config):
        if not overrides:
            return source
        source = source.model_dump(mode="json")
    elif not isinstance(source, dict) and not Path(source).exists():
        source = shipped_configs().get(str(source), source)
    config: Config = load_config(source, overrides, choices=CHOICES, complaints=wrong_in)
    return config

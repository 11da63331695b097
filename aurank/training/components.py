"""The tables a configuration chooses from, and the reading of configurations against them."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from aurank.config import Choices, Config, load_config, shipped_configs
from aurank.config.load import check_keys
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
    return load_config(_found(source), overrides, choices=CHOICES, complaints=_complaints)


def require_names(source: Path | str, overrides: Sequence[str] = ()) -> None:
    """Raise the ConfigError that `read_config` has for keys and names, before it imports what they name."""
    check_keys(_found(source), overrides, choices=CHOICES, complaints=partial(wrong_in, only_names=True))


def _found(source: Path | str | dict[str, Any]) -> Path | str | dict[str, Any]:
    if isinstance(source, dict) or Path(source).exists():
        return source
    return shipped_configs().get(str(source), source)


def _complaints(config: Config) -> Iterator[tuple[str, str]]:
    yield from wrong_in(config)
    if config.model.text is not None:
        for path, term in config.located_terms():
            if "two_way" not in CHOICES["loss"].arguments(term.name):
                others = ", ".join(name for name in LOSSES if "two_way" in CHOICES["loss"].arguments(name))
                text = f"got {term.name!r}, which compares images alone; with model.text take one of {others}"
                yield f"{path}.name", text

"""What the sections of a configuration that measuring needs may name: data, models and metrics."""

import os.path
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aurank.config import Choices, Config, DataConfig, ModelConfig, load_config, shipped_configs
from aurank.config.schema import NO_BACKBONE, DataSection
from aurank.data.manifest import Manifest
from aurank.data.readers import READERS
from aurank.embedding.image_selection import DATA, located
from aurank.errors import UserError
from aurank.lazy import LazyTable
from aurank.models.adapters.names import FILLED, HUBS, TEXTS, TOWERS, is_tower, parse_name

# Names known to be timm's: importing timm takes seconds, so only other names ask it.
_COMMON = ("resnet10t", "resnet18", "resnet50", "resnet50.tv_in1k")
KNOWN_BACKBONES = {ModelConfig().backbone, NO_BACKBONE, *_COMMON}
_OF_IMAGES = frozenset({"image_size", "channels", "mean", "std", "interpolation", "resize"})
DATA_CHOICES = {
    **DATA,
    "data.train_transform": Choices(LazyTable("aurank.data", "transforms:TRANSFORMS"), _OF_IMAGES),
    "data.test_transform": Choices(LazyTable("aurank.data", "transforms:TEST_TRANSFORMS"), _OF_IMAGES),
}


def read_trained(content: dict[str, Any], overrides: Sequence[str] = ()) -> Config:
    """Return the configuration in the checkpoint of a trained model, checked as far as using its weights needs."""
    config: Config = load_config(content, overrides, choices=DATA_CHOICES, complaints=wrong_in)
    return config


def read_data_config(section: dict[str, Any], overrides: Sequence[str] = ()) -> DataConfig:
    """Return the data section of a configuration, with overrides such as ``data.workers=4``, checked."""
    config: DataSection = load_config({"data": section}, overrides, choices=DATA_CHOICES, schema=DataSection)
    return config.data


def read_data(data: str | Manifest, overrides: Sequence[str] = ()) -> DataSection:
    """Return the data section of READER:PATH, a manifest or a file, checked; of a whole configuration a ``Config``."""
    is_file = isinstance(data, str) and (data.partition(":")[0] not in READERS or Path(data).is_file())
    named: Any = shipped_configs().get(str(data), data)
    is_file = is_file and not os.path.isdir(named)  # noqa: PTH112 - which raises no OSError
    source = named if is_file else {"data": {"validation_fraction": 0.0, **located(data)}}
    config: DataSection = load_config(source, overrides, choices=DATA_CHOICES, schema=DataSection)
    return config


def wrong_in(config: Config) -> list[tuple[str, str]]:
    """Return the path and the mistake of each name of a model or a metric that nobody knows; nothing is fetched."""
    model, wrong = config.model, list[tuple[str, str]]()

    def check(path: str, call: Callable[..., object], *values: object) -> None:
        try:
            call(*values)
        except UserError as error:
            wrong.append((path, str(error)))

    if is_tower(model.backbone):
        check("model.backbone", parse_name, model.backbone, TOWERS)
    elif model.backbone != NO_BACKBONE and (model.params or model.backbone not in KNOWN_BACKBONES):
        from aurank.models.adapters.timm import wrong_names  # imports torch, perhaps timm

        options = {} if model.backbone.startswith(HUBS) else model.params
        names = wrong_names(model.backbone, options, filled=FILLED)
        wrong += [(f"model.params.{option}" if option else "model.backbone", text) for option, text in names.items()]
    if model.text is not None and ":" in model.text.name:
        check("model.text.name", parse_name, model.text.name, TEXTS)
    if config.evaluate.metrics is not None:
        from aurank.evaluation.metrics import check_names

        check("evaluate.metrics", check_names, config.evaluate.metrics)
    return wrong

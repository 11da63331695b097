"""What the sections of a configuration that measuring needs may name: data, models and metrics."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aurank.config import Choices, Config, DataConfig, ModelConfig, load_config
from aurank.config.schema import NO_BACKBONE, DataSection
from aurank.data.manifest import Manifest
from aurank.data.readers import READERS
from aurank.embedding.image_selection import DATA, located
from aurank.errors import UserError
from aurank.lazy import LazyTable
from aurank.models.adapters.names import FILLED, HUBS, TEXTS, TOWERS, is_tower, parse_name

# Names that timm is known to have: importing timm takes seconds, so it is asked about all others only.
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


def read_data(data: str | Manifest, overrides: Sequence[str] = ()) -> DataConfig | None:
    return None if (section := _section(data)) is None else read_data_config(section, overrides)


def _section(data: str | Manifest) -> dict[str, Any] | None:
    if isinstance(data, str) and (data.partition(":")[0] not in READERS or Path(data).is_file()):
        return None
    return {"validation_fraction": 0.0, **located(data)}


def wrong_in(config: Config) -> list[tuple[str, str]]:
    """Return the path and the mistake of each name of a model or a metric that nobody knows; nothing is fetched."""
    model, checks = config.model, list[tuple[str, Callable[[], object]]]()
    wrong: list[tuple[str, str]] = []
    if is_tower(model.backbone):
        checks.append(("model.backbone", lambda: parse_name(model.backbone, TOWERS)))
    elif model.backbone != NO_BACKBONE and (model.params or model.backbone not in KNOWN_BACKBONES):
        from aurank.models.adapters.timm import wrong_names  # torch, and it may ask timm

        options = {} if model.backbone.startswith(HUBS) else model.params
        names = wrong_names(model.backbone, options, filled=FILLED)
        wrong += [(f"model.params.{option}" if option else "model.backbone", text) for option, text in names.items()]
    if model.text is not None and ":" in (text := model.text.name):
        checks.append(("model.text.name", lambda: parse_name(text, TEXTS)))
    if (metrics := config.evaluate.metrics) is not None:
        from aurank.evaluation.metrics import check_names

        checks.append(("evaluate.metrics", lambda: check_names(metrics)))
    for path, check in checks:
        try:
            check()
        except UserError as error:
            wrong.append((path, str(error)))
    return wrong

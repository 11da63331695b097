"""What the sections of a configuration that measuring needs may name: data, models and metrics."""

from collections.abc import Callable, Sequence
from typing import Any

from aurank.config import Choices, Config, DataConfig, ModelConfig, load_config, load_data_config
from aurank.config.schema import NO_BACKBONE
from aurank.embedding.named import DATA
from aurank.errors import UserError
from aurank.lazy import LazyTable

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
    return load_config(content, overrides, choices=DATA_CHOICES, complaints=wrong_in)


def read_data_config(section: dict[str, Any], overrides: Sequence[str] = ()) -> DataConfig:
    """Return the data section of a configuration, with overrides such as ``data.workers=4``, checked."""
    return load_data_config(section, overrides, choices=DATA_CHOICES)


def wrong_in(config: Config) -> list[tuple[str, str]]:
    """Return the path and the mistake of each name of a model or a metric that nobody knows; nothing is fetched."""
    from aurank.evaluation.metrics import check_names
    from aurank.models.adapters.loading import TEXTS, TOWERS, parse_name
    from aurank.models.adapters.timm import HUBS, wrong_names
    from aurank.models.adapters.towers import is_tower
    from aurank.models.encoder import FILLED

    model, checks = config.model, list[tuple[str, Callable[[], object]]]()
    wrong: list[tuple[str, str]] = []
    if is_tower(model.backbone):
        checks.append(("model.backbone", lambda: parse_name(model.backbone, TOWERS)))
    elif model.backbone != NO_BACKBONE and (model.params or model.backbone not in KNOWN_BACKBONES):
        options = {} if model.backbone.startswith(HUBS) else model.params
        names = wrong_names(model.backbone, options, filled=FILLED)
        wrong += [(f"model.params.{option}" if option else "model.backbone", text) for option, text in names.items()]
    if model.text is not None and ":" in (text := model.text.name):
        checks.append(("model.text.name", lambda: parse_name(text, TEXTS)))
    if (metrics := config.evaluate.metrics) is not None:
        checks.append(("evaluate.metrics", lambda: check_names(metrics)))
    for path, check in checks:
        try:
            check()
        except UserError as error:
            wrong.append((path, str(error)))
    return wrong

"""What the sections of a configuration that measuring needs may name: data, models and metrics."""

from collections.abc import Callable, Sequence
from typing import Any

from aurank.config import Choices, Config, DataConfig, ModelConfig, load_config, load_data_config
from aurank.config.schema import NO_BACKBONE
from aurank.data import READERS, TRANSFORMS
from aurank.errors import UserError
from aurank.evaluation.metrics import check_names
from aurank.models.adapters.by_name import check_text_model
from aurank.models.adapters.timm import HUBS, unknown_backbone, unknown_options
from aurank.models.adapters.towers import check_tower, is_tower
from aurank.models.encoder import FILLED

# Names that timm is known to have: importing timm takes seconds, so it is asked about all others only.
_COMMON = ("resnet10t", "resnet18", "resnet50", "resnet50.tv_in1k")
KNOWN_BACKBONES = {ModelConfig().backbone, NO_BACKBONE, *_COMMON}
_TRANSFORMS = Choices(TRANSFORMS, frozenset({"image_size", "channels", "mean", "std", "interpolation"}))
DATA_CHOICES = {
    "data": Choices(READERS, frozenset({"root"})),
    "data.train_transform": _TRANSFORMS,
    "data.test_transform": _TRANSFORMS,
}


def read_trained(content: dict[str, Any], overrides: Sequence[str] = ()) -> Config:
    """Return the configuration in the checkpoint of a trained model, checked as far as using its weights needs."""
    return load_config(content, overrides, choices=DATA_CHOICES, complaints=wrong_names)


def read_data_config(section: dict[str, Any], overrides: Sequence[str] = ()) -> DataConfig:
    """Return the data section of a configuration, with overrides such as ``data.workers=4``, checked."""
    return load_data_config(section, overrides, choices=DATA_CHOICES)


def wrong_names(config: Config) -> list[tuple[str, str]]:
    """Return the path and the mistake of each name of a model or a metric that nobody knows; nothing is fetched."""
    model, names = config.model, config.evaluate.metrics
    found: list[tuple[str, str]] = []
    checks: list[tuple[str, Callable[[Any], object], Any]] = []
    if is_tower(model.backbone):
        checks.append(("model.backbone", check_tower, model.backbone))
    elif model.backbone != NO_BACKBONE and (model.params or model.backbone not in KNOWN_BACKBONES):
        if (complaint := unknown_backbone(model.backbone)) is not None:
            found.append(("model.backbone", complaint))
        elif not model.backbone.startswith(HUBS):
            odd = unknown_options(model.backbone, model.params, filled=FILLED)
            found += [(f"model.params.{option}", text) for option, text in odd.items()]
    if model.text is not None and ":" in model.text.name:
        checks.append(("model.text.name", check_text_model, model.text.name))
    if names is not None:
        checks.append(("evaluate.metrics", check_names, names))
    for path, check, value in checks:
        try:
            check(value)
        except UserError as error:
            found.append((path, str(error)))
    return found

"""What the sections of a configuration that measuring needs may name: data, models and metrics."""

from collections.abc import Callable, Sequence
from typing import Any

from aurank.config import Choices, Config, DataConfig, known_keys, load_config, load_data_config
from aurank.config.cross_checks import NO_BACKBONE
from aurank.data import READERS, TRANSFORMS
from aurank.errors import UserError
from aurank.evaluation.metrics import check_names
from aurank.models.adapters.by_name import check_text_model
from aurank.models.adapters.timm import HUBS, unknown_backbone, unknown_options
from aurank.models.adapters.towers import check_tower, is_tower
from aurank.models.encoder import FILLED

# Names that timm is known to have: importing timm takes seconds, so it is asked about all others only.
_COMMON = ("resnet10t", "resnet18", "resnet50", "resnet50.tv_in1k")
KNOWN_BACKBONES = {known_keys()["model", "backbone"].default, NO_BACKBONE, *_COMMON}
_TRANSFORMS = Choices(
    TRANSFORMS,
    filled=frozenset({"image_size", "channels", "mean", "std", "interpolation"}),
    trial={"image_size": 32, "channels": 3},
)
DATA_CHOICES = {
    "data": Choices(READERS, filled=frozenset({"root"}), trial=None),
    "data.train_transform": _TRANSFORMS,
    "data.test_transform": _TRANSFORMS,
}


def read_trained(content: dict[str, Any], overrides: Sequence[str] = ()) -> Config:
    """Return the configuration in the checkpoint of a trained model, checked as far as using its weights needs.

    How it was trained is taken as it stands: what a loss no longer allows keeps nobody from measuring the model.
    """
    return load_config(content, overrides, choices=DATA_CHOICES, complaints=wrong_names)


def read_data_config(section: dict[str, Any], overrides: Sequence[str] = ()) -> DataConfig:
    """Return the data section of a configuration, with overrides such as ``data.workers=4``, checked."""
    return load_data_config(section, overrides, choices=DATA_CHOICES)


def wrong_names(look: Callable[[str], Any]) -> list[tuple[str, str]]:
    """Return the path and the mistake of each name of a model or a metric that nobody knows; nothing is fetched.

    `look` gives the value at a dotted path, None where it has a mistake already.
    """
    found = []
    backbone, params = look("model.backbone"), look("model.params")
    text, names = look("model.text.name"), look("evaluate.metrics")
    checks: list[tuple[str, Callable[[Any], object], Any]] = []
    if isinstance(backbone, str) and is_tower(backbone):
        checks.append(("model.backbone", check_tower, backbone))
    elif isinstance(backbone, str) and (backbone not in KNOWN_BACKBONES or (params and backbone != NO_BACKBONE)):
        if (complaint := unknown_backbone(backbone)) is not None:
            found.append(("model.backbone", complaint))
        elif isinstance(params, dict) and not backbone.startswith(HUBS):
            odd = unknown_options(backbone, params, filled=FILLED)
            found += [(f"model.params.{option}", text) for option, text in odd.items()]
    if isinstance(text, str) and ":" in text:
        checks.append(("model.text.name", check_text_model, text))
    if isinstance(names, list | tuple) and names and all(isinstance(name, str) for name in names):
        checks.append(("evaluate.metrics", check_names, names))
    for path, check, value in checks:
        try:
            check(value)
        except UserError as error:
            found.append((path, str(error)))
    return found

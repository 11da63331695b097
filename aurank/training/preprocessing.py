"""How images are shown to an encoder: as the configuration says, else as a checkpoint was, else as its backbone was."""

from typing import Any

from aurank.config import Config
from aurank.config.schema import NormaliseConfig
from aurank.data.resizing import AREA
from aurank.data.transforms import usual_look
from aurank.models.backbones import preprocessing


def with_preprocessing(config: Config, saved: Config | None = None) -> Config:
    """The configuration with `data.normalise` and `data.interpolation`, which a checkpoint then keeps.

    saved: that of the run to go on with, or to take the first weights from; None to take those of the backbone.
    """
    data, model = config.data, config.model
    if data.normalise is not None and data.interpolation is not None:
        return config
    if saved is not None:
        normalise, interpolation = saved.data.normalise, saved.data.interpolation
    else:
        own = preprocessing(model.backbone, model.params, channels=data.channels, pretrained=model.pretrained)
        normalise = NormaliseConfig.model_construct(mean=own.mean, std=own.std)
        interpolation = own.interpolation  # type: ignore[assignment]  # timm's, which the transform checks
    found = {"normalise": data.normalise or normalise, "interpolation": data.interpolation or interpolation}
    return config.model_copy(update={"data": data.model_copy(update=found)})


def as_trained(content: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a checkpoint with what images were shown with, which older ones do not name.

    Until it stood in `data.normalise` it was ImageNet's, or 0.5 for other than 3 channels, unless params of the
    transforms said otherwise; images were resized by area.
    """
    data = content.get("data")
    if not isinstance(data, dict) or data.get("normalise") is not None:
        return content
    data, channels, given = dict(data), data.get("channels", 3), {}
    for key in ("train_transform", "test_transform"):
        params = data[key].get("params") if isinstance(data.get(key), dict) else None
        if isinstance(params, dict):
            # The last is what was measured with; training differed from it in no run that made sense.
            given = {name: params[name] for name in ("mean", "std") if params.get(name)}
            rest = {name: value for name, value in params.items() if name not in ("mean", "std")}
            data[key] = {**data[key], "params": rest}
    if isinstance(channels, int) and 0 < channels <= 256:
        mean, std = usual_look(channels)
        data["normalise"] = {"mean": list(mean), "std": list(std), **given}
        data["interpolation"] = AREA
    return {**content, "data": data}

"""How images are shown to an encoder: as the configuration says, else as a checkpoint was, else as its backbone was."""

from typing import Any

from pydantic import ValidationError

from aurank.config import Config
from aurank.config.messages import one_line, show
from aurank.config.schema import NormaliseConfig
from aurank.data.transforms.base import AREA, INTERPOLATIONS, usual_look
from aurank.errors import UserError
from aurank.models.adapters.timm import preprocessing


def with_preprocessing(config: Config, saved: Config | None = None) -> Config:
    """The configuration with `data.normalise` and `data.interpolation`, which a checkpoint then keeps.

    saved: that of the run to go on with, or to take the first weights from; None to take those of the backbone.

    Raises UserError for a backbone's that no configuration may hold: its checkpoints could not be read.
    """
    data, model = config.data, config.model
    if data.normalise is not None and data.interpolation is not None:
        return config
    if saved is not None:
        normalise, interpolation = saved.data.normalise, saved.data.interpolation
    else:
        try:
            own = preprocessing(model.backbone, model.params, channels=data.channels, pretrained=model.pretrained)
            normalise = data.normalise or NormaliseConfig(mean=own.mean, std=own.std)
            interpolation = data.interpolation or _known(own.interpolation)
        except (UserError, ValidationError) as error:
            said = str(error)
            if isinstance(error, ValidationError):
                wrong = error.errors()[0]
                said = f"{'.'.join(map(str, wrong['loc']))} is {show(wrong['input'])}: {wrong['msg']}"
            raise UserError(
                f"model.backbone={model.backbone}: how it was shown images cannot be taken over ({one_line(said)}); "
                "correct model.params.pretrained_cfg_overlay, or set data.normalise and data.interpolation"
            ) from error
    found = {"normalise": data.normalise or normalise, "interpolation": data.interpolation or interpolation}
    return config.model_copy(update={"data": data.model_copy(update=found)})


def _known(interpolation: str) -> Any:
    if interpolation not in INTERPOLATIONS:
        raise UserError(f"interpolation is {interpolation!r}, expected one of {', '.join(INTERPOLATIONS)}")
    return interpolation


def as_trained(content: dict[str, Any], *, resumed: bool = False) -> dict[str, Any]:
    """The configuration of a checkpoint with what images were shown with, which older ones do not name.

    Until it stood in `data.normalise` it was ImageNet's, or 0.5 for other than 3 channels, unless params of the
    transforms said otherwise; images were resized by area.

    resumed: whether training goes on. Raises UserError then where it saw images otherwise than they were measured with.
    """
    data = content.get("data")
    if not isinstance(data, dict) or data.get("normalise") is not None:
        return content
    data, channels, given = dict(data), data.get("channels", 3), {}
    looks = []
    for key in ("train_transform", "test_transform"):
        params = (data[key].get("params") or {}) if isinstance(data.get(key), dict) else None
        if isinstance(params, dict):
            # The last is what was measured with.
            given = {name: params[name] for name in ("mean", "std") if params.get(name)}
            rest = {name: value for name, value in params.items() if name not in ("mean", "std")}
            data[key] = {**data[key], "params": rest}
            looks.append(given)
    if isinstance(channels, int) and 0 < channels <= 256:
        mean, std = usual_look(channels)
        usual = {"mean": list(mean), "std": list(std)}
        if resumed and any({**usual, **look} != {**usual, **given} for look in looks):
            raise UserError(
                "it was trained on images of another mean or std (data.train_transform.params) than it was measured "
                "with, which no run does any more; evaluate it, or train anew with data.normalise"
            )
        data["normalise"] = {**usual, **given}
        data["interpolation"] = AREA
    return {**content, "data": data}

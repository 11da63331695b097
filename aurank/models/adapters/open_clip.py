"""Image and text towers of open_clip."""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from aurank.errors import UserError
from aurank.lazy import import_library
from aurank.models.adapters.loading import building, describe_adapter, no_code_of_hubs
from aurank.models.adapters.names import Options
from aurank.models.adapters.weights import crop_of_open_clip, load_weights_file
from aurank.models.image_model import ImageModel, TextParts


class _Tower(nn.Module):
    def __init__(self, model: Any, method: str) -> None:
        super().__init__()
        self.model = model
        self.method = method

    def forward(self, batch: Tensor) -> Float[Tensor, "batch dim"]:
        features: Tensor = getattr(self.model, self.method)(batch)
        return features


def open_clip_model(name: str, model_id: str, options: Options, allow_code: bool) -> ImageModel:
    with _building(name, model_id, options, allow_code=allow_code) as (library, arguments):
        model, _, transform = library.create_model_and_transforms(model_id, **arguments)
    description = describe_adapter(library, model_id, arguments, transform)
    load_text = partial(_with_tokeniser, model, name, model_id, options, allow_code)
    return ImageModel(name, _Tower(model, "encode_image"), transform, description, load_text=load_text)


def open_clip_text_model(name: str, model_id: str, options: Options) -> TextParts:
    with _building(name, model_id, options) as (library, arguments):
        model = library.create_model(model_id, **arguments)
    if hasattr(model, "visual"):
        del model.visual  # the image tower would only take memory
    return _with_tokeniser(model, name, model_id, options)


def _with_tokeniser(model: Any, name: str, model_id: str, options: Options, allow_code: bool = False) -> TextParts:
    with _building(name, model_id, options, allow_code=allow_code) as (library, _):
        return _Tower(model, "encode_text"), library.get_tokenizer(model_id)


def open_clip_tower(name: str, model_id: str, options: Options, weights: str | None) -> tuple[Any, tuple[str, ...]]:
    with _building(name, model_id, options) as (library, arguments):
        visual: Any = library.create_model(model_id, **arguments).visual
    return visual, () if weights is None else (load_weights_file(visual, weights, name=name),)


def open_clip_look(name: str, model_id: str, options: Options) -> dict[str, Any]:
    with _building(name, model_id, options) as (library, arguments):
        tags = [tag for model, tag in library.list_pretrained() if model == model_id]
        tag = arguments["pretrained"] or next(iter(tags), None)
        settings = library.get_pretrained_cfg(model_id, tag) if tag in tags else None
        if settings is None:
            model = library.create_model(model_id, **{**arguments, "pretrained": None}, load_weights=False)
            settings = library.get_model_preprocess_cfg(model)
    look: dict[str, Any] = {"interpolation": "bicubic", **settings}
    look["crop"] = crop_of_open_clip(settings)
    return {"mean": library.OPENAI_DATASET_MEAN, "std": library.OPENAI_DATASET_STD, **look}


def open_clip_settings(model: Any, model_id: str) -> dict[str, Any]:
    library: Any = import_library("open_clip", model_id)
    return {"model_cfg": library.get_model_config(model_id), "preprocess_cfg": library.get_model_preprocess_cfg(model)}


@contextlib.contextmanager
def _building(name: str, model_id: str, options: Options, *, allow_code: bool = False) -> Iterator[tuple[Any, Options]]:
    library: Any = import_library("open_clip", name)
    tags = [tag for model, tag in library.list_pretrained() if model == model_id]
    # The command line's other models are pretrained unless said otherwise; here weights go by tags.
    if options.get("pretrained") is True or ("pretrained" not in options and tags):
        tag = tags[0] if tags else "FILE"
        raise UserError(f"{name}: name the weights, as in pretrained={tag}, or pretrained=false")
    pretrained = options.get("pretrained") or None
    with building(name, pretrained=pretrained is not None, allow_code=allow_code), no_code_of_hubs(allow_code):
        yield library, {**options, "pretrained": pretrained}

"""Image and text models of transformers, with its processors and tokenisers."""

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int64
from PIL.Image import Image
from torch import Tensor, nn

from aurank.errors import UserError
from aurank.lazy import import_library
from aurank.models.adapters.loading import building, describe_adapter, no_code_of_hubs
from aurank.models.adapters.names import Options
from aurank.models.adapters.weights import Tensors, crop_of_processor, interpolation_of, load_weights_file, some
from aurank.models.image_model import ImageModel, TextParts

_LONGEST = 77  # tokens of a text where the model would take more: CLIP's length


class _Images(nn.Module):
    def __init__(self, model: Any, image_size: Sequence[int] | None = None) -> None:
        super().__init__()
        self.model = model
        self.image_size = image_size
        method = getattr(model, "get_image_features", model.forward)
        self.interpolates = "interpolate_pos_encoding" in inspect.signature(method).parameters

    def forward(self, images: Float[Tensor, "batch channel height width"]) -> Float[Tensor, "batch dim"]:
        is_other = self.interpolates and self.image_size is not None and [*images.shape[-2:]] != [*self.image_size]
        options = {"interpolate_pos_encoding": True} if is_other else {}
        output = getattr(self.model, "get_image_features", self.model)(pixel_values=images, **options)
        if not isinstance(output, Tensor):
            pooled = getattr(output, "pooler_output", None)
            output = output.last_hidden_state[:, 0] if pooled is None else pooled
        features: Tensor = output.flatten(1)
        return features


class _Texts(nn.Module):
    """The text features of a model: projected, else the mean over the tokens, which come one higher: 0 is padding."""

    def __init__(self, model: Any, padding: int) -> None:
        super().__init__()
        self.model = model
        self.padding = padding

    def forward(self, tokens: Int64[Tensor, "text length"]) -> Float[Tensor, "text dim"]:
        mask = tokens > 0
        project = getattr(self.model, "get_text_features", None)
        output = (project or self.model)(
            input_ids=torch.where(mask, tokens - 1, self.padding), attention_mask=mask.long()
        )
        if isinstance(output, Tensor):
            return output
        if project is not None:
            projected: Tensor = output.pooler_output
            return projected
        states: Tensor = output.last_hidden_state * mask[..., None]
        return states.sum(1) / mask.sum(1, keepdim=True)


class _Tokens:
    def __init__(self, tokenizer: Any, length: int) -> None:
        self.tokenizer = tokenizer
        self.how = {"padding": "max_length", "truncation": True, "max_length": length, "return_tensors": "pt"}

    def __call__(self, texts: Sequence[str]) -> Tensor:
        encoded = self.tokenizer(list(texts), **self.how)
        tokens: Tensor = encoded["input_ids"] + 1
        # Where the tokeniser makes no mask, the model has learnt to see its padding.
        return tokens * encoded["attention_mask"] if "attention_mask" in encoded else tokens


class _Processed:
    def __init__(self, processor: Any) -> None:
        self.processor = processor

    def __call__(self, image: Image) -> Tensor:
        pixels: Tensor = self.processor(images=image, return_tensors="pt")["pixel_values"][0]
        return pixels

    def __repr__(self) -> str:
        return repr(self.processor)


def transformers_model(name: str, model_id: str, options: Options, allow_code: bool) -> ImageModel:
    with _building(name, options, allow_code) as (library, arguments, pretrained):
        processor = library.AutoImageProcessor.from_pretrained(model_id, **_located(arguments))
        model = _model(library, model_id, arguments, pretrained)
    description = describe_adapter(library, model_id, {**arguments, "pretrained": pretrained}, processor)
    load = partial(_with_tokeniser, model, name, model_id, options, allow_code)
    load_text = load if hasattr(model, "get_text_features") else None
    return ImageModel(name, _Images(model), _Processed(processor), description, load_text=load_text)


def transformers_tower(name: str, model_id: str, options: Options, weights: str | None) -> tuple[Any, tuple[str, ...]]:
    with _building(name, options) as (library, arguments, pretrained), _silent(library):
        if pretrained:
            model, loading = library.AutoModel.from_pretrained(model_id, output_loading_info=True, **arguments)
            if missing := sorted(loading["missing_keys"]):
                hint = "; add ,add_pooling_layer=false to the name" if missing[0].startswith("pooler.") else ""
                raise UserError(f"{name}: its weights lack {some(missing)}{hint or '; use another one'}")
        else:
            model = _model(library, model_id, arguments, False)
    for part in ("text_model", "text_projection"):
        if hasattr(model, part):
            delattr(model, part)  # the text tower would only take memory
    notes: tuple[str, ...] = ()
    if weights is not None:

        def named_by_library(tensors: Tensors) -> Tensors:
            """Return the tensors under the names that the library gives them when it loads them."""
            how = {"output_loading_info": True, "ignore_mismatched_sizes": True, "config": model.config}
            with _silent(library):
                loaded, loading = type(model).from_pretrained(None, state_dict=tensors, **how)
            wrong = {*loading["missing_keys"], *(key for key, *_ in loading["mismatched_keys"])}
            unused = {key: tensors[key] for key in loading["unexpected_keys"] if key in tensors}
            return {key: value for key, value in loaded.state_dict().items() if key not in wrong} | unused

        notes = (load_weights_file(model, weights, name=name, convert=named_by_library),)
    size = getattr(getattr(model.config, "vision_config", model.config), "image_size", None)
    sides = size if isinstance(size, list | tuple) else None if size is None else (size, size)
    return _Images(model, sides), notes


def transformers_look(name: str, model_id: str, options: Options) -> dict[str, Any]:
    with _building(name, options) as (library, arguments, _):
        processor = library.AutoImageProcessor.from_pretrained(model_id, **_located(arguments))
        look = {"mean": processor.image_mean, "std": processor.image_std}
        look["crop"] = crop_of_processor(processor.to_dict())
    return {**look, "interpolation": interpolation_of(getattr(processor, "resample", None)) or "bicubic"}


@contextlib.contextmanager
def _silent(library: Any) -> Iterator[None]:
    before = library.utils.logging.get_verbosity()
    library.utils.logging.set_verbosity_error()
    try:
        yield
    finally:
        library.utils.logging.set_verbosity(before)


def transformers_text_model(name: str, model_id: str, options: Options) -> TextParts:
    of_model = {key: value for key, value in options.items() if key != "length"}
    with _building(name, of_model) as (library, arguments, pretrained):
        model = _model(library, model_id, arguments, pretrained)
    if hasattr(model, "get_text_features"):
        for part in ("vision_model", "visual_projection"):
            if hasattr(model, part):
                delattr(model, part)  # the image tower would only take memory
    return _with_tokeniser(model, name, model_id, of_model, length=options.get("length", _LONGEST))


def _with_tokeniser(
    model: Any, name: str, model_id: str, options: Options, allow_code: bool = False, *, length: int = _LONGEST
) -> TextParts:
    with _building(name, options, allow_code) as (library, arguments, _):
        tokenizer = library.AutoTokenizer.from_pretrained(model_id, **_located(arguments))
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # made by the library where the files are missing
        raise UserError("the model has no tokeniser beside its weights, so it takes no words: add its files")
    return _Texts(model, tokenizer.pad_token_id), _Tokens(tokenizer, min(tokenizer.model_max_length, length))


@contextlib.contextmanager
def _building(name: str, options: Options, allow_code: bool = False) -> Iterator[tuple[Any, Options, bool]]:
    library: Any = import_library("transformers", name)
    arguments = {"trust_remote_code": False, **options}  # left out, it would ask at the terminal
    pretrained = bool(arguments.pop("pretrained", True))
    with building(name, pretrained=pretrained, allow_code=allow_code), no_code_of_hubs(allow_code):
        yield library, arguments, pretrained


def _located(arguments: Options) -> Options:
    return {key: value for key, value in arguments.items() if key in ("revision", "subfolder", "trust_remote_code")}


def _model(library: Any, model_id: str, arguments: Options, pretrained: bool) -> Any:
    if pretrained:
        return library.AutoModel.from_pretrained(model_id, **arguments)
    # The configuration takes its options and leaves the model's, as where weights are loaded.
    config, unused = library.AutoConfig.from_pretrained(model_id, return_unused_kwargs=True, **arguments)
    return library.AutoModel.from_config(config, **{**unused, "trust_remote_code": arguments["trust_remote_code"]})

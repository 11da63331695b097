"""Text models of other libraries with the tokens they expect: open_clip, transformers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from aurank.errors import UserError
from aurank.models.adapters.loading import (
    TEXT_OPTIONS,
    Options,
    library_of,
    loading,
    located,
    no_code_of_hubs,
    open_clip_arguments,
    parse_options,
    quick_when_offline,
    require_known,
    transformers_arguments,
    transformers_model,
    weights_only,
)

_OPEN_CLIP = "3.0"
_LONGEST = 77  # tokens of a text where the model would take more: CLIP's length


@dataclass(frozen=True, eq=False)
class TextModel:
    """A text model together with the tokens it expects.

    `tokenise` makes int64 tokens [text, length] of texts, of one length always; `module` maps them to features
    [text, width].
    """

    name: str
    module: nn.Module
    tokenise: Callable[[Sequence[str]], Tensor]
    width: int


def load_text_model(name: str, *, weights: bool = True) -> TextModel:
    """Returns the text model that `name` asks for, on the CPU, in evaluation mode.

    `name` is KIND:WHAT[,option=value…], as for `load_model`; what both make of one name can be compared. It stands in
    configurations and checkpoints, so that nothing in it may run code: there is no way to allow it.

    - `open_clip:ViT-B-32[,pretrained=laion2b_s34b_b79k]`: the text tower.
    - `transformers:openai/clip-vit-base-patch32`: the projected text features, else the mean over the tokens; a name
      of the hub, or a folder; `pretrained=false`: its architecture; `length=77`: most tokens of a text.

    `weights=False`: random ones, whatever the name asks for, so that none are fetched where others are to be loaded
    (but for `open_clip:hf-hub:…`, which open_clip fetches with their configuration).

    Raises UserError for an unknown name, a package that is not installed, weights that cannot be had.
    """
    kind, what, options = check_text_model(name)
    if not weights:
        options |= _WITHOUT_WEIGHTS[kind]
    with torch.random.fork_rng(devices=[]), weights_only(), no_code_of_hubs():
        torch.manual_seed(0)
        module, tokenise = TEXT_ADAPTERS[kind](name, what, options)
    module.eval()
    with torch.inference_mode():
        width = int(module(tokenise(["a text"])).shape[1])
    return TextModel(name, module, tokenise, width)


def check_text_model(name: str) -> tuple[str, str, Options]:
    """The kind that a name begins with, what it names and the options; UserError for others, or unknown options."""
    kind, _, rest = name.partition(":")
    if kind not in TEXT_ADAPTERS or not rest:
        raise UserError(f"no text model {name!r}; expected one of {', '.join(f'{known}:…' for known in TEXT_ADAPTERS)}")
    what, options = parse_options(name, rest)
    require_known(name, options, TEXT_OPTIONS[kind], flag=False)
    return kind, what, options


class _OpenClipText(nn.Module):
    """The text tower of an open_clip model."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        if hasattr(model, "visual"):
            del model.visual  # the image tower would only take memory
        self.model = model

    def forward(self, tokens: Int64[Tensor, "text length"]) -> Float[Tensor, "text dim"]:
        features: Tensor = self.model.encode_text(tokens)
        return features


class _TransformersText(nn.Module):
    """The text features of a transformers model: projected, else the mean over the tokens.

    Tokens come one higher than the library's, 0 where the text has none, so that one tensor says both.
    """

    def __init__(self, model: Any, padding: int) -> None:
        super().__init__()
        if hasattr(model, "get_text_features"):
            for part in ("vision_model", "visual_projection"):
                if hasattr(model, part):
                    delattr(model, part)  # the image tower would only take memory
        self.model = model
        self.padding = padding

    def forward(self, tokens: Int64[Tensor, "text length"]) -> Float[Tensor, "text dim"]:
        mask = tokens > 0
        given = {"input_ids": torch.where(mask, tokens - 1, self.padding), "attention_mask": mask.long()}
        project = getattr(self.model, "get_text_features", None)
        found = self.model(**given) if project is None else project(**given)
        if isinstance(found, Tensor):
            return found
        if project is not None:
            projected: Tensor = found.pooler_output
            return projected
        states: Tensor = found.last_hidden_state * mask[..., None]
        return states.sum(1) / mask.sum(1, keepdim=True)


_Found = tuple[nn.Module, Callable[[Sequence[str]], Tensor]]


def _open_clip(name: str, what: str, options: Options) -> _Found:
    library = library_of("open_clip", name, package="open_clip_torch")
    version = getattr(library, "__version__", _OPEN_CLIP)
    if int(version.split(".")[0]) < int(_OPEN_CLIP.split(".")[0]):
        # before, "openai" weights changed the activations too, which a checkpoint would come back without
        raise UserError(f"{name}: open_clip_torch {version} is too old, upgrade it to {_OPEN_CLIP} or later")
    arguments = open_clip_arguments(library, name, what, options)
    pretrained = arguments["pretrained"] is not None
    with loading(name, pretrained=pretrained), quick_when_offline(needed=pretrained or ":" in what):
        model = library.create_model(what, **arguments)
        tokeniser = library.get_tokenizer(what)

    def tokenise(texts: Sequence[str]) -> Tensor:
        tokens: Tensor = tokeniser(list(texts))
        return tokens

    return _OpenClipText(model), tokenise


def _transformers(name: str, what: str, options: Options) -> _Found:
    library = library_of("transformers", name, package="transformers")
    pretrained, arguments = transformers_arguments(options)
    longest = arguments.pop("length", _LONGEST)
    if isinstance(longest, bool) or not isinstance(longest, int) or longest < 1:
        raise UserError(f"{name}: length must be a whole number above 0, got {longest!r}")
    with loading(name, pretrained=pretrained), quick_when_offline(needed=not Path(what).is_dir()):
        tokeniser = library.AutoTokenizer.from_pretrained(what, **located(arguments))
        model = transformers_model(library, what, arguments, pretrained=pretrained)
    length = min(tokeniser.model_max_length, longest)

    def tokenise(texts: Sequence[str]) -> Tensor:
        found = tokeniser(list(texts), padding="max_length", truncation=True, max_length=length, return_tensors="pt")
        tokens: Tensor = found["input_ids"] + 1
        # Where the tokeniser makes no mask, the model has learnt to see its padding.
        return tokens * found["attention_mask"] if "attention_mask" in found else tokens

    if tokeniser.pad_token_id is None:
        raise UserError(f"{name}: its tokeniser has no padding token, so texts of different lengths cannot be a batch")
    return _TransformersText(model, tokeniser.pad_token_id), tokenise


TEXT_ADAPTERS: Mapping[str, Callable[[str, str, Options], _Found]] = {
    "open_clip": _open_clip,
    "transformers": _transformers,
}

_WITHOUT_WEIGHTS: Mapping[str, Options] = {
    "open_clip": {"pretrained": False, "pretrained_hf": False},  # the latter: of a text tower from transformers
    "transformers": {"pretrained": False},
}

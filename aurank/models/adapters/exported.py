"""Models that aurank has exported: weights with what they belong to, and programs of torch.export."""

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import safe_open
from torch import Tensor, nn

from aurank.errors import UserError
from aurank.files import reading, require_ordinary
from aurank.models.adapters.loading import ImageModel, Options, describe_adapter
from aurank.models.adapters.stored import ENCODER, PREPROCESSING, stored_text, unpack_preprocessing
from aurank.models.adapters.timm import split_file
from aurank.models.encoder import Encoder

PROGRAM_PREPROCESSING = "preprocessing.json"
"""The file beside a program of torch.export that says how images are made ready."""
_REMEDY = "copy or export it again"


class _Program(nn.Module):
    """A program of torch.export on the CPU. The file's digest stands in the state for its weights."""

    def __init__(self, program: nn.Module, digest: bytes) -> None:
        super().__init__()
        self.programs = (program,)  # no part of this module: it has no evaluation mode to be put into
        self.register_buffer("digest", torch.tensor(list(digest), dtype=torch.uint8))

    def forward(self, images: Tensor) -> Float[Tensor, "batch dim"]:
        embeddings: Tensor = self.programs[0](images.cpu())
        return embeddings


def safetensors_model(name: str, what: str, options: Options, allow_code: bool) -> ImageModel:
    """Return the encoder of a file that `aurank export --to safetensors` wrote."""
    _require_plain(name, what, options)
    with reading(name, "weights that aurank export wrote", remedy=_REMEDY):
        with safe_open(what, framework="pt") as file:
            metadata = file.metadata() or {}
            weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  # no mapping
        transform = unpack_preprocessing(stored_text(metadata, PREPROCESSING, name), name)
        arguments: Any = json.loads(stored_text(metadata, ENCODER, name))
        # Not even another file's: what an older export names beside its own weights is left out.
        params = split_file(arguments.get("params") or {})[1]
        arguments |= {"pretrained": False, "weights": None, "params": params}
        module = Encoder(**arguments)
        module.load_state_dict(weights)
    description = describe_adapter(torch, what, {}, f"{arguments} {transform!r}")
    return ImageModel(name, module, transform, description, channels=transform.pipeline.channels)


def torchexport_model(name: str, what: str, options: Options, allow_code: bool) -> ImageModel:
    """Return a program that `aurank export --to torchexport` wrote, with the preprocessing that lies beside it."""
    _require_plain(name, what, options)
    beside = Path(what).with_name(PROGRAM_PREPROCESSING)
    with reading(beside, "the preprocessing beside an exported program", remedy=_REMEDY):
        transform = unpack_preprocessing(beside.read_text(encoding="utf-8"), str(beside))
    with reading(name, "a program of torch.export", remedy=_REMEDY):
        digest = hashlib.sha256(Path(what).read_bytes()).digest()
        logger = logging.getLogger("torch.export")  # which shows a damaged file's traceback before it raises
        logger.disabled = True
        try:
            program = torch.export.load(what).module()
        finally:
            logger.disabled = False
    description = describe_adapter(torch, what, {}, transform)
    return ImageModel(name, _Program(program, digest), transform, description, channels=transform.pipeline.channels)


def _require_plain(name: str, what: str, options: Options) -> None:
    """Raise UserError for options, as the file says all itself, or where there is no file."""
    if options:
        raise UserError(
            f"{name}: unknown option {next(iter(options))!r}: the file says everything itself; leave it out"
        )
    require_ordinary(Path(what))
    if not Path(what).exists():
        raise UserError(f"{name}: there is no file {what}; correct the path")

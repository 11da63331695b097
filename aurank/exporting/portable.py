"""An encoder with its normalisation inside, and the files that hold it for torch."""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from safetensors.torch import save
from torch import Tensor, nn

from aurank.config import ModelConfig
from aurank.data import Pipeline
from aurank.embedding.from_config import encoder_arguments
from aurank.files import replacing, write_text
from aurank.models import Encoder
from aurank.models.adapters.exported import ENCODER, PREPROCESSING, PROGRAM_PREPROCESSING, pack_preprocessing
from aurank.models.adapters.towers import without_places


class Portable(nn.Module):
    """Pixels as they are, 0 to 255, to embeddings of unit length: mean and deviation are part of the model.

    Args:
        encoder: in evaluation mode, on the CPU.
        pipeline: the transform of its images, whose mean and deviation it takes.
    """

    def __init__(self, encoder: Encoder, pipeline: Pipeline) -> None:
        super().__init__()
        self.encoder = encoder
        self.offset: Tensor
        self.scale: Tensor
        self.unit: Tensor
        # The same sums as Pipeline.normalise, so that both give the same float32 numbers.
        for name, values in zip(("unit", "offset", "scale"), pipeline.constants(), strict=True):
            self.register_buffer(name, values)
        self.is_divided = pipeline.unit != 1

    def forward(self, pixels: UInt8[Tensor, "batch channel height width"]) -> Float[Tensor, "batch dim"]:
        values = pixels.float() / self.unit if self.is_divided else pixels.float()
        embeddings: Tensor = self.encoder((values - self.offset) / self.scale)
        return embeddings


def trace(encoder: Encoder, pipeline: Pipeline) -> torch.export.ExportedProgram:
    """Return the program of a `Portable`, for batches of any size.

    Raises:
        Exception: whatever torch raises of a backbone that it cannot trace.
    """
    model = Portable(encoder, pipeline).eval().requires_grad_(False)
    example = torch.zeros(2, pipeline.channels, pipeline.image_size, pipeline.image_size, dtype=torch.uint8)
    with quiet():
        return torch.export.export(model, (example,), dynamic_shapes={"pixels": {0: torch.export.Dim("batch")}})


def write_program(encoder: Encoder, pipeline: Pipeline, path: Path, *, dim: int) -> None:
    """Write the program of torch.export as `path`, with a JSON of its preprocessing beside it."""
    program = trace(encoder, pipeline)
    with quiet():
        torch.export.save(program, path)
    write_text(path.with_name(PROGRAM_PREPROCESSING), pack_preprocessing(pipeline, dim=dim, is_inside=True) + "\n")


def write_weights(encoder: Encoder, config: ModelConfig, pipeline: Pipeline, path: Path, *, dim: int) -> None:
    """Write the encoder's weights, with what they belong to and how images are made ready in the file's metadata."""
    state = {name: value.detach().contiguous().clone() for name, value in encoder.state_dict().items()}
    metadata = {
        "format": "pt",
        PREPROCESSING: pack_preprocessing(pipeline, dim=dim, is_inside=False),
        ENCODER: json.dumps(portable_arguments(config, channels=pipeline.channels)),
    }
    with replacing(path) as file:
        file.write(save(state, metadata=metadata))


def portable_arguments(config: ModelConfig, *, channels: int) -> dict[str, Any]:
    """Return the arguments of `Encoder` that build the network of a configuration, without places on this machine."""
    left_out = ("pretrained", "weights", "width")
    same = {name: value for name, value in encoder_arguments(config).items() if name not in left_out}
    return {**same, "backbone": without_places(config.backbone), "channels": channels}


@contextmanager
def quiet() -> Iterator[None]:
    """A context without the warnings of torch's and onnxruntime's tools about themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield

"""An encoder as an ONNX graph, in float32 and in 8 bits."""

import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from aurank.data import Pipeline
from aurank.errors import UserError
from aurank.models import Encoder
from aurank.models.adapters.exported import PREPROCESSING, pack_preprocessing

INPUT, OUTPUT = "pixels", "embedding"
_ONE_FILE = 2**31 - 2**20  # bytes that a protocol buffer holds, less some for the graph itself
_LAYERS = ("Conv", "Gemm", "MatMul")
_BETWEEN = ("Add", "Relu", "Clip", "MaxPool")
"""What stands between convolutions: in 8 bits too, values need not be widened from one to the next."""


def packed_preprocessing(encoder: Encoder, pipeline: Pipeline, *, is_inside: bool) -> str:
    first = next(layer for layer in encoder.head.modules() if isinstance(layer, nn.Linear))
    dim = first.in_features if encoder.discard_head else encoder.dim
    return pack_preprocessing(pipeline, dim=dim, is_inside=is_inside)


class Portable(nn.Module):
    def __init__(self, encoder: Encoder, pipeline: Pipeline) -> None:
        super().__init__()
        self.encoder = encoder
        self.unit, self.offset, self.scale = map(nn.Buffer, pipeline.constants())

    def forward(self, pixels: UInt8[Tensor, "batch channel height width"]) -> Float[Tensor, "batch dim"]:
        # The same sums as Pipeline.normalise, so that both give the same float32 numbers.
        embeddings: Tensor = self.encoder((pixels.float() / self.unit - self.offset) / self.scale)
        return embeddings


def write_graph(encoder: Encoder, pipeline: Pipeline, path: Path) -> None:
    if (size := sum(value.nbytes for value in encoder.state_dict().values())) > _ONE_FILE:
        raise UserError(f"--to onnx: an ONNX file holds at most 2 GiB, the weights are {size:,} bytes; use --to hf")
    portable = Portable(encoder, pipeline).eval().requires_grad_(False)
    example = torch.zeros(2, pipeline.channels, *pipeline.size, dtype=torch.uint8)
    names: dict[str, Any] = {"input_names": [INPUT], "output_names": [OUTPUT]}
    with _quiet():
        shapes = {"pixels": {0: torch.export.Dim("batch")}}
        program = torch.export.export(portable, (example,), dynamic_shapes=shapes)
        for module in program.graph_module.modules():
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)  # names folders of this machine
        graph: Any = torch.onnx.export(program, dynamo=True, verbose=False, dynamic_shapes=None, **names)
    graph.model.metadata_props[PREPROCESSING] = packed_preprocessing(encoder, pipeline, is_inside=True)
    for value in (*graph.model.graph.inputs, *graph.model.graph.outputs):
        value.shape[0] = "batch"  # torch calls it s77
    graph.save(path, external_data=False)


@contextmanager
def _quiet() -> Iterator[None]:
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def quantise(source: Path, path: Path, batches: Sequence[UInt8[np.ndarray, "batch channel height width"]]) -> None:
    import onnx
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    calibration = iter([{INPUT: pixels} for pixels in batches])
    with tempfile.TemporaryDirectory() as folder, _quiet():
        prepared = Path(folder) / "prepared.onnx"
        quant_pre_process(source, prepared, skip_symbolic_shape=True)  # batch norms become part of convolutions
        nodes = list(onnx.load(prepared, load_external_data=False).graph.node)
        last = max((position for position, node in enumerate(nodes) if node.op_type in _LAYERS), default=-1)
        quantize_static(
            prepared,
            path,
            SimpleNamespace(get_next=partial(next, calibration, None)),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=[*_LAYERS, *_BETWEEN],
            nodes_to_exclude=[node.name for node in nodes[last + 1 :]],
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )

"""ONNX graphs: one file with weights and preprocessing, for batches of any size; and the same in 8 bits."""

import importlib
import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8

from aurank.data import Pipeline
from aurank.errors import UserError
from aurank.exporting.portable import quiet, trace
from aurank.models import Encoder
from aurank.models.adapters.exported import PREPROCESSING, pack_preprocessing

INPUT, OUTPUT = "pixels", "embedding"
PACKAGES = ("onnx", "onnxruntime", "onnxscript")
_ONE_FILE = 2**31 - 2**20  # bytes that a protocol buffer holds, less some for the graph itself
_LAYERS = ("Conv", "Gemm", "MatMul")
_BETWEEN = ("Add", "Relu", "Clip", "MaxPool")
"""What stands between convolutions: in 8 bits too, values need not be widened from one to the next."""


def require_packages() -> None:
    """Raise UserError unless the packages that write and run graphs are installed."""
    missing = []
    for name in PACKAGES:
        try:
            importlib.import_module(name)
        except ImportError:
            missing.append(name)
    if missing:
        raise UserError(f"--to onnx needs {', '.join(missing)}, not installed here: pip install 'aurank[export]'")


def write_graph(encoder: Encoder, pipeline: Pipeline, path: Path, *, dim: int) -> None:
    """Write the encoder with its normalisation as one ONNX file, uint8 `pixels` to float32 `embedding`.

    Raises:
        UserError: its weights do not fit in one file.
        Exception: whatever torch raises of a backbone that it cannot turn into a graph.
    """
    if (size := sum(value.nbytes for value in encoder.state_dict().values())) > _ONE_FILE:
        raise UserError(f"--to onnx: an ONNX file holds at most 2 GiB, the weights are {size:,} bytes; use safetensors")
    program = trace(encoder, pipeline)
    names: dict[str, Any] = {"input_names": [INPUT], "output_names": [OUTPUT]}
    with quiet(), _silent("torch.onnx", "onnxscript", "onnx_ir"):
        graph: Any = torch.onnx.export(program, dynamo=True, verbose=False, dynamic_shapes=None, **names)
    graph.model.metadata_props[PREPROCESSING] = pack_preprocessing(pipeline, dim=dim, is_inside=True)
    for value in (*graph.model.graph.inputs, *graph.model.graph.outputs):
        value.shape[0] = "batch"  # torch calls it s77
    graph.save(path, external_data=False)


def quantise(source: Path, path: Path, batches: Sequence[UInt8[np.ndarray, "batch channel height width"]]) -> None:
    """Write a graph with weights and activations of 8 bits, their ranges taken from calibration images.

    Static quantisation: a range for each weight channel and each activation, known before the graph runs, as
    convolutions need it (dynamic quantisation covers matrix products alone). What follows the last linear layer, the
    length of the embedding, stays float32.

    Args:
        source: a graph of `write_graph`.
        batches: uint8 pixels of training images.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # of a library without types
        def __init__(self) -> None:
            self.left = iter(batches)

        def get_next(self) -> dict[str, np.ndarray] | None:
            pixels = next(self.left, None)
            return None if pixels is None else {INPUT: pixels}

    with tempfile.TemporaryDirectory() as folder, quiet(), _silent():
        prepared = Path(folder) / "prepared.onnx"
        quant_pre_process(source, prepared, skip_symbolic_shape=True)  # batch norms become part of convolutions
        quantize_static(
            prepared,
            path,
            Reader(),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=[*_LAYERS, *_BETWEEN],
            nodes_to_exclude=_outside(prepared),
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )


def _outside(path: Path) -> list[str]:
    """Return the names of the nodes after the last layer with weights: what makes the embedding as long as it is."""
    import onnx

    nodes = list(onnx.load(path, load_external_data=False).graph.node)
    last = max((place for place, node in enumerate(nodes) if node.op_type in _LAYERS), default=-1)
    return [node.name for node in nodes[last + 1 :]]


@contextmanager
def _silent(*names: str) -> Iterator[None]:
    """A context in which these loggers, or the root's, say nothing below an error."""
    loggers = [logging.getLogger(name) for name in names or ("",)]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)

"""Networks computed by another engine than torch."""

import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aurank.errors import UserError, explained, first_line
from aurank.extras import import_library, require_libraries

TORCH, ONNXRUNTIME = "torch", "onnxruntime"
ENGINES = (TORCH, ONNXRUNTIME)
_APART = 1e-3  # of the largest value: at most that much by rounding


class OnnxRuntime(nn.Module):
    """A network in evaluation mode, computed by ONNX Runtime on the CPU; the first batch makes and checks the graph."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        require_libraries("--engine onnxruntime", "onnx", "onnxruntime", "onnxscript")
        self.network, self.training = network, network.training
        self._session: Any = None

    def forward(self, images: Tensor) -> Tensor:
        try:
            if self._session is None:
                self._session = self._begin(images)
            return _run(self._session, images)
        except Exception as error:  # of the exporter, of what it uses, or of the engine
            if isinstance(error, UserError) or explained(error) is not None:
                raise
            said = f"this network fails on images {list(images.shape)} ({first_line(error)[:200]})"
            raise UserError(f"--engine onnxruntime: {said}; leave --engine out") from error

    def _begin(self, images: Tensor) -> Any:
        library: Any = import_library("onnxruntime", "--engine onnxruntime")
        options = library.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # others read the next images
        shapes, example = ({0: torch.export.Dim("batch")},), torch.zeros(2, *images.shape[1:], dtype=images.dtype)
        with tempfile.TemporaryDirectory() as folder, torch.inference_mode(False), torch.no_grad(), quiet_export():
            path = Path(folder, "model.onnx")
            how: dict[str, Any] = {"input_names": ["images"], "dynamo": True, "verbose": False}
            torch.onnx.export(self.network, (example,), str(path), dynamic_shapes=shapes, **how)
            session = library.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        usual, found = self.network(images), _run(session, images)
        if not isinstance(usual, Tensor) or not (usual - found).abs().max() <= _APART * usual.abs().max():
            raise UserError("--engine onnxruntime does not give this network's embeddings; leave --engine out")
        return session


def _run(session: Any, images: Tensor) -> Tensor:
    return torch.from_numpy(session.run(None, {"images": images.contiguous().numpy()})[0])


@contextmanager
def quiet_export() -> Iterator[None]:
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)

"""Embeddings by ONNX Runtime are those of torch, and are told and kept apart from them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from aurank.commands import RunOptions, embed_model, embed_to_folder, evaluate_model
from aurank.embedding import ImageSelection
from aurank.errors import UserError
from aurank.models.engines import OnnxRuntime

DIGITS = ImageSelection("digits:", "test")
MODELS = ["timm:test_resnet,pretrained=false,input_size=32", "timm:test_vit,pretrained=false"]


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_onnxruntime_gives_what_torch_gives_and_says_so(model: str, tmp_path: Path) -> None:
    said: list[str] = []
    found = {}
    for engine in ("torch", "onnxruntime", "onnxruntime"):
        running = RunOptions(batch=64, engine=engine, cache=tmp_path / "cache", say=said.append)
        found[engine] = embed_model(model, DIGITS, running=running)
    torchs, theirs = (found[engine].embeddings for engine in ("torch", "onnxruntime"))
    np.testing.assert_allclose(theirs, torchs, atol=1e-4 * np.abs(torchs).max())
    assert not np.array_equal(theirs, torchs)
    assert len([line for line in said if line.startswith("read ")]) == 1  # by the second of one engine alone
    assert "by onnxruntime" in str(found["onnxruntime"].made_by)
    assert "by" not in str(found["torch"].made_by).split("precision")[-1]


@pytest.mark.slow
def test_a_measure_and_a_folder_of_parts_are_by_the_engine(tmp_path: Path) -> None:
    running = RunOptions(batch=64, engine="onnxruntime")
    report = evaluate_model(MODELS[0], DIGITS, running=running)
    assert any("embedded by onnxruntime" in note for note in report.notes)
    parts = embed_to_folder(MODELS[0], DIGITS, out=tmp_path / "parts", shard_rows=512, running=running)
    assert parts is not None
    whole = embed_model(MODELS[0], DIGITS, running=running)
    np.testing.assert_array_equal(np.asarray(parts.embeddings[:]), whole.embeddings)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"engine": "tensorrt"}, "one of torch, onnxruntime; got 'tensorrt'"),
        ({"engine": "onnxruntime", "bf16": True}, "leave --bf16 out"),
    ],
)
def test_an_engine_that_does_not_fit_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        RunOptions(**given)


class Branching(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.mean((2, 3)) if images.sum() > 0 else images.amax((2, 3))


class Pair(nn.Module):
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return images.amax((2, 3)), images.mean((2, 3))


@pytest.mark.parametrize(
    ("network", "said"), [(Branching(), r"this network fails on images \[2, 3, 8, 8\]"), (Pair(), "does not give")]
)
def test_a_network_that_onnxruntime_cannot_stand_for_is_refused_in_one_line(network: nn.Module, said: str) -> None:
    with pytest.raises(UserError, match=f"{said}.*leave --engine out") as refused:
        OnnxRuntime(network)(torch.zeros(2, 3, 8, 8))
    assert "\n" not in str(refused.value)


def test_images_of_another_size_than_the_first_are_refused_in_one_line() -> None:
    network = OnnxRuntime(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()))
    assert network(torch.ones(1, 3, 8, 8)).shape == (1, 144)
    with pytest.raises(UserError, match=r"fails on images \[3, 3, 9, 9\]"):
        network(torch.ones(3, 3, 9, 9))

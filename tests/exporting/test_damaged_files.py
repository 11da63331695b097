"""Exported files that are cut short, of another version or of something else: one line each, with the remedy."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from testing.galleries import graph

from aurank.config import ModelConfig
from aurank.data import TRANSFORMS
from aurank.errors import UserError
from aurank.exporting.formats import TrainedEncoder, write_weights
from aurank.models import Encoder
from aurank.models.adapters.by_name import load_model
from aurank.models.adapters.exported import ENCODER, pack_preprocessing, unpack_preprocessing

PIPELINE = TRANSFORMS["resize"](4, 3)


def refusal(name: str) -> str:
    """Return what is said of a model's file, without the name that it begins with."""
    with pytest.raises(UserError) as caught:
        load_model(name)
    said = str(caught.value)
    assert said.startswith(f"{name}: ")
    assert said.count(name) == 1
    assert "\n" not in said
    return said.removeprefix(f"{name}: ")


def test_a_graph_is_read_with_what_is_stored_inside(tmp_path: Path) -> None:
    stored = pack_preprocessing(PIPELINE, dim=3, is_inside=True)
    model = load_model(graph(tmp_path / "model.onnx", stored=stored))
    assert model.module(torch.full((2, 3, 4, 4), 7, dtype=torch.uint8)).tolist() == [[7.0] * 3] * 2


def test_graphs_that_cannot_be_used(tmp_path: Path) -> None:
    stored = pack_preprocessing(PIPELINE, dim=3, is_inside=True)
    path = tmp_path / "model.onnx"
    assert "the graph fails on images" in refusal(f"{graph(path)},size=16")
    assert "of format 3" in refusal(graph(path, stored=stored.replace('"format": 2', '"format": 3')))
    assert "it again, or upgrade onnxruntime" in refusal(graph(path, opset=99))
    name = graph(path, stored=stored)
    path.write_bytes(path.read_bytes()[:-100])
    assert refusal(name).startswith("cannot be read as an ONNX model (")


def weights(path: Path) -> dict[str, str]:
    """Write weights and return their metadata."""
    config = ModelConfig(backbone="test_resnet", pretrained=False, dim=8)
    write_weights(TrainedEncoder(Encoder("test_resnet", dim=8, pretrained=False), config, PIPELINE), path)
    with safe_open(path, framework="pt") as file:
        return dict(file.metadata())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda about: {**about, "dim": 9}, "size mismatch for head.weight"),
        (lambda about: {**about, "breadth": 9}, "unexpected keyword argument 'breadth'"),
        (lambda about: {**about, "backbone": "resnet0"}, "timm has no model 'resnet0'"),
        (lambda about: [1], "'list' object is not a mapping"),
    ],
)
def test_weights_that_do_not_fit_their_network(change: Callable[[Any], Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    metadata = weights(path)
    save_file(load_file(path), path, {**metadata, ENCODER: json.dumps(change(json.loads(metadata[ENCODER])))})
    said = refusal(f"safetensors:{path}")
    assert message in said


def test_weights_that_name_a_file_read_none(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    metadata = weights(path)
    place = str(tmp_path / "elsewhere.pt")
    about = {**json.loads(metadata[ENCODER]), "weights": place}
    save_file(load_file(path), path, {**metadata, ENCODER: json.dumps(about)})
    assert load_model(f"safetensors:{path}").channels == 3
    del metadata[ENCODER]
    save_file(load_file(path), path, metadata)
    assert "'aurank.encoder' is missing" in refusal(f"safetensors:{path}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: "[" * 100_000, "cannot be read"),
        (lambda content: "[]", "list indices must be integers"),
        (
            lambda content: json.dumps({**content, "format": 0}),
            "of format 0, expected 2",
        ),
        (lambda content: json.dumps({**content, "transform": {"name": "other"}}), "'other' is missing"),
        (lambda content: json.dumps({**content, "transform": {"name": "resize", "image_size": "9"}}), "image_size"),
        (
            lambda content: json.dumps({**content, "transform": {**content["transform"], "image_size": 10**9}}),
            "images of",
        ),
    ],
)
def test_preprocessing_that_is_none_is_refused_in_one_line(change: Callable[[Any], str], message: str) -> None:
    text = change(json.loads(pack_preprocessing(PIPELINE, dim=8, is_inside=True)))
    with pytest.raises(UserError, match=message) as caught:
        unpack_preprocessing(text, "model.onnx")
    assert str(caught.value).startswith("model.onnx: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "file", "named"),
    [
        ("safetensors", "other.safetensors", "is missing"),
        ("safetensors", "text.safetensors", r"text\.safetensors: cannot be read"),
        ("safetensors", "none.safetensors", "No such file"),
        ("torchexport", "text.safetensors", r"cannot be read as a program of torch.export \(.*preprocessing\.json"),
    ],
)
def test_files_of_others_are_refused(kind: str, file: str, named: str, tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    (tmp_path / "text.safetensors").write_text("text")
    with pytest.raises(UserError, match=named):
        load_model(f"{kind}:{tmp_path / file}", allow_code=True)


def test_a_program_needs_a_word_of_trust(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--allow-code"):
        load_model(f"torchexport:{tmp_path / 'model.pt2'}")

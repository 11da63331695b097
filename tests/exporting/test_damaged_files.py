"""Exported files that are cut short, of another version or of something else: one line each, with the remedy."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from testing.galleries import graph

from aurank.data import TRANSFORMS
from aurank.errors import UserError
from aurank.models.adapters.by_name import load_model
from aurank.models.adapters.exported import pack_preprocessing, unpack_preprocessing

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


def test_graphs_that_cannot_be_used(tmp_path: Path) -> None:
    stored = pack_preprocessing(PIPELINE, dim=3, is_inside=True)
    path = tmp_path / "model.onnx"
    assert "the graph fails on images" in refusal(f"{graph(path)},size=16")
    assert "of format 3" in refusal(graph(path, stored=stored.replace('"format": 2', '"format": 3')))
    assert "it again, or upgrade onnxruntime" in refusal(graph(path, opset=99))
    name = graph(path, stored=stored)
    path.write_bytes(path.read_bytes()[:-100])
    assert refusal(name).startswith("cannot be read as an ONNX model (")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: "[" * 100_000, "cannot be read"),
        (lambda content: "[]", "list indices must be integers"),
        (lambda content: json.dumps({**content, "format": 0}), "of format 0, expected 2"),
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

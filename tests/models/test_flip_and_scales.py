"""Embeddings as means over views: what they are, that indexes and exports keep them, and which networks refuse them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from testing.refusals import refused
from testing.runs import tiny_config
from torch.nn.functional import interpolate, normalize

import aurank
from aurank.commands import build_index, evaluate_model, export_model
from aurank.embedding import ImageSelection
from aurank.errors import UserError

PICTURE = np.random.default_rng(0).integers(0, 256, (50, 60, 3), dtype=np.uint8)
RUN = {"evaluate": {"flip": True, "scales": [1.0, 1.5]}, "train": {"steps": 3}}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("views") / "run"
    aurank.train(tiny_config(**RUN), out)
    return out


def by_one_view(model: Any, images: torch.Tensor) -> torch.Tensor:
    """The mean of unit embeddings, an image and a view at a time, by a model of a single view."""
    rows = []
    for image in images:
        total = torch.zeros(1)
        for scale in (1.0, 1.5):
            size = [round(scale * side) for side in image.shape[-2:]]
            larger = image[None] if scale == 1 else interpolate(image[None], size, mode="bilinear")
            for view in (larger, torch.flip(larger, dims=(3,))):
                total = total + normalize(model.module(view).double(), dim=1)
        rows.append(normalize(total, dim=1))
    return torch.cat(rows)


@pytest.mark.parametrize("name", ["timm:test_resnet,pretrained=false", "timm:test_vit2,pretrained=false"])
def test_rows_are_the_mean_of_the_unit_rows_of_all_views(name: str) -> None:
    plain = aurank.load(name)
    options = ",flip=true,scales=1+1.5" if "resnet" in name else ",flip=true"
    images = plain.stack([PICTURE, PICTURE[::-1].copy()])
    with torch.inference_mode():
        several = aurank.load(name + options).module(images)
        if "resnet" in name:
            expected = by_one_view(plain, images)
        else:
            expected = normalize(sum(normalize(plain.module(view), dim=1) for view in (images, images.flip(3))), dim=1)
    assert (several - expected).abs().max() < 1e-6
    assert (several - normalize(plain.module(images), dim=1)).abs().max() > 1e-4


def test_a_run_keeps_its_views_in_validation_its_index_and_its_export(run: Path, tmp_path: Path) -> None:
    model = aurank.load(run)
    config = {**RUN, "evaluate": {}}
    aurank.train(tiny_config(**config), tmp_path / "one_view")
    plain = aurank.load(tmp_path / "one_view")
    images = plain.stack([np.zeros((8, 8, 1), np.uint8), np.arange(64, dtype=np.uint8).reshape(8, 8, 1)])
    with torch.inference_mode():
        assert (model.module(images) - by_one_view(plain, images)).abs().max() < 1e-6
    build_index(f"aurank:{run}/best", ImageSelection(split="test"), out=tmp_path / "index")
    stored = aurank.load(next((tmp_path / "index").glob("model-*")))
    assert torch.equal(stored.module(images), model.module(images))
    exported = export_model(f"{run}/best", "onnx", tmp_path / "exported")
    assert exported[0].is_same
    with pytest.raises(UserError, match=r"--to hf: timm's folder holds no views \(evaluate.flip, evaluate.scales\)"):
        export_model(f"{run}/best", "hf", tmp_path / "folder")
    changes = ["evaluate.flip=false", "evaluate.scales=[1]"]
    measured = evaluate_model(f"aurank:{run}/best", ImageSelection(overrides=changes))
    assert measured.mauprc == evaluate_model(f"aurank:{tmp_path}/one_view/best").mauprc


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("vit_tiny_patch16_224,pretrained=false,scales=1+1.25", r"Input height \(280\) doesn't match model"),
        ("test_resnet,pretrained=false,scales=wide", "'wide'.*give flip=true, or scales such as scales=1"),
    ],
)
def test_what_a_network_does_not_take_is_one_line(options: str, message: str) -> None:
    refused(message, aurank.load, f"timm:{options}")

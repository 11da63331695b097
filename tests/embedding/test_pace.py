"""The pace of embedding: the fastest that a trial finds, and one for all that belongs together."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from testing.trees import write_tree
from torch import Tensor, nn

from aurank.commands import RunOptions, embed_model
from aurank.embedding import ImageSelection
from aurank.embedding import embed as embedding
from aurank.embedding.cache import Pace
from aurank.embedding.embed import find_pace, kept_to
from aurank.models import Encoder
from aurank.models.encoder import is_channels_last

MODEL = "timm:test_vit,pretrained=false"


class Timed(nn.Module):
    """Two convolutions; an image takes what `cost` says of the batch and of whether it comes channels-last."""

    def __init__(self, cost: Any) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
        self.cost, self.clock = cost, 0.0

    def forward(self, images: Tensor) -> Tensor:
        last = images.is_contiguous(memory_format=torch.channels_last)
        assert last == is_channels_last(self)
        self.clock += len(images) * self.cost(len(images), last)
        return torch.zeros(len(images), 2)


def chosen(monkeypatch: pytest.MonkeyPatch, count: int, cost: Any) -> Pace:
    model = Timed(cost)
    monkeypatch.setattr("time.process_time", lambda: model.clock)
    found = find_pace(model, torch.zeros(8, 3, 8, 8), count)
    assert not is_channels_last(model)
    return found


def test_the_fastest_batch_and_format_are_taken(monkeypatch):
    for costs in ({8: 3e-4, 16: 1e-4, 32: 2e-4}, {8: 1e-4, 16: 2e-4, 32: 3e-4}, {16: 2e-4, 32: 1e-4, 64: 2e-4}):
        found = chosen(monkeypatch, 10**6, lambda batch, last, costs=costs: costs[batch] * (1 + last))
        assert found == (min(costs, key=costs.__getitem__), False)
    assert chosen(monkeypatch, 10**6, lambda batch, last: 1e-4 * (2 - last) * (1 + 1 / batch)) == (256, True)


def test_a_trial_takes_three_seconds_and_a_small_part_of_the_work(monkeypatch):
    for count, most in ((10**6, 3.0 * torch.get_num_threads()), (3000, 0.05 * 3000 * 1e-3)):
        model = Timed(lambda batch, last: 1e-3 * (1 + 1 / batch))
        monkeypatch.setattr("time.process_time", lambda model=model: model.clock)
        found = find_pace(model, torch.zeros(8, 3, 8, 8), count)
        assert found.batch > 16
        assert model.clock <= 1.1 * most


def test_a_format_changes_rounding_alone_and_ends_with_its_context():
    encoder, images = Encoder("test_resnet", dim=8, pretrained=False).eval(), torch.rand(4, 3, 32, 32)
    with torch.inference_mode():
        before = encoder(images)
        with kept_to(Pace(4, True), encoder) as laid_out:
            assert is_channels_last(encoder)
            torch.testing.assert_close(encoder(laid_out(images)), before, rtol=1e-4, atol=1e-6)
        assert not is_channels_last(encoder)
        assert torch.equal(encoder(images), before)
    encoder(images).sum().backward()  # its weights can still be trained


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageSelection:
    """Eleven photos, of which five are enough for a trial, which finds batches of two."""
    write_tree(tmp_path / "photos", [f"class {row % 3}/{row:02d}.png" for row in range(11)])
    monkeypatch.setattr(embedding, "LEAST", 5)
    monkeypatch.setattr(embedding, "find_pace", lambda *_: Pace(2, False))
    return ImageSelection(f"folder:{tmp_path / 'photos'}", split="all")


def test_what_is_left_of_a_cache_is_embedded_as_the_rest_was(images, tmp_path, monkeypatch):
    running = RunOptions(device="cpu", cache=tmp_path / "cache")
    first = embed_model(MODEL, images, running=running)
    (piece,) = (tmp_path / "cache").glob("*/*.safetensors")  # of many batches
    piece.unlink()
    paces: list[Pace] = []

    def noted(pace: Pace, model: nn.Module) -> Any:
        paces.append(pace)
        return kept_to(pace, model)

    monkeypatch.setattr(embedding, "find_pace", Mock(side_effect=AssertionError("tried again")))
    monkeypatch.setattr(embedding, "kept_to", noted)
    again = embed_model(MODEL, images, running=running)
    assert paces == [Pace(2, False)]
    assert np.array_equal(first.embeddings, again.embeddings)
    embed_model(MODEL, images, running=RunOptions(device="cpu", batch=3))
    assert paces[1:] == [Pace(3)]

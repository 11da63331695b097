"""Heads on embeddings of image towers of transformers and open_clip: one network with the backbone that made them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from testing.saved_rows import head_config, write_photos
from testing.transformers_folders import folder_of
from torch.nn.functional import normalize

import aurank
from aurank.commands import ImageIndex, build_index, embed_model, evaluate_model, export_model
from aurank.data import READERS
from aurank.data.decode import decode
from aurank.embedding import ImageSelection
from aurank.embedding.stored.checkpoint import load_checkpoint
from aurank.errors import UserError
from aurank.models.adapters.by_name import load_model

pytestmark = pytest.mark.slow
LOOKS: dict[str, dict[str, Any]] = {
    "dinov2": {"size": {"shortest_edge": 36}},
    "clip": {"size": {"shortest_edge": 32}},
    "siglip": {},  # squeezed
}


def head_on(name: str, folder: Path) -> Path:
    """Photos, their embeddings by that model, and a run of a head on these, in a folder."""
    images = ImageSelection(f"folder:{write_photos(folder / 'photos')}", split="all")
    embed_model(name, images).save(folder / "rows.npz")
    sections = {"sampler": {"batch": 4}, "data": {"validation_fraction": 0.0}}
    aurank.train(head_config(folder / "rows.npz", **sections), folder / "run")
    return folder


@pytest.fixture(scope="module", params=LOOKS)
def towers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    return head_on(f"transformers:{folder_of(folder / 'net', request.param, **LOOKS[request.param])}", folder)


def test_tower_and_head_are_one_network(towers: Path) -> None:
    model, transform = aurank.load(towers / "run" / "best")
    head = load_checkpoint(towers / "run" / "best.safetensors")["encoder"]
    manifest = READERS["folder"](towers / "photos")
    pictures = [decode(manifest.source, path, 3) for path in manifest.paths]
    with np.load(towers / "rows.npz") as held:
        places = {path: row for row, path in enumerate(held["paths"].tolist())}
        rows = torch.from_numpy(held["embeddings"][[places[path] for path in manifest.paths]])
    expected = normalize(rows @ head["head.weight"].T + head["head.bias"])
    base = load_model(f"transformers:{towers}/net")
    with torch.inference_mode():
        found = model(torch.stack([base.transform(Image.fromarray(picture)) for picture in pictures]))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
        shown = model(torch.stack([transform(picture) for picture in pictures]))
    assert float((shown * expected).sum(1).min()) > 0.9999  # pixels are rounded otherwise


def test_images_are_measured_indexed_and_exported_as_by_one_model(towers: Path, tmp_path: Path) -> None:
    name, images = f"aurank:{towers}/run/best", ImageSelection(f"folder:{towers}/photos")
    saved, shown = evaluate_model(name), evaluate_model(name, images)
    assert shown.mauprc == pytest.approx(saved.mauprc, abs=0.02)
    exported = export_model(name, "torchexport", tmp_path / "out", images=images)
    assert exported.check.is_same
    assert str(towers) not in (tmp_path / "out" / "README.md").read_text()
    for to in ("safetensors", "hf"):
        with pytest.raises(UserError, match=f"--to {to}: the network is that of a folder of this machine"):
            export_model(name, to, tmp_path / to, images=images)
    build_index(name, replace(images, split="test"), out=tmp_path / "index")
    (towers / "net" / "model.safetensors").rename(towers / "net" / "away")
    try:
        found = ImageIndex.open(tmp_path / "index")
        with pytest.raises(UserError, match=r"a head on embeddings by transformers:.*, which cannot be loaded"):
            aurank.load(towers / "run")
    finally:
        (towers / "net" / "away").rename(towers / "net" / "model.safetensors")
    assert len(found) == 12


def test_a_transform_that_aurank_has_none_like_is_told(tmp_path: Path) -> None:
    net = folder_of(tmp_path / "net", do_rescale=False)
    head_on(f"transformers:{net}", tmp_path)
    with pytest.raises(UserError, match=r"is shown images as no transform of aurank does it; measure"):
        aurank.load(tmp_path / "run")


def test_a_name_from_another_folder_means_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of(tmp_path / "net")
    monkeypatch.chdir(tmp_path)
    head_on("transformers:net", tmp_path)
    monkeypatch.chdir("/")
    assert aurank.load(tmp_path / "run")[0].dim == 4


def test_a_head_behind_a_tower_of_open_clip(tmp_path: Path) -> None:
    open_clip = pytest.importorskip("open_clip")
    torch.save(open_clip.create_model("ViT-S-32-alt").state_dict(), tmp_path / "net.pt")
    head_on(f"open_clip:ViT-S-32-alt,pretrained={tmp_path}/net.pt", tmp_path)
    name, images = f"aurank:{tmp_path}/run/best", ImageSelection(f"folder:{tmp_path}/photos")
    assert evaluate_model(name, images).mauprc == pytest.approx(evaluate_model(name).mauprc, abs=1e-6)
    exported = export_model(name, "safetensors", tmp_path / "out", images=images)
    assert exported.check.is_same

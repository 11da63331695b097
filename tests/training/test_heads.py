"""Heads on saved embeddings: trained by the same loop, measured alone and behind the backbone that made them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from testing.galleries import folder_of, head_config, rows, write_rows, write_split_photos
from testing.runs import tiny_config
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
BASE = "timm:test_vit,pretrained=false"


def test_a_head_of_two_layers_trains_with_memory_miner_and_average(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.npz")
    changes = {"model": {"head_layers": 2, "head_width": 12}, "memory": {"size": 16}, "train": {"ema": 0.9}}
    config = head_config(file, **changes, loss={"name": "contrastive"}, miner={"name": "multi_similarity"})
    result = aurank.train(config, tmp_path / "run")
    assert result.steps == 4
    assert result.report.num_queries == 24
    weights = load_checkpoint(tmp_path / "run" / "best.safetensors")["encoder"]
    assert weights["head.0.weight"].shape == (12, 16)
    assert all(name.startswith("head.") for name in weights)


def test_a_linear_head_is_the_matrix_of_its_checkpoint(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.npz")
    result = aurank.train(head_config(file), tmp_path / "run")
    head = load_checkpoint(tmp_path / "run" / "best.safetensors")["encoder"]
    held = rows()
    embedded = torch.from_numpy(held["embeddings"]) @ head["head.weight"].T + head["head.bias"]
    test = held["splits"] == "test"
    expected = aurank.evaluate(normalize(embedded).numpy()[test], held["labels"][test])
    assert result.report.mauprc == pytest.approx(expected.mauprc, abs=1e-7)
    again = evaluate_model(f"aurank:{tmp_path}/run/best")
    assert again.mauprc == result.report.mauprc
    other = evaluate_model(f"aurank:{tmp_path}/run/best", ImageSelection(f"embeddings:{file}", split="train"))
    assert other.num_queries == 48


WHOLE = {"sampler": {"batch": 4}, "data": {"validation_fraction": 0.0}}


def head_on(name: str, folder: Path) -> Path:
    """Photos, their embeddings by that model, and a run of a head on these, in a folder."""
    images = ImageSelection(f"folder:{write_split_photos(folder / 'photos')}", split="all")
    embed_model(name, images).save(folder / "rows.npz")
    aurank.train(head_config(folder / "rows.npz", **WHOLE), folder / "run")
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return head_on(BASE, tmp_path_factory.mktemp("heads"))


def test_backbone_and_head_on_images_give_the_head_on_embeddings(photos: Path) -> None:
    image_model = aurank.load(photos / "run" / "best")
    model, transform = image_model.module, image_model.transform
    manifest = READERS["folder"](photos / "photos")
    with np.load(photos / "rows.npz") as held:
        places = {path: row for row, path in enumerate(held["paths"].tolist())}
        embeddings = held["embeddings"][[places[path] for path in manifest.paths]]
    head = load_checkpoint(photos / "run" / "best.safetensors")["encoder"]
    images = torch.stack([transform(decode(manifest.source, path, 3)) for path in manifest.paths])
    with torch.inference_mode():
        found = model(images)
    expected = normalize(torch.from_numpy(embeddings) @ head["head.weight"].T + head["head.bias"])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    rows = ImageSelection(f"embeddings:{photos}/rows.npz", split="all")
    own = embed_model(f"aurank:{photos}/run/best", rows)
    torch.testing.assert_close(torch.from_numpy(np.asarray(own.embeddings)), expected, atol=1e-5, rtol=0)


def test_behind_its_backbone_a_head_sees_rectangles_as_the_backbone_did(photos: Path, tmp_path: Path) -> None:
    base, images = f"{BASE},img_size=48x32,resize=pad", ImageSelection(f"folder:{photos}/photos", split="all")
    embed_model(base, images).save(tmp_path / "rows.npz")
    aurank.train(head_config(tmp_path / "rows.npz", **WHOLE), tmp_path / "run")
    transform = aurank.load(tmp_path / "run" / "best").transform
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 90, 3), dtype=np.uint8))
    assert transform(photo).shape == (3, 48, 32)
    assert torch.equal(transform(photo), load_model(base).transform(photo))


def test_a_head_is_the_start_of_another_head_and_of_no_network(photos: Path, tmp_path: Path) -> None:
    sections = {**WHOLE, "train": {"steps": 1}}
    start = {"init_from": f"{photos}/run/best"}
    aurank.train(head_config(photos / "rows.npz", model=start, optim={"lr": 1e-9}, **sections), tmp_path / "run")
    model = aurank.load(tmp_path / "run").module
    before = load_checkpoint(photos / "run" / "best.safetensors")["encoder"]["head.weight"]
    torch.testing.assert_close(model.state_dict()["head.weight"], before)
    config = tiny_config(model={**start, "backbone": "test_vit", "params": {}}, data={"channels": 3})
    with pytest.raises(UserError, match=r"model.init_from: .* is a head without a backbone"):
        aurank.train(config, tmp_path / "network")


def test_what_cannot_be_joined_is_told_in_one_line(photos: Path, tmp_path: Path) -> None:
    run, images = photos / "run" / "best", ImageSelection(f"folder:{photos}/photos")
    with pytest.raises(UserError, match=r"was trained on embeddings, .* name images to check the export with"):
        export_model(f"{run}", "hf", tmp_path / "out")
    with pytest.raises(UserError, match=r"holds embeddings, which timm:test_vit.* does not take"):
        evaluate_model(BASE, ImageSelection(f"embeddings:{photos}/rows.npz"))
    file = write_rows(tmp_path / "wide.npz")
    with pytest.raises(UserError, match=r"wide.npz was made by .*: width 16 in place of 64"):
        evaluate_model(f"aurank:{run}", ImageSelection(f"embeddings:{file}"))
    aurank.train(head_config(file), tmp_path / "own")
    with pytest.raises(UserError, match="is a head on embeddings by an unknown model; only one of timm"):
        evaluate_model(f"aurank:{tmp_path}/own/best", images)


def test_another_model_than_made_the_embeddings_is_refused(photos: Path, tmp_path: Path) -> None:
    with np.load(photos / "rows.npz") as content:
        held = dict(content)
    record = json.loads(str(held["made_by"]))
    for change, message in (
        ({"weights_sha256": "0" * 64}, "has other weights than when "),
        ({"preprocessing": "Resize(7)"}, "is shown images otherwise than when "),
        ({"model": "aurank:gone/best"}, "a head on embeddings by aurank:gone/best; only one of timm, open_clip"),
        ({"model": "timm:test_vit,weights=gone.pth"}, "embeddings by timm:test_vit,weights=.*gone.pth: .*gone.pth"),
    ):
        np.savez(tmp_path / "rows.npz", **{**held, "made_by": np.array(json.dumps({**record, **change}))})
        out = tmp_path / f"run{len(message)}"
        aurank.train(head_config(tmp_path / "rows.npz", **WHOLE, train={"steps": 1}), out)
        with pytest.raises(UserError, match=message):
            aurank.load(out / "best")
        if "model" not in change:
            with pytest.raises(UserError, match=r"was made by .* and the head was trained on embeddings by"):
                evaluate_model(f"aurank:{out}/best", ImageSelection(f"embeddings:{photos}/rows.npz"))


@pytest.fixture(scope="module")
def towers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dinov2")
    return head_on(f"transformers:{folder_of(folder / 'net', 'dinov2', size={'shortest_edge': 36})}", folder)


def test_images_are_measured_indexed_and_exported_as_by_one_model(towers: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    name, images = f"aurank:{towers}/run/best", ImageSelection(f"folder:{towers}/photos")
    saved, shown = evaluate_model(name), evaluate_model(name, images)
    assert shown.mauprc == pytest.approx(saved.mauprc, abs=0.02)
    exported = export_model(name, "onnx", tmp_path / "out", images=images)
    assert exported[0].is_same
    assert str(towers) not in (tmp_path / "out" / "README.md").read_text()
    with pytest.raises(UserError, match="--to hf: the network is that of a folder of this machine"):
        export_model(name, "hf", tmp_path / "hf", images=images)
    build_index(name, replace(images, split="test"), out=tmp_path / "index")
    (towers / "net" / "model.safetensors").rename(towers / "net" / "away")
    try:
        found = ImageIndex.open(tmp_path / "index")
        with pytest.raises(UserError, match=r"a head on embeddings by transformers:.*weights"):
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
    assert aurank.load(tmp_path / "run").module.dim == 4

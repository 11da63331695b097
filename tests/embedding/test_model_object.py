"""One object for a model of any source: it embeds photos, and is saved and loaded again to the last bit."""

import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from testing.galleries import folder_of, graph, write_photos
from testing.refusals import refused

import aurank
from aurank.commands import evaluate_model
from aurank.embedding import ImageSelection
from aurank.errors import UserError
from aurank.models.image_model import ImageModel

CODE = """
import torch
def build(width=3):
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 224 * 224, width))
"""
TIMM = "timm:test_resnet,pretrained=false"
hub = pytest.importorskip("huggingface_hub")


def pictures() -> list[Image.Image]:
    chance = np.random.default_rng(0)
    shapes = [(30, 40, 3), (61, 33, 3), (50, 50, 3)]
    return [Image.fromarray(chance.integers(0, 255, shape, dtype=np.uint8)) for shape in shapes]


@pytest.fixture(scope="module")
def model() -> ImageModel:
    return aurank.load(TIMM)


@pytest.fixture
def sources(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """The name of a model of a kind, whose files are in ``given``."""
    given = tmp_path / "given"
    given.mkdir()

    def name(kind: str) -> str:
        if kind == "aurank":
            shutil.copytree(tiny_run, given / "run")
            return str(given / "run" / "best")
        if kind == "python":
            (tmp_path / "own_code.py").write_text(CODE, encoding="utf-8")
            monkeypatch.chdir(tmp_path)
            sys.modules.pop("own_code", None)
            return "python:own_code:build,width=5"
        if kind == "onnx":
            pytest.importorskip("onnxruntime")
            return graph(given / "net.onnx", dtype="FLOAT") + ",mean=0.5,std=0.25"
        if kind == "transformers":
            return f"transformers:{folder_of(given, 'clip')}"
        if kind == "local-dir":
            aurank.load(f"{TIMM},global_pool=max").save(given / "net")
            return f"timm:local-dir:{given / 'net'},global_pool=max"
        if kind == "open_clip":
            vision = {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16}
            text = {"context_length": 8, "vocab_size": 99, "width": 32, "heads": 2, "layers": 1}
            path = tmp_path / "tiny-clip.json"
            path.write_text(json.dumps({"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}), encoding="utf-8")
            pytest.importorskip("open_clip").add_model_config(path)
            return "open_clip:tiny-clip,pretrained=false,image_mean=0.25,image_resize_mode=squash"
        return f"{TIMM},in_chans=1,input_size=48"

    return name


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["timm", "local-dir", "aurank", "onnx", "transformers", "open_clip", "python"])
def test_a_saved_model_is_the_same_to_the_last_bit(kind, sources, tmp_path, monkeypatch):
    name = sources(kind)
    loaded = aurank.load(name, allow_code=True)
    expected = loaded.encode(pictures())
    loaded.save(tmp_path / "saved")
    shutil.rmtree(tmp_path / "given")
    torch.manual_seed(99)
    again = aurank.load(tmp_path / "saved", allow_code=True)
    np.testing.assert_array_equal(again.encode(pictures()), expected)
    shown = [each.preprocessing.replace("[", "(").replace("]", ")") for each in (again, loaded)]
    assert (shown[0], again.channels) == (shown[1], loaded.channels)
    assert again.name == f"aurank:{tmp_path / 'saved'}"
    again.save(tmp_path / "twice")
    again.save(tmp_path / "saved")  # over itself
    for folder in ("twice", "saved"):
        np.testing.assert_array_equal(aurank.load(tmp_path / folder, allow_code=True).encode(pictures()), expected)
        texts = [path.read_text(encoding="utf-8") for path in (tmp_path / folder).glob("*.[jm][sd]*")]
        assert not [text for text in texts if str(tmp_path) in text]  # no place of this machine
    if kind == "python":
        refused("--allow-code", aurank.load, tmp_path / "saved")


def test_images_of_every_form_are_embedded_alike(model, tmp_path):
    photos = pictures()
    for number, photo in enumerate(photos):
        photo.save(tmp_path / f"{number}.png")
    paths = sorted(tmp_path.iterdir())
    rows = model.encode(paths)
    assert (rows.dtype, rows.shape) == (np.float32, (3, 96))
    assert not np.allclose(np.linalg.norm(rows, axis=1), 1, atol=0.01)
    forms: list[Any] = [
        list(map(str, paths)),
        photos,
        [np.asarray(photo) for photo in photos],
        [path.read_bytes() for path in paths],
        iter(photos),
        ({"image": photos[start : start + 2], "text": None} for start in (0, 2)),
    ]
    for images in forms:
        np.testing.assert_allclose(model.encode(images, batch_size=2), rows, rtol=1e-5, atol=1e-6)
    for single in (paths[1], str(paths[1]), photos[1], np.asarray(photos[1])):
        np.testing.assert_allclose(model.encode(single), rows[1], rtol=1e-5, atol=1e-6)
    with torch.inference_mode():
        by_hand = model.module(model.transform(photos[1])[None])[0].numpy()
    np.testing.assert_allclose(rows[1], by_hand, rtol=1e-5, atol=1e-6)
    unit = model.encode(photos, normalize_embeddings=True)
    np.testing.assert_allclose(unit, rows / np.linalg.norm(rows, axis=1, keepdims=True), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(model.similarity(rows, rows).diagonal(), [1, 1, 1], rtol=1e-6)
    assert model.encode([]).shape[0] == 0
    model.module.train()
    model.encode(photos[0], progress=True)
    assert model.module.training
    model.module.eval()


def test_what_is_wrong_is_one_line_that_names_it(model, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"broken")
    Image.new("RGB", (9, 9)).save(tmp_path / "whole.png")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("", encoding="utf-8")
    whole: Any = tmp_path / "whole.png"
    cases: dict[str, Callable[[], object]] = {
        "broken.png": lambda: model.encode([whole, tmp_path / "broken.png"]),
        "gone.png": lambda: model.encode([whole, str(tmp_path / "gone.png")]),
        r"images\[1\].*float64": lambda: model.encode([whole, np.zeros((4, 4, 3))]),
        r"images\[1\].*got Tensor": lambda: model.encode([whole, torch.zeros(3, 4, 4)]),
        "runs/x/bset": lambda: aurank.load("runs/x/bset"),
        "tim:resnet18.*did you mean 'timm'": lambda: aurank.load("tim:resnet18"),
        "no model 'embeddings:": lambda: aurank.load("embeddings:rows.npz"),
        "holds 'mine.txt'": lambda: model.save(tmp_path / "full"),
        "whole.png.*is a file": lambda: model.save(whole),
    }
    for said, call in cases.items():
        refused(said, call)
    with pytest.raises(TypeError, match=r"'normalise_embeddings'.*did you mean 'normalize_embeddings'"):
        model.encode(whole, normalise_embeddings=True)
    assert (tmp_path / "full/mine.txt").exists()


class OfflineHub:
    """What of huggingface_hub is used, on a folder in place of the hub."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.made = root, list[tuple[str, Any]]()
        monkeypatch.setattr(hub, "HfApi", lambda token=None: self)
        monkeypatch.setattr(hub, "hf_hub_download", self.file)
        monkeypatch.setattr(hub, "snapshot_download", lambda repo, revision=None: str(root / repo))

    def create_repo(self, repo_id: str, *, private: bool | None, exist_ok: bool) -> None:
        if "/" not in repo_id:
            raise ValueError("no such owner\nand more")
        self.made.append((repo_id, private))

    def upload_folder(self, *, repo_id: str, folder_path: str) -> SimpleNamespace:
        shutil.copytree(folder_path, self.root / repo_id)
        return SimpleNamespace(commit_url=f"https://hub/{repo_id}/commit/first")

    def file(self, repo: str, name: str, revision: str | None = None) -> str:
        if not (self.root / repo).exists():
            raise hub.errors.HFValidationError(f"no repository {repo}\nand more")
        if not (self.root / repo / name).exists():
            raise hub.errors.LocalEntryNotFoundError("no such file")
        return str(self.root / repo / name)


@pytest.mark.slow
def test_a_model_goes_to_the_hub_and_comes_back(model, tiny_run, tmp_path, monkeypatch):
    double = OfflineHub(tmp_path, monkeypatch)
    url = model.push_to_hub("owner/net", licence="mit", private=True)
    assert (url, double.made) == ("https://hub/owner/net/commit/first", [("owner/net", True)])
    assert (tmp_path / "owner/net/README.md").read_text(encoding="utf-8").startswith('---\nlicense: "mit"\n')
    loaded = aurank.load("hf-hub:owner/net")
    assert loaded.name == "hf-hub:owner/net"
    np.testing.assert_array_equal(loaded.encode(pictures()), model.encode(pictures()))
    aurank.load(tiny_run).push_to_hub("owner/trained")
    photos = ImageSelection(f"folder:{write_photos(tmp_path / 'photos', classes=3, images=2)}")
    measured = [evaluate_model(name, photos).metrics for name in ("hf-hub:owner/trained", f"aurank:{tiny_run}/best")]
    assert measured[0] == measured[1]
    refused(r"cannot be pushed to net: no such owner$", model.push_to_hub, "net")
    with pytest.raises(UserError, match=r"hf-hub:owner/none cannot be had from the hub: no repository owner/none$"):
        aurank.load("hf-hub:owner/none")


def test_sentence_transformers_takes_the_model(model):
    util = pytest.importorskip("sentence_transformers.util")
    photos = pictures()
    pairs = util.paraphrase_mining(model, [*photos, photos[1].copy()], batch_size=2)
    assert {pairs[0][1], pairs[0][2]} == {1, 3}
    assert pairs[0][0] == pytest.approx(1, abs=1e-5)
    hits = util.semantic_search(model.encode(photos, convert_to_tensor=True), model.encode(photos), top_k=1)
    assert [hit[0]["corpus_id"] for hit in hits] == [0, 1, 2]


@pytest.mark.slow
def test_mteb_takes_the_model_as_an_image_encoder(model):
    mteb, datasets = pytest.importorskip("mteb"), pytest.importorskip("datasets")
    loaders = pytest.importorskip("mteb._create_dataloaders")
    assert isinstance(model, mteb.EncoderProtocol)
    buffers = [io.BytesIO() for _ in pictures()]
    for buffer, photo in zip(buffers, pictures(), strict=True):
        photo.save(buffer, "PNG")
    content = [{"bytes": buffer.getvalue(), "path": None} for buffer in buffers]
    data = datasets.Dataset.from_dict({"image": content}, features=datasets.Features({"image": datasets.Image()}))
    task = mteb.get_task("CIFAR10Clustering").metadata
    loader = loaders.create_dataloader(data, task_metadata=task, input_column="image", batch_size=2)
    rows = model.encode(loader, task_metadata=task, hf_split="test", hf_subset="default", batch_size=2)
    np.testing.assert_allclose(rows, model.encode(pictures()), rtol=1e-5, atol=1e-6)

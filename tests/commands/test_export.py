"""Exporting a trained model: what is written, checked and refused."""

import importlib
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ruamel.yaml import YAML
from testing.picture_modes import write_pictures
from testing.runs import tiny_config
from testing.trees import write_tree

import aurank
from aurank.commands import evaluate_model, export_model
from aurank.commands.export import ExportCheck, _require_expressible
from aurank.embedding import ImageSelection
from aurank.errors import AurankError, UserError
from aurank.training import read_config


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> ImageSelection:
    names = [f"class{place % 3}/{place}.png" for place in range(12)]
    return ImageSelection(f"folder:{write_tree(tmp_path_factory.mktemp('few') / 'photos', names, height=20, width=24)}")


def run_card(folder: Path, monkeypatch: pytest.MonkeyPatch, card: str = "README.md") -> np.ndarray:
    """Run the Python of a card in its folder, beside a photo, and return its embedding."""
    monkeypatch.chdir(folder)
    (code,) = re.findall(r"```python\n(.*?)```", Path(card).read_text(encoding="utf-8"), flags=re.DOTALL)
    scope: dict[str, Any] = {}
    exec(compile(code, card, "exec"), scope)
    return np.asarray(scope["embedding"])


@pytest.mark.slow
@pytest.mark.parametrize("to", ["hf", "onnx"])
def test_an_export_is_checked_and_says_how_it_is_used(to, tiny_run, few, tmp_path, monkeypatch):
    if to == "onnx":
        pytest.importorskip("onnxscript")
    out = tmp_path / "out, with a comma"
    check, *others = export_model(str(tiny_run / "best"), to, out, images=few, int8=to == "onnx", licence="mit")
    assert check.images == 12
    assert check.max_difference < 1e-5
    assert f"{check.before:.4f}" == f"{check.after:.4f}"
    if to == "onnx":
        assert others[0].file == "model.int8.onnx"
        assert (out / "model.int8.onnx").stat().st_size < 0.5 * (out / "model.onnx").stat().st_size
    kept = json.loads((out / "export.json").read_text(encoding="utf-8"))
    assert kept["checks"][0]["max_difference"] == check.max_difference
    card = (out / "README.md").read_text(encoding="utf-8")
    head = YAML(typ="safe").load(card.split("---\n")[1])
    assert head["license"] == "mit"
    assert head["model-index"][0]["results"][0]["metrics"][0]["value"] == pytest.approx(check.after, abs=1e-6)
    assert kept["metrics"]["mauprc"] == check.after
    model = aurank.load(tiny_run / "best")
    (tmp_path / "photos").mkdir()
    for picture in write_pictures(tmp_path / "photos", (20, 16)):
        shutil.copyfile(picture, out / "photo.jpg")
        np.testing.assert_allclose(run_card(out, monkeypatch), model.encode([picture]), atol=1e-4, err_msg=picture.name)


@pytest.mark.slow
def test_a_file_is_measured_by_what_it_says_itself(tiny_run, few, tmp_path):
    pytest.importorskip("onnxscript")
    (check,) = export_model(f"aurank:{tiny_run / 'best'}", "onnx", tmp_path / "out", images=few)
    report = evaluate_model(f"onnx:{tmp_path / 'out' / 'model.onnx'}", few)
    assert report.mauprc == pytest.approx(check.before, abs=1e-6)
    assert evaluate_model(f"onnx:{tmp_path / 'out'}", few).mauprc == report.mauprc
    with pytest.raises(UserError, match=r"holds an earlier export; name another folder, or add --overwrite"):
        export_model(str(tiny_run / "best"), "hf", tmp_path / "out")
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds 'mine.txt', which is of no export; name another folder"):
        export_model(str(tiny_run / "best"), "hf", tmp_path / "out", overwrite=True)
    (tmp_path / "out" / "mine.txt").unlink()
    export_model(str(tiny_run / "best"), "hf", tmp_path / "out", images=few, overwrite=True)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"README.md", "config.json", "export.json", "model.safetensors", "preprocessing.json"}


def test_an_export_that_differs_is_refused_and_nothing_is_left(tiny_run, few, tmp_path, monkeypatch):
    module = importlib.import_module("aurank.commands.export")
    write = module.write_folder

    def altered(encoder: Any, *further: Any) -> None:
        with torch.no_grad():
            encoder.head.bias += 0.01
        write(encoder, *further)
        with torch.no_grad():
            encoder.head.bias -= 0.01

    monkeypatch.setattr(module, "write_folder", altered)
    with pytest.raises(AurankError, match=r"is not the same: model\.safetensors: max difference .*e-0"):
        export_model(str(tiny_run / "best"), "hf", tmp_path / "out", images=few)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("to", "out", "named"),
    [
        ("coreml", "out", "--to 'coreml': expected one of onnx, hf, timm"),
        ("hf", "out", "--int8 goes with --to onnx, not with --to hf"),
        ("onnx", "out", r"--to onnx needs onnxscript, .*: pip install 'aurank\[export\]'"),
    ],
)
def test_impossible_wishes_are_refused_before_anything_is_read(to, out, named, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match=named):
        export_model("nowhere/best", to, tmp_path / out, int8=True)


def test_a_folder_that_an_export_would_harm_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"--out \. is the folder that you are in; name one to make"):
        export_model("nowhere/best", "hf", ".")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/README.md").write_text("mine")
    with pytest.raises(UserError, match=r"--out mine holds no earlier export"):
        export_model("nowhere/best", "hf", "mine", overwrite=True)


@pytest.mark.parametrize(
    ("to", "model", "named"),
    [
        ("hf", {"pooling": "gem"}, r"model\.pooling=gem"),
        ("hf", {"head_layers": 2}, r"this model 2 \(model\.head_layers\)"),
        ("hf", {"backbone": "transformers:net"}, "timm has no transformers:net"),
        ("hf", {"backbone": "local-dir:net"}, "a folder of this machine"),
    ],
)
def test_what_a_format_cannot_hold_is_said_with_one_that_can(to, model, named):
    config = read_config(tiny_config())
    config = config.model_copy(update={"model": config.model.model_copy(update=model)})
    with pytest.raises(UserError, match=rf"--to {to}: .*{named}.*; export it as onnx"):
        _require_expressible(to, config)


def test_a_check_says_what_was_compared():
    check = ExportCheck("model.onnx", images=1234, max_difference=2e-7, before=0.51234, after=0.51236)
    assert str(check) == "model.onnx: max difference 2.0e-07 over 1,234 images; mauprc 0.5123 before, 0.5124 after"
    assert check.is_same
    assert not ExportCheck("model.onnx", 9, max_difference=2e-4).is_same
    assert not ExportCheck("model.onnx", 9, max_difference=float("inf")).is_same
    assert not ExportCheck("model.onnx", 9, max_difference=0.0, before=0.5, after=0.4999).is_same

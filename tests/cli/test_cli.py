"""The commands as typed: what they print, write and exit with."""

import json
from pathlib import Path

import numpy as np
import pytest
from testing.configs import read_yaml
from testing.runs import tiny_config
from testing.trees import write_tree

from aurank import __version__
from aurank.cli import drawing
from aurank.config import shipped_configs


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("configs") / "tiny.yaml"
    path.write_text(json.dumps(tiny_config()), encoding="utf-8")
    return path


@pytest.mark.slow
def test_train_evaluate_and_embed_from_the_command_line(aurank, config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "runs" / "tiny"  # by default
    output, _ = aurank.done("train", config, "train.steps=3")
    assert "mauprc" in output
    assert "add --resume" in aurank.refused("train", config, "train.steps=3")
    metrics = json.loads((out / "report.json").read_text(encoding="utf-8"))["metrics"]

    output, _ = aurank.done("evaluate", "--model", f"aurank:{out}/best", "--out", tmp_path / "measured")
    report = json.loads((tmp_path / "measured" / "report.json").read_text(encoding="utf-8"))
    assert report["metrics"] == metrics
    assert (report["num_queries"], report["num_lone_queries"]) == (899, 0)
    kept = (out / "report.json").read_bytes()
    assert "holds a training run" in aurank.refused("evaluate", "--model", f"aurank:{out}/best", "--out", out)
    assert (out / "report.json").read_bytes() == kept

    output, _ = aurank.done("embed", "--model", f"aurank:{out}/best", "--out", tmp_path / "test.npz")
    with np.load(tmp_path / "test.npz") as saved:
        assert set(saved) >= {"embeddings", "labels", "ids", "paths"}
        np.save(tmp_path / "rows.npy", saved["embeddings"])
        np.save(tmp_path / "labels.npy", saved["labels"])
    for source in (["embeddings:" + str(tmp_path / "test.npz")],
                   ["embeddings:" + str(tmp_path / "rows.npy"), "--labels", tmp_path / "labels.npy"]):  # fmt: skip
        command = ("evaluate", "--model", *source, "--out", tmp_path / "again", "--recall-at", "1,5", "--overwrite")
        aurank.done(*command)
        again = json.loads((tmp_path / "again" / "report.json").read_text(encoding="utf-8"))["metrics"]
        assert again["mauprc"] == metrics["mauprc"]
        assert "recall@5" in again


@pytest.mark.slow
def test_images_left_out_are_counted_and_named_in_what_is_printed(aurank, tiny_run, place):
    common = ["--model", f"aurank:{tiny_run}/best", "--data", "folder:photos"]
    common += ["data.odd_classes=keep", "data.on_error=skip", "data.workers=2", "data.cache=0"]
    output, _ = aurank.done("evaluate", *common, "--out", "measured")
    assert "skipped" not in output
    for name in ("a/0", "a/1", "b/5", "b/7"):
        (place / "photos" / f"{name}.png").write_bytes(b"no image")
    output, _ = aurank.done("evaluate", *common, "--out", "measured")
    said = "skipped, unreadable: 4 of 8 images (a/0.png; a/1.png; b/5.png, and 1 more)\n"
    assert said in output
    assert "4 queries; 4 gallery rows" in output
    output, complaint = aurank.done("embed", *common, "--out", "rows.npz")
    assert said in complaint
    assert "4 embeddings of 8 dimensions" in output


@pytest.mark.slow
def test_dry_run_prints_sizes_and_writes_nothing(aurank, config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output, _ = aurank.done("train", config, "--dry-run")
    assert all(word in output for word in ("train", "validation", "test", "parameters", "GiB", "loss"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("default:rho=5 ", "default:sampler.name=")
def test_warnings_of_aurank_are_notices(aurank, config):
    loss = "loss={name: isogclr, params: {rho: 5, temperature: 0.3}}"
    _, said = aurank.done("train", config, "sampler.name=shuffled", loss, "--dry-run")
    begun = ["sampler.name=shuffled leaves out the", "rho=5 is not below log(15) = 2.71, t"]
    assert [line[:36] for line in said.splitlines()] == begun


def test_config_prints_what_a_run_would_use(aurank, config):
    output, _ = aurank.done("config", config, "optim.lr=0.5")
    assert read_yaml(output)["optim"]["lr"] == 0.5
    code, output, complaint = aurank("config", config, "optim.lrr=0.5", "loss.params.tua1=3")
    assert code == 2
    assert output == ""
    assert "optim.lrr" in complaint
    assert "did you mean" in complaint
    assert "loss.params.tua1" in complaint


def test_shipped_configurations_are_listed_and_copied_without_their_results(aurank, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output, _ = aurank.done("ls")
    assert all(name in output for name in shipped_configs())
    names = {line.split()[0] for line in aurank("ls", "SOPRC")[1].splitlines() if "/" in line.split()[0]}
    assert "digits/soprc" in names
    assert len(names) < len(shipped_configs())
    for name, path in shipped_configs().items():
        assert aurank("cp", name, "mine.yaml")[0] == 0
        text, shipped = Path("mine.yaml").read_text(encoding="utf-8"), path.read_text(encoding="utf-8")
        head = [line for line in text.splitlines() if line.startswith("#")]
        assert head[0] == shipped.splitlines()[0]
        assert head[-1] == f"# Command:  aurank train mine.yaml   (copied from {name})"
        assert not any(line.startswith(("# Result", "# To beat", "# Hardware", "# Chosen")) for line in head)
        assert read_yaml(text) == read_yaml(shipped)
        Path("mine.yaml").unlink()


def test_what_has_no_labels_is_examined_without_and_told_where_to_be_measured(aurank, config, tmp_path):
    write_tree(tmp_path / "photos", [f"{number}.png" for number in range(4)], height=20, width=20)
    overrides = ["data.train_labels=image", "data.views=2", "sampler={name: shuffled, batch: 4}"]
    code, output, _ = aurank("doctor", config, "data.name=unlabelled", f"data.root={tmp_path / 'photos'}", *overrides)
    assert (code, output) == (0, "photos: 4 images, 4 train images\n  nothing wrong was found\n")

    model = ("--model", "timm:test_resnet,pretrained=false", "--data", f"unlabelled:{tmp_path / 'photos'}")
    for command in ("embed", "evaluate", "probe"):
        complaint = aurank.refused(command, *model, "--out", tmp_path / "x.npz")
        assert "photos has no images in split 'test'; splits with images: train" in complaint
    assert aurank("embed", *model, "--out", tmp_path / "x.npz", "--split", "train")[0] == 0
    complaint = aurank.refused("evaluate", *model, "--out", tmp_path / "measured", "--split", "train")
    assert "no two of the 4 images of photos have one label: measuring needs images with labels" in complaint


def test_the_version_is_told(aurank):
    assert aurank("--version") == (0, f"aurank {__version__}\n", "")


@pytest.mark.slow
def test_a_configuration_named_by_data_says_how_it_is_measured(aurank, place, monkeypatch):
    monkeypatch.chdir(place)
    section = {"name": "folder", "params": {"path": "photos"}, "root": ".", "odd_classes": "keep"}
    Path("mine.yaml").write_text(json.dumps(tiny_config() | {"data": section, "evaluate": {"recall_at": [1, 3]}}))
    command = ("evaluate", "--model", "timm:test_resnet,pretrained=false", "--data", "mine.yaml", "--no-report")
    for out, given, cuts in (("a", (), {"1", "3"}), ("b", ("--recall-at", "2"), {"2"})):
        aurank.done(*command, "data.odd_classes=keep", "--out", out, *given)
        metrics = json.loads(Path(out, "report.json").read_text(encoding="utf-8"))["metrics"]
        assert {name.partition("@")[2] for name in metrics if name.startswith("recall@")} == cuts


def test_lines_of_progress_tell_the_time_left(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(drawing.time, "monotonic", lambda: now[0])
    with drawing.draw_training() as listen:
        for step in (100, 200, 300):  # a run that was resumed at step 100
            listen("step", {"step": step, "steps": 1000, "loss": 0.5, "lr": 0.1, "images_per_second": 9})
            now[0] += 60
        listen("testing", {"images": 9})  # train.early_stopping ended it
        for done in (3, 6):
            now[0] += 60
            listen("measuring", {"stage": "embedding", "done": done, "total": 9})
    with drawing.draw_stages("reading") as draw:
        for done in (10, 50, 5, 25):  # the second time from the beginning
            draw("resampling", done, 100)
            now[0] += 80
    first, second, third, testing, measuring, embedding, last, _, again = capsys.readouterr().err.splitlines()
    assert first.startswith("step 100 of 1000: loss 0.5000")
    assert "left" not in first
    assert second.endswith("images/s, 0:08:00 left")
    assert third.endswith("0:07:00 left")
    assert (testing, embedding) == ("measuring 9 test images", "embedding: 6 of 9, 0:01:00 left")
    assert measuring.startswith("embedding: 3 of 9")
    assert last == "resampling: 50 of 100, 0:01:40 left"
    assert again == "resampling: 25 of 100, 0:05:00 left"

"""Training and measuring on pictures of two shapes each: what the loss is given, how batches and splits follow."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from testing.processes import ended, start
from testing.runs import records, write_config
from testing.shapes import draw_shapes, shapes_config

import aurank
from aurank.commands import evaluate_model, probe_model, write_first_configuration
from aurank.commands.evaluate import mine_model
from aurank.data import READERS, Manifest
from aurank.embedding import ImageSelection
from aurank.errors import UserError
from aurank.evaluation.report import Report
from aurank.training import read_config
from aurank.training.build import build_splits
from aurank.training.dry_run import rehearse
from aurank.training.trainer import Trainer


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shapes")
    draw_shapes(root)
    return root


def tags_of(manifest: Manifest) -> list[str]:
    return sorted({tag for name in manifest.classes for tag in name.split("|")})


def test_a_loss_is_given_the_labels_of_each_row(shapes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = read_config(shapes_config(shapes, "any", steps=2))
    trainer, given = Trainer(config, build_splits(config)), list[Any]()
    monkeypatch.setattr(trainer.loss, "forward", lambda rows, labels, *_, **__: given.append(labels) or rows.sum())
    rows = trainer.sampler.epoch(0)[0]
    trainer.forward(trainer.train_data.__getitems__(rows.tolist()))
    train = trainer.splits.train
    assert given[0].dtype == torch.bool
    names = [{tags_of(train)[tag] for tag in np.flatnonzero(row)} for row in given[0].numpy()]
    assert names == [{*train.classes[train.labels[row]].split("|")} for row in rows]


def test_a_rehearsal_and_a_run_measure_by_any_common_label(shapes: Path, tmp_path: Path) -> None:
    config = shapes_config(shapes, "jaccard", steps=2)
    config["evaluate"] = {"recall_at": [1], "positives": "any"}
    assert rehearse(read_config(config)).images == {"train": 600, "test": 300}
    report = aurank.train(read_config(config), tmp_path / "run").report
    manifest = READERS["table"](shapes, file="sets.csv", separator="|").split("test")
    positives = manifest.class_sets[manifest.labels].astype(int)
    assert report.per_query["num_positives"].tolist() == ((positives @ positives.T > 0).sum(axis=1) - 1).tolist()
    again = evaluate_model(f"aurank:{tmp_path / 'run' / 'best'}", ImageSelection())
    assert again.metrics == report.metrics
    configured = write_config(tmp_path, {**config, "evaluate": {"positives": "equal"}})
    model = f"aurank:{tmp_path / 'run' / 'best'}"
    equal = evaluate_model(model, ImageSelection(str(configured)))
    assert equal.per_query["num_positives"].tolist() != report.per_query["num_positives"].tolist()
    assert evaluate_model(model, ImageSelection(), positives="equal").metrics["map@r"] == equal.metrics["map@r"]
    assert any(note.endswith(" 8 labels") for note in equal.notes)
    assert not any("graded" in note for note in report.notes)
    with pytest.raises(UserError, match="a probe predicts one label a row, and rows here have several"):
        probe_model(model, out=tmp_path / "probe")
    loaded = Report.load(tmp_path / "run" / "report.json")
    assert loaded.class_table()["label"].tolist() == tags_of(manifest)
    table = (tmp_path / "run" / "per_class.csv").read_text().splitlines()
    assert {line.split(",")[0] for line in table[1:]} == {*tags_of(manifest)}
    assert "<td>ring</td>" in (tmp_path / "run" / "report.html").read_text()


def test_what_needs_one_label_a_row_is_refused_in_a_line(shapes: Path, tmp_path: Path) -> None:
    def refused(said: str, **changes: Any) -> None:
        config = {**shapes_config(shapes, "any", steps=2), **changes}
        with pytest.raises(UserError, match=said) as caught:
            aurank.train(read_config(config), tmp_path / "run")
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "run").exists()

    sampler = {"name": "hard_negative", "batch": 64, "params": {"per_class": 8}}
    refused("draws images of one label each", sampler=sampler)
    refused("loss soprc takes one label for each image, and sets has several: v and", loss={"name": "soprc"})
    data = {**shapes_config(shapes, "any")["data"], "validation_fraction": 0.1}
    refused("evaluate.positives: got 2.0, expected 'any', 'equal' or 'jaccard' or", evaluate={"positives": 2.0})
    refused("1 training classes without a common label, too few", data=data)
    manifest = READERS["table"](shapes, file="sets.csv", separator="|")
    with pytest.raises(UserError, match=r"are mined by classes .* in one class"):
        mine_model("timm:test_vit,pretrained=false", ImageSelection(manifest, split="test"))


def test_labels_are_counted_one_by_one(shapes: Path, tmp_path: Path) -> None:
    manifest = READERS["table"](shapes, file="sets.csv", separator="|")
    assert str(manifest).startswith("Manifest('sets': 900 images of 8 labels;")
    sets = manifest.class_sets.astype(int)
    alike = (sets @ sets.T > 0) @ manifest.class_counts
    assert manifest.num_alike(manifest.class_counts).tolist() == alike.tolist()
    by_label = manifest.by_label()
    assert by_label.classes == (*tags_of(manifest),)
    assert by_label.class_counts.tolist() == sets[manifest.labels].sum(axis=0).tolist()
    text = write_first_configuration(shapes / "sets.csv", tmp_path / "mine.yaml", ["data.params.separator='|'"])
    assert text.startswith("sets: 900 images of 8 labels, 201 to 240 each")
    written = (tmp_path / "mine.yaml").read_text()
    assert "8 labels, 4 images of each" in written
    test = manifest.split("test")
    matches = np.median(test.num_alike(test.class_counts)) - 1
    assert f"that an image can find: {matches:.0f} (median)" in written


@pytest.mark.slow
def test_two_processes_and_the_gradient_cache_train_as_one(shapes: Path, tmp_path: Path) -> None:
    config = {**shapes_config(shapes, "jaccard", steps=3), "memory": {"size": 100, "start_at": 1}}
    config["model"] = {"backbone": "test_vit", "pretrained": False, "dim": 8, "params": {"img_size": 32}}
    config["train"]["log_every"] = 1
    file = write_config(tmp_path, config)
    assert [code for code, _, _ in ended(start(file, tmp_path / "two", 2))] == [0, 0]
    aurank.train(read_config(config), tmp_path / "one")
    config["train"]["micro_batch"] = 16
    aurank.train(read_config(config), tmp_path / "cached")
    losses, reports = {}, {}
    for name in ("one", "two", "cached"):
        losses[name] = [record["loss"] for record in records(tmp_path / name, "train")]
        reports[name] = Report.load(tmp_path / name / "report.json")
    for name in ("two", "cached"):
        assert losses[name] == pytest.approx(losses["one"], rel=1e-4)
        assert reports[name].metrics == pytest.approx(reports["one"].metrics, abs=0.01)
        assert [*reports[name].tags] == [*reports["one"].tags]


@pytest.mark.slow
def test_sets_beat_single_labels(shapes: Path, tmp_path: Path) -> None:
    images, values = ImageSelection(READERS["table"](shapes, file="sets.csv", separator="|")), {}
    for positives in (None, "any"):
        out = tmp_path / str(positives)
        aurank.train(read_config(shapes_config(shapes, positives)), out)
        values[positives] = evaluate_model(f"aurank:{out / 'best'}", images).mauprc
    assert values["any"] > values[None] + 0.05  # 0.10 to 0.15 with three seeds

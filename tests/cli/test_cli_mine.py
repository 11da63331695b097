"""`aurank mine` as typed: a table and a page, which training and the doctor take."""

import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image
from testing.trees import write_image

from aurank.data import HardNegativeSampler
from aurank.data.checks.negatives import mined_neighbours, read_negatives, write_negatives
from aurank.errors import UserError

COLOURS = {"red": (220, 20, 20), "rose": (200, 60, 60), "blue": (20, 20, 220), "sky": (60, 60, 200)}
CONFIG: dict[str, Any] = {
    "data": {"name": "folder", "root": "photos", "image_size": 8, "validation_fraction": 0, "cache": "0"},
    "sampler": {"name": "hard_negative", "batch": 4, "params": {"per_class": 2}},
    "model": {"backbone": "test_resnet", "pretrained": False, "dim": 8},
    "loss": {"name": "smooth_ap"},
    "optim": {"lr": 1e-3},
    "train": {"steps": 2},
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Photos of four colours, two and two alike, as training images; one of the red ones is labelled blue."""
    rng = np.random.default_rng(0)
    rows, paths = [], [f"train/{name}/{number}.png" for name in COLOURS for number in range(6)]
    for path in paths:
        drawn = "red" if path == "train/blue/5.png" else path.split("/")[1]
        rows.append((np.array(COLOURS[drawn]) + rng.uniform(-9, 10, 3)).clip(0, 255))
        write_image(tmp_path / "photos" / path, rows[-1] + np.zeros((16, 16, 3)))
    for name in ("green", "grey", "brown"):
        for number in range(2):
            write_image(tmp_path / f"photos/test/{name}/{number}.png", Image.new("RGB", (16, 16), name))
    (tmp_path / "config.yaml").write_text(json.dumps(CONFIG), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    labels = np.repeat(np.arange(4), 6)
    np.savez("rows.npz", embeddings=np.array(rows, np.float32), labels=labels, paths=paths, classes=list(COLOURS))
    return tmp_path


def test_what_is_mined_is_written_looked_at_cleaned_and_trained_with(place, aurank):
    output, _ = aurank.done("mine", "--model", "embeddings:rows.npz", "--out", "mined")
    assert output.startswith("hard negatives of rows.npz: 24 images, 4 classes, 240 pairs\n")
    assert "images near another class: 1 (train/blue/5.png: labelled blue, looks like red)" in output
    assert "classes taken for each other: " in output
    table = pyarrow.parquet.read_table("mined/negatives.parquet").to_pylist()
    assert all(row["query"].split("/")[1] == row["query_label"] != row["negative_label"] for row in table)
    first = [row for row in table if row["query"] == "train/red/0.png"]
    assert [row["rank"] for row in first] == list(range(1, 11))
    assert all(row["margin"] == row["positive_score"] - row["score"] for row in table)
    assert all(row["worst_positive_score"] <= row["positive_score"] for row in table)
    assert {row["negative"] for row in table if row["is_suspect"]} == {"train/blue/5.png"}
    page = Path("mined/mine.html").read_text(encoding="utf-8")
    assert "<h1>Mining: hard negatives of rows.npz</h1>" in page
    assert "negatives.parquet has all pairs" in page
    assert "kinds of error" not in page
    assert "looks like red" in page

    pairs = ("--negatives", "mined/negatives.parquet")
    code, output, _ = aurank("doctor", "folder:photos", *pairs, "--fix", "suspects", "--out", "clean.csv")
    assert code == 1
    assert "warning: images near another class: 1 (train/blue/5.png" in output
    assert "--fix leaves out 1 of 30 rows (suspects 1)" in output
    assert "train/blue/5.png" not in Path("clean.csv").read_text(encoding="utf-8")

    aurank.done("train", "config.yaml", "sampler.params.negatives=mined/negatives.parquet", "--out", "run")
    assert (place / "run/best.safetensors").exists()


def test_images_are_embedded_and_shown_on_the_page_those_for_training_by_default(place, aurank):
    model = ("--model", "timm:test_vit,pretrained=false", "--data", "folder:photos", "--out", "mined")
    output, _ = aurank.done("mine", *model, "--per-query", "2")
    assert output.startswith("hard negatives of photos: 24 images, 4 classes, 48 pairs")
    assert Path("mined/mine.html").read_text(encoding="utf-8").count("data:image/png") > 1
    assert "6 images, 3 classes, 6 pairs" in aurank("mine", *model, "--split", "test", "--per-query", "1")[1]
    for split in ("test", "train"):  # without splits all images are taken
        code, output, complaint = aurank("mine", *model[:3], f"folder:photos/{split}", *model[4:], "--per-query", "1")
        assert (code, complaint) == (0, "")
    assert "24 images, 4 classes, 24 pairs" in output


def test_a_margin_leaves_out_negatives_that_are_easy(place, aurank):
    aurank("mine", "--model", "embeddings:rows.npz", "--out", "all")
    aurank("mine", "--model", "embeddings:rows.npz", "--out", "some", "--margin", "0.05")
    every, some = (read_negatives(Path(name, "negatives.parquet"))["margin"] for name in ("all", "some"))
    assert 0 < len(some) == int((every < 0.05).sum()) < len(every)


def test_batches_hold_the_classes_of_mined_pairs_without_suspect_ones_and_state_is_kept(place, aurank):
    aurank("mine", "--model", "embeddings:rows.npz", "--out", "mined", "--per-query", "3")
    names = [f"train/{name}/{number}.png" for name in sorted(COLOURS) for number in range(6)]
    labels = np.repeat(np.arange(4), 6)  # blue, red, rose, sky
    given = {"neighbours": len, "per_class": 3, "negatives": "mined/negatives.parquet"}
    sampler = HardNegativeSampler(labels, 6, paths=names, **given)  # type: ignore[arg-type]
    assert sampler.refresh_every is None
    epochs = [rows for epoch in range(4) for rows in sampler.epoch(epoch)]
    assert {tuple(np.unique(labels[rows]).tolist()) for rows in epochs} == {(0, 3), (1, 2)}
    other = HardNegativeSampler(labels, 6, neighbours=len, per_class=3)
    other.load_state_dict(sampler.state_dict())
    assert [rows.tolist() for rows in other.epoch(1)] == [rows.tolist() for rows in sampler.epoch(1)]
    table = read_negatives(Path("mined/negatives.parquet"))
    near = mined_neighbours(table, names)
    suspect = names.index("train/blue/5.png")
    assert suspect not in near
    assert (near[suspect] == -1).all()
    with pytest.raises(UserError, match=r"of other images, such as 'train/red/0.png'; this data has 'x'"):
        mined_neighbours(table, ["x", "y"])


def test_names_that_are_no_text_are_kept(tmp_path):
    paths = [os.fsdecode(b"\xff.png"), "=b.png"]
    table = {"query": paths, "negative": paths[::-1], "query_label": ["a", "ß"], "negative_label": ["ß", "a"]}
    write_negatives({**table, "margin": [0.5, 0.25], "is_suspect": [False, False]}, tmp_path / "pairs.parquet")
    again = read_negatives(tmp_path / "pairs.parquet")
    assert {name: list(again[name]) for name in table} == table
    assert mined_neighbours(again, paths).tolist() == [[1], [0]]


@pytest.mark.parametrize("name", ["no.parquet", "none.parquet"])
def test_training_names_the_table_that_it_cannot_read(name, place, aurank):
    Path("no.parquet").write_bytes(b"no")
    assert name in aurank.refused("train", "config.yaml", f"sampler.params.negatives={name}", "--out", "run")


@pytest.mark.parametrize("changes", [{"is_suspect": ["x", "y"]}, {"margin": ["a", "b"]}])
def test_a_table_of_other_columns_is_one_line(changes, tmp_path):
    table = {"query": ["a", "b"], "negative": ["b", "a"], "query_label": ["x", "y"], "negative_label": ["y", "x"]}
    write_negatives({**table, "margin": [0.5, 0.25], "is_suspect": [False, True], **changes}, tmp_path / "n.parquet")
    with pytest.raises(UserError, match=r"n\.parquet: cannot be read as a table of hard negatives"):
        read_negatives(tmp_path / "n.parquet")


def test_images_to_label_are_chosen_beside_labelled_ones(place, aurank):
    saved = dict(np.load("rows.npz"))
    red, blue = (np.flatnonzero(saved["labels"] == label)[:3] for label in (0, 2))
    labelled = {name: saved[name][[*red, *blue]] for name in ("embeddings", "labels", "paths")}
    np.savez("labelled.npz", **labelled, classes=saved["classes"])
    command = ("mine", "--model", "embeddings:rows.npz", "--select", "4", "--out", "chosen")
    output, _ = aurank.done(*command)
    assert output.startswith("4 of 24 images of rows.npz, diverse: no image is farther than 0.00")
    assert " from a chosen one; 0." in output
    assert output.endswith(f"written to {Path('chosen/selected.csv')}\n")
    table = list(csv.DictReader(Path("chosen/selected.csv").read_text("utf-8").splitlines()))
    assert [row["path"].split("/")[1] for row in table[:2]] == ["red", "blue"]
    assert table[0]["distance"] == ""  # the first is near none
    assert float(table[1]["distance"]) > float(table[3]["distance"]) > 0
    output, _ = aurank.done(*command, "--labelled", "labelled.npz", "--by", "uncertain")
    assert " uncertain: no image is farther than " in output
    table = list(csv.DictReader(Path("chosen/selected.csv").read_text("utf-8").splitlines()))
    assert {row["nearest"] for row in table} | {row["second"] for row in table} == {"red", "blue"}
    assert {row["path"].split("/")[1] for row in table} <= {"rose", "sky"}
    margins = [float(row["margin"]) for row in table]
    assert margins == sorted(margins)


def test_images_without_labels_are_chosen_and_what_lacks_labels_is_refused(place, aurank):
    model = ("--model", "timm:test_vit,pretrained=false", "--data", "unlabelled:photos", "--out", "chosen")
    output, _ = aurank.done("mine", *model, "--select", "5")
    assert output.startswith("5 of 30 images of photos, diverse: ")
    complaint = aurank.refused("mine", *model, "--select", "5", "--by", "uncertain")
    assert "--by uncertain needs --labelled FILE" in complaint
    assert "--labelled needs --select" in aurank.refused("mine", *model, "--labelled", "rows.npz")
    np.savez("wide.npz", embeddings=np.eye(4), labels=[0, 0, 1, 1])
    np.savez("zero.npz", embeddings=np.eye(3)[[0, 1, 1]] * [[1], [0], [1]], labels=[0, 0, 1])
    saved = ("mine", "--model", "embeddings:rows.npz", "--out", "chosen", "--select", "5", "--labelled")
    assert "--labelled has 4 numbers a row, the model 3" in aurank.refused(*saved, "wide.npz")
    assert "row 1 of the labelled embeddings is all zeros" in aurank.refused(*saved, "zero.npz")
    several = {"labels": [0, 1], "classes": ["red|blue", "red"], "multi_label": True}
    np.savez("several.npz", embeddings=np.eye(3)[:2], **several)
    assert "one label each" in aurank.refused(*saved, "several.npz", "--by", "uncertain")
    np.savez("named.npz", embeddings=np.eye(3)[[0, 0, 1, 1]], labels=["rose", "rose", "sky", "sky"])
    aurank.done(*saved, "named.npz", "--by", "uncertain")
    table = list(csv.DictReader(Path("chosen/selected.csv").read_text("utf-8").splitlines()))
    assert {row["nearest"] for row in table} | {row["second"] for row in table} == {"rose", "sky"}

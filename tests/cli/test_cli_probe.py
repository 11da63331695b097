"""`aurank probe` as typed."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from aurank.evaluation import few_shot, probes

PROBE = ("probe", "--model", "timm:test_resnet,pretrained=false")


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


@pytest.mark.slow
def test_a_probe_within_the_test_split_reads_what_evaluate_embedded(place, aurank):
    assert aurank("embed", *PROBE[1:], "--data", "folder:photos", "--out", "x.npz")[0] == 0
    output, said = aurank.done(*PROBE, "--data", "folder:photos", "--out", "probed", "--seeds", "4,5")
    assert said.startswith("read 8 embeddings from the cache")
    assert sorted(path.name for path in (place / "probed").iterdir()) == ["knn.json", "linear_probe.json"]
    for name in ("knn", "linear_probe"):
        result = read(place / "probed" / f"{name}.json")
        assert f"{name}\ntop1  {result['metrics']['top1']:.4f} ±" in output
        assert (result["protocol"], result["design"], result["seeds"]) == (name, "halves", [4, 5])
        assert (result["num_train"], result["num_test"], result["num_classes"]) == (4, 4, 2)
        assert result["notes"][-1].startswith("model timm:test_resnet,pretrained=false; 8 images of photos, manifest ")


def test_a_probe_that_is_stopped_keeps_and_has_printed_what_was_done(place, aurank, monkeypatch):
    monkeypatch.setattr(probes, "_strength_search", Mock(side_effect=KeyboardInterrupt))
    code, output, _ = aurank(*PROBE, "--data", "folder:photos", "--out", "probed")
    assert code == 130
    assert output.startswith("knn\ntop1")
    assert [path.name for path in (place / "probed").iterdir()] == ["knn.json"]


def split_photos(place: Path, train: str, test: str) -> None:
    """The photos once more, those of each class divided between the splits as said: "ab" puts both classes there."""
    for split, classes, rows in (("train", train, (0, 1, 2)), ("test", test, (3,))):
        for name in classes:
            for row in rows:
                file = place / "split" / split / name / f"{row}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                photo = place / "photos" / ("b" if name == "b" else "a") / f"{row + 4 * (name == 'b')}.png"
                file.write_bytes(photo.read_bytes())


@pytest.mark.slow
def test_a_probe_trains_on_the_training_split_where_it_has_the_classes(place, aurank):
    split_photos(place, train="abc", test="bc")
    command = (*PROBE, "--data", "folder:split", "--out", "probed")
    assert aurank(*command, "--k", "3", "--seeds", "1")[0] == 0
    for name in ("knn", "linear_probe"):
        result = read(place / "probed" / f"{name}.json")
        counts = [result[f"num_{what}"] for what in ("train", "test", "classes")]
        assert (result["design"], counts) == ("closed set", [9, 2, 3])
    assert result["seeds"] == [1]


@pytest.mark.slow
def test_the_classes_of_both_splits_are_told_apart_by_name(place, aurank):
    split_photos(place, train="cb", test="bd")
    saved = {}
    for split, rows in (("train", 6), ("test", 2)):
        command = ("embed", "--model", PROBE[2], "--data", "folder:split", "--split", split, "--out", f"{split}.npz")
        assert aurank(*command)[0] == 0
        with np.load(place / f"{split}.npz") as content:
            saved[split] = content["embeddings"]
            assert len(content["labels"]) == rows
    aurank.done(*PROBE, "--data", "folder:split", "--out", "probed", "--k", 1, "--protocol", "knn")
    result = read(place / "probed" / "knn.json")
    # Photos by folder name: b, c in training, b, d in the test split; d has no training row.
    assert [note.split(":")[0] for note in result["notes"]] == ["left out", "training", "test"]
    assert result["num_test"] == 1
    unit = {split: rows / np.linalg.norm(rows, axis=1, keepdims=True) for split, rows in saved.items()}
    assert result["metrics"]["1nn"] == float(np.argmax(unit["train"] @ unit["test"][0]) < 3)


def test_saved_embeddings_are_probed_by_halves(place, aurank):
    rows = np.random.default_rng(0).normal(size=(30, 4))
    np.save(place / "rows.npy", rows)
    np.save(place / "labels.npy", np.arange(30) % 3)
    command = ("probe", "--model", "embeddings:rows.npy", "--labels", "labels.npy", "--out", "x")
    output, _ = aurank.done(*command, "--protocol", "knn")
    assert output.startswith("knn\ntop1")
    assert read(place / "x" / "knn.json")["seeds"] == [0, 1, 2]
    np.savez(place / "halves.npz", embeddings=rows, labels=np.arange(30) / 2)
    assert "float64: give integers" in aurank.refused("probe", "--model", "embeddings:halves.npz", "--out", "y")
    assert "holds no array 'labels'" in aurank.refused("probe", "--model", "embeddings:rows.npy", "--out", "y")


def test_the_drawers_of_omniglot_are_told_by_the_names_of_files(place, aurank):
    labels, alphabets, drawers = np.repeat(np.arange(40), 3), np.repeat([4, 5], 60), np.tile([1, 2, 3], 40)
    rows = np.random.default_rng(0).normal(size=(120, 4)) + np.random.default_rng(1).normal(size=(40, 4))[labels]
    paths = [f"a/{label}/{label:04}_{drawer:02}.png" for label, drawer in zip(labels, drawers, strict=True)]
    np.savez(place / "drawn.npz", embeddings=rows, labels=labels, super_labels=alphabets, paths=paths)
    within, any_of_them = "omniglot-20way-1shot-within", "omniglot-20way-1shot-unstructured"
    command = ("probe", "--model", "embeddings:drawn.npz", "--out", "x", "--episodes", 50, "--seeds", "1,2")
    output, _ = aurank.done(*command, "--protocol", within, "--protocol", any_of_them, "--protocol", "knn")
    for name, columns in ((within, {"within": alphabets, "groups": drawers}), (any_of_them, {})):
        expected = few_shot(rows, labels, **columns, episodes=50, seeds=[1, 2])
        result = read(place / "x" / f"{name}.json")
        assert (result["protocol"], result["per_seed"]) == (name, expected.per_seed)
        low, high = expected.intervals["accuracy"]
        assert f"{name}\naccuracy  {expected.metrics['accuracy']:.4f} [{low:.4f}, {high:.4f}]" in output
    assert output.count("\nknn\n") == 1


def test_of_classes_of_two_images_the_neighbours_alone_are_probed(place, aurank):
    rows = np.random.default_rng(0).normal(size=(12, 4))
    np.savez(place / "pairs.npz", embeddings=rows, labels=np.arange(12) // 2)
    command = ("probe", "--model", "embeddings:pairs.npz", "--out", "x")
    _, said = aurank.done(*command)
    assert said.startswith("no linear probe: every class has a single training row")
    assert [path.name for path in (place / "x").iterdir()] == ["knn.json"]
    aurank.refused(*command[:-1], "y", "--protocol", "linear_probe")
    assert not (place / "y").exists()

"""What `evaluate` and `train` ask back about: images listed twice, and classes that are none."""

from pathlib import Path

import pytest
from testing.galleries import PIXELS as MODEL
from testing.galleries import write_pixel_model
from testing.runs import tiny_config
from testing.trees import write_tree

import aurank
from aurank.commands import RunOptions, embed_model, evaluate_model, examine_data
from aurank.embedding import ImageSelection
from aurank.errors import UserError
from aurank.training import read_config
from aurank.training.build import build_splits


def photos(root: Path, *classes: str) -> ImageSelection:
    write_tree(root, [f"{name}/{row}.png" for name in classes for row in range(4)], height=2, width=2)
    return ImageSelection(f"folder:{root}")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_pixel_model(tmp_path, monkeypatch)
    return tmp_path


RUNNING = RunOptions(allow_code=True)
KEPT = ["data.odd_classes=keep"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("classes", "words"),
    [
        (("Gallery/a", "Query/a", "Query/b"), "classes that look like splits, such as 'Gallery/a' and 'Query/a'"),
        (("cropped", "whole"), "two classes, 'cropped' and 'whole'"),
        (("images/test/a", "images/test/b", "images/train/c", "images/train/d"), "classes that look like splits, such"),
    ],
)
def test_classes_that_are_none_are_asked_about(place: Path, classes: tuple[str, ...], words: str) -> None:
    images = photos(place / "photos", *classes)
    count = 4 * len(classes)
    with pytest.raises(UserError, match=f"{count} queries, {count} gallery rows.*{words}.*data.odd_classes=keep"):
        evaluate_model(MODEL, images, running=RUNNING)
    report = evaluate_model(MODEL, ImageSelection(images.data, overrides=KEPT), running=RUNNING)
    assert report.notes[-1].endswith(f", {len(classes)} classes")
    assert report.num_queries == count
    data = {"name": "folder", "params": {"test_fraction": 0.5}, "root": str(place / "photos"), "channels": 3}
    with pytest.raises(UserError, match=f"has {words}.*data.odd_classes=keep"):
        aurank.train(tiny_config(data=data), place / "run")
    assert not (place / "run").exists()
    kept = read_config(tiny_config(data={**data, "odd_classes": "keep", "validation_fraction": 0.0}))
    assert len(build_splits(kept).manifest.classes) == len(classes)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [("bus", "steam_train", "plane"), ("train", "card_index", "bus", "plane", "ship")])
def test_some_classes_named_like_splits_may_be_classes(place: Path, classes: tuple[str, ...]) -> None:
    report = evaluate_model(MODEL, photos(place / "photos", *classes), running=RUNNING)
    assert report.num_queries == 4 * len(classes)


def test_training_without_labels_is_asked_about_the_classes_that_are_measured_only(place: Path) -> None:
    photos(place, "train", "test", "a", "b")
    rows = [f"{name}/{row}.png,{name},train" for name in ("train", "test") for row in range(4)]
    (place / "rows.csv").write_text("\n".join(["path,label,split", *rows]) + "\n")
    data = {"name": "table", "params": {"file": "rows.csv"}, "root": str(place), "validation_fraction": 0.0}
    written = tiny_config(data={**data, "train_labels": "image", "views": 2})
    config = read_config({**written, "sampler": {"name": "shuffled", "batch": 4}})
    assert build_splits(config).test is None
    measured = [f"{name}/{row}.png,{name},test" for name in "ab" for row in range(4)]
    (place / "rows.csv").write_text("\n".join(["path,label,split", *rows, *measured]) + "\n")
    with pytest.raises(UserError, match="has two classes, 'a' and 'b'"):
        build_splits(config)


def test_doctor_warns_of_classes_that_are_none(place: Path) -> None:
    photos(place / "photos", "images/test/a", "images/train/a", "images/train/b")
    for overrides, warned in (([], True), (KEPT, False)):
        report = examine_data(f"folder:{place / 'photos'}", overrides)
        told = "warning: classes that look like splits, so the folder may be a level too high: 3 (images/test/a; "
        assert (told in str(report)) is warned


def doubled(place: Path) -> str:
    """A table that lists each of twelve photos twice."""
    photos(place, "a", "b", "c")
    rows = [f"{name}/{row}.png,{name},test" for name in "abc" for row in range(4)] * 2
    (place / "rows.csv").write_text("path,label,split\n" + "\n".join(rows) + "\n")
    return "table:rows.csv"


@pytest.mark.slow
def test_images_listed_twice_are_measured_only_if_asked_for(place: Path) -> None:
    data = doubled(place)
    message = "lists image 'a/0.png' twice, and 11 more; .*data.repeated=keep"
    with pytest.raises(UserError, match=message):
        evaluate_model(MODEL, ImageSelection(data), running=RUNNING)
    kept = ImageSelection(data, overrides=["data.repeated=keep"])
    assert evaluate_model(MODEL, kept, running=RUNNING).metrics["recall@1"] == 1
    embed_model(MODEL, ImageSelection(data), running=RUNNING).save(place / "rows.npz")
    with pytest.raises(UserError, match=r"rows.npz holds image 'a/0.png' twice; .*data.repeated=keep"):
        evaluate_model("embeddings:rows.npz")
    saved = evaluate_model("embeddings:rows.npz", ImageSelection(overrides=["data.repeated=keep"]))
    assert saved.metrics["recall@1"] == 1
    assert saved.notes[-1] == "model embeddings:rows.npz; 3 classes"

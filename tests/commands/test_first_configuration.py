"""`aurank init`: whatever the folder, what it writes is a configuration that trains to the end."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from testing.trees import pixels, write_tree

import aurank
from aurank.commands import init, write_first_configuration
from aurank.config import Config
from aurank.data import READERS
from aurank.errors import UserError
from aurank.training import read_config

SMALL = ["model.backbone=test_efficientnet", "model.pretrained=false", "train.steps=3", "optim.warmup_steps=1"]


def write(paths: list[str], height: int = 40, width: int = 40) -> None:
    write_tree(Path(), paths, height=height, width=width)


def first(images: str = "photos") -> Config:
    """The configuration that is written, with a network from random weights and few steps."""
    write_first_configuration(images)
    read_config("mine.yaml")
    return read_config("mine.yaml", SMALL)


def images_of(classes: int, each: int, folder: str = "photos", form: str = "class{}/{}.png") -> list[str]:
    return [f"{folder}/{form.format(label, number)}" for label in range(classes) for number in range(each)]


def write_table() -> None:
    rows = [f"photos/{n // 2:04d}_c{n % 2}.png,{n // 2},{'train' if n < 14 else 'test'},c{n % 2}\n" for n in range(24)]
    Path("photos.csv").write_text("path,label,split,group\n" + "".join(rows), encoding="utf-8")


FOLDERS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "classes": (images_of(12, 6), {"per_class": 4, "name": "folder", "validation_fraction": 0.2}),
    "six classes": (images_of(6, 4), {"per_class": 4, "batch": 12, "validation_fraction": 0.0}),
    "splits": (images_of(5, 4, "photos/train") + images_of(4, 3, "photos/test", "t{}/{}.png"), {"params": {}}),
    "flat": (images_of(1, 12, form="{}-{}.png"), {"name": "unlabelled", "views": 2, "batch": 12}),
    "one of each": (images_of(12, 1), {"name": "unlabelled"}),
    "cameras": (images_of(12, 2, form="{:04d}_c{}.png"), {"name": "table", "image_size": (64, 32)}),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FOLDERS)
def test_what_is_written_trains_to_the_end(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths, expected = FOLDERS[kind]
    write(paths, height=80 if kind == "cameras" else 40)
    write_table()
    config = first("photos.csv" if kind == "cameras" else "photos")
    chosen = {**vars(config.sampler), **config.sampler.params, **vars(config.data)}
    chosen["recall_at"] = config.evaluate.recall_at
    assert {name: chosen[name] for name in expected} == expected
    result = aurank.train(config, tmp_path / "run")
    assert (result.report is None) == (config.data.name == "unlabelled")
    notes = result.report.notes if result.report is not None else []
    assert any("cameras" in note for note in notes) == (kind == "cameras")


def test_overrides_are_written_in_place_of_what_would_be_chosen_and_read_by(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    classes = ("train", "test", "query", "a", "b", "c")
    write([f"photos/{label}/{number}.png" for label in classes for number in range(4)])
    with pytest.raises(UserError, match=r"data\.odd_classes=keep"):
        write_first_configuration("photos")
    given = ["data.odd_classes=keep", "data.params.test_fraction=0.5", "train.steps=77", "model.weights=/x y"]
    text = write_first_configuration("photos", overrides=given)
    assert "train 12, test 12" in text
    assert "--model 'timm:tf_efficientnet_lite0,weights=/x y,input_size=32'" in text
    assert "aurank compare before after --data mine.yaml" in text
    assert "\n  weights: /x y\nloss: {name: sup_con" in Path("mine.yaml").read_text("utf-8")
    config = read_config("mine.yaml")
    assert (config.data.odd_classes, config.data.params, config.train.steps) == ("keep", {"test_fraction": 0.5}, 77)
    assert "# quick without a GPU" in (written := Path("mine.yaml").read_text("utf-8"))
    with pytest.raises(UserError, match=r"'optim\.lrr=1': optim\.lrr: unknown key"):
        write_first_configuration("photos", overrides=[*given, "optim.lrr=1"], overwrite=True)
    assert Path("mine.yaml").read_text("utf-8") == written
    write_first_configuration("photos", overrides=["data.odd_classes=keep"], overwrite=True)
    assert read_config("mine.yaml").train.steps == 120


def test_headers_alone_are_read_and_photos_are_measured_upright(tmp_path):
    exif = Image.Exif()
    exif[274] = 6  # turned by a quarter
    for number in range(4):
        Image.fromarray(pixels(0, 300, 400)).save(tmp_path / f"{number}.jpg", exif=exif)
        file = tmp_path / f"{number}.jpg"
        file.write_bytes(file.read_bytes()[:2000])  # the pixels are gone
    (tmp_path / "broken.jpg").write_bytes(b"no photo")
    sizes, unreadable = init.measure_sizes(READERS["unlabelled"](tmp_path))
    assert np.unique(sizes, axis=0).tolist() == [[400, 300]]
    assert unreadable == ["broken.jpg"]


@pytest.mark.parametrize(
    ("shapes", "size", "resize"),
    [
        ([(480, 640), (500, 500)], 128, "crop"),
        ([(400, 200)], [192, 96], "squash"),
        ([(60, 150)], [32, 96], "squash"),
        ([(200, 500), (500, 200)], 128, "squash"),
        ([(240, 300), (300, 210)], 128, "squash"),
        ([(20, 20)], 32, "crop"),
    ],
)
def test_shapes_choose_size_and_resize(shapes, size, resize):
    assert init._shape(np.array(shapes * 5))[:2] == (size, resize)


@pytest.mark.parametrize(
    ("paths", "says"),
    [
        (images_of(5, 3), "5 classes.* takes 6"),
        (images_of(8, 3, "photos/train"), "no test images"),
        (images_of(8, 2, "photos/train") + images_of(8, 1, "photos/test"), "no test image has a second"),
        ([*images_of(7, 2), "photos/lone.png"], "lone.png.*in no class folder"),
    ],
)
def test_a_folder_that_no_configuration_fits_is_refused_and_nothing_is_written(paths, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(paths)
    with pytest.raises(UserError, match=says):
        write_first_configuration("photos")
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def test_a_file_that_is_there_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(images_of(12, 2))
    Path("mine.yaml").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match=r"mine\.yaml"):
        write_first_configuration("photos")
    assert Path("mine.yaml").read_text(encoding="utf-8") == "mine"

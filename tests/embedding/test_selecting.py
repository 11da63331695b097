"""Which images a split is, for the data that a model was trained on and for others."""

from pathlib import Path

import pytest
from testing.runs import tiny_config
from testing.trees import write_tree

from aurank.commands import RunOptions, embed_model, evaluate_model
from aurank.embedding import ImageSelection
from aurank.embedding.image_selection import read_whole
from aurank.embedding.select_images import describe_overlap, hold_out, select
from aurank.training import read_config

pytestmark = pytest.mark.slow


@pytest.fixture
def model(tiny_run: Path) -> str:
    """A model that was trained on eight of the ten digits; two were held out."""
    return f"aurank:{tiny_run}/best"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Ten classes of two training images each, of which a configuration would hold two out."""
    names = [f"train/{row // 2}/{row}.png" for row in range(20)]
    return write_tree(tmp_path / "photos", names, height=16, width=16)


def embedded(model: str, images: ImageSelection) -> tuple[int, str]:
    """How many rows were embedded, and what was said."""
    said: list[str] = []
    return len(embed_model(model, images, running=RunOptions(say=said.append)).ids), "\n".join(said)


def test_all_of_a_split_of_other_data_is_embedded(model: str, photos: Path) -> None:
    assert embedded(model, ImageSelection(f"folder:{photos}", "train")) == (20, "")
    others = [f"data.root={photos}", "data.name=folder", "data.params={}"]
    assert embedded(model, ImageSelection(split="train", overrides=others)) == (20, "")
    rows, _ = embedded(model, ImageSelection(f"folder:{photos}", "train", overrides=["data.validation_fraction=0.2"]))
    assert rows == 16


def test_splits_without_data_are_those_of_the_training_run(model: str) -> None:
    sizes = {split: embedded(model, ImageSelection(split=split))[0] for split in ("train", "val", None)}
    assert sizes == {"train": 718, "val": 180, None: 899}
    assert embedded(model, ImageSelection("digits:", "train"))[0] == 898
    notes = [evaluate_model(model, ImageSelection("digits:", split)).notes for split in ("test", "all")]
    overlap = "898 of these 1,797 images are of the model's own training or validation split, so this is no test"
    assert [[note for note in some if note.startswith(overlap)] != [] for some in notes] == [False, True]


def test_images_of_training_are_told_where_the_data_are_split_otherwise(photos: Path) -> None:
    root, params = str(photos / "train"), {"test_fraction": 0.5}
    config = read_config(tiny_config(data={"name": "folder", "root": root, "params": params}))
    whole = hold_out(read_whole(config.data), config.data, seed=config.seed)
    checkpoint = {"config": config.model_dump(mode="json"), "manifest": whole.sha256}
    images = ImageSelection(f"folder:{root}")
    (told,) = describe_overlap(images, select(images, checkpoint))
    assert told.startswith("10 of these 20 images are of the model's own training or validation split")
    (photos / "train" / "0" / "0.png").unlink()  # other data: nothing is known of them
    assert describe_overlap(images, select(images, checkpoint)) == []

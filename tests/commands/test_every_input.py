"""Every form of a data set through training, measuring and an index: the digits are those of the folder."""

from pathlib import Path

import pytest
from testing.inputs import INPUTS, Input, Vision, items, write_photos

import aurank
from aurank.commands import build_index, evaluate_model
from aurank.data import Manifest, from_dataset
from aurank.data.decode import decode
from aurank.embedding import ImageSelection
from aurank.embedding.image_selection import located, read_whole
from aurank.embedding.settings import read_data
from aurank.errors import UserError

CONFIG = {
    "data": {"image_size": 8, "validation_fraction": 0, "cache": "0"},
    "sampler": {"batch": 8, "params": {"per_class": 2}},
    "model": {"backbone": "test_resnet", "pretrained": False, "dim": 8},
    "loss": {"name": "smooth_ap"},
    "optim": {"lr": 1e-3},
    "train": {"steps": 2},
    "evaluate": {"recall_at": [1]},
}


def manifest_of(data: Input) -> Manifest:
    return data if isinstance(data, Manifest) else read_whole(read_data(data).data)


def trained(data: Input, out: Path, *overrides: str) -> aurank.TrainResult:
    if isinstance(data, Manifest):
        return aurank.train(CONFIG, out, dataset=data, overrides=overrides)
    return aurank.train({**CONFIG, "data": {**CONFIG["data"], **located(data)}}, out, overrides=overrides)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("inputs") / "photos")


@pytest.fixture(scope="module")
def of_folder(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> float:
    return trained(f"folder:{photos}", tmp_path_factory.mktemp("run") / "run").report.mauprc


@pytest.mark.parametrize("form", INPUTS)
def test_every_input_has_the_images_labels_and_splits_of_the_folder(form, photos, tmp_path):
    read, folder = manifest_of(INPUTS[form](photos, tmp_path)), manifest_of(f"folder:{photos}")

    def content(manifest: Manifest) -> set[tuple[str, str, bytes]]:
        images = [decode(manifest.source, path, 3).tobytes() for path in manifest.paths]
        classes = [manifest.classes[label] for label in manifest.labels.tolist()]
        return {*zip(classes, manifest.splits.tolist(), images, strict=True)}

    assert content(read) == content(folder)
    assert len(read) == 40
    assert all(map(read.source.exists, read.paths))
    assert not read.source.exists("none.png")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["ImageFolder", "datasets", "parquet", "webdataset", "pandas"])
def test_inputs_of_every_kind_are_trained_on_measured_and_indexed(form, photos, of_folder, tmp_path):
    data, run = INPUTS[form](photos, tmp_path), tmp_path / "run"
    assert trained(data, run, "data.workers=1").report.mauprc == of_folder
    model = f"aurank:{run}/best"
    assert evaluate_model(model, ImageSelection(data)).mauprc == of_folder
    index = build_index(model, ImageSelection(data), out=tmp_path / "index")
    assert len(index) == 40
    # Where the bytes are named by a path, pages show them later.
    assert (index.sources[0] is not None) == (form not in ("ImageFolder", "datasets"))


@pytest.fixture
def vision() -> Manifest:
    return from_dataset({split: Vision(split) for split in ("train", "test")}, name="vision")


@pytest.mark.slow
def test_a_run_on_a_given_data_set_goes_on_with_the_same_images_only(vision, tmp_path):
    whole, run = trained(vision, tmp_path / "whole", "train.steps=4"), tmp_path / "run"
    trained(vision, run)
    again = aurank.train(CONFIG, run, resume=True, dataset=vision, overrides=["train.steps=4"])
    assert again.report.metrics == whole.report.metrics
    others = {"train": items("train"), "test": [(255 - image, label) for image, label in items("test")]}
    with pytest.raises(UserError, match="was trained on other images of vision"):
        aurank.train(CONFIG, run, resume=True, dataset=from_dataset(others, name="vision"), overrides=["train.steps=4"])
    with pytest.raises(UserError, match="given from Python: give it again"):
        evaluate_model(f"aurank:{run}/best")

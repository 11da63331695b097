"""Any model on any images: which images are chosen, what is refused before work begins, what the report says."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from testing.galleries import PIXELS as MODEL
from testing.galleries import write_pixel_model, write_split_photos
from testing.trees import sop_tree, write_image

from aurank.commands import RunOptions, embed_model, evaluate_model, run_options
from aurank.embedding import ImageSelection
from aurank.errors import UserError


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model that returns the pixels, and photos 0 … 7 in two classes, alike within a class."""
    write_pixel_model(tmp_path, monkeypatch)
    for row in range(8):
        colour = (200 - row, 10, 10) if row < 4 else (10, 200 - row, 10)
        write_image(tmp_path / "photos" / "ab"[row // 4] / f"{row}.png", Image.new("RGB", (2, 2), colour))
    return tmp_path


PHOTOS = ImageSelection("folder:photos", overrides=["data.odd_classes=keep"])  # of two classes


def products(root: Path) -> ImageSelection:
    return ImageSelection(protocol="sop", root=sop_tree(root).parent, overrides=["data.params.complete=false"])


def running(**changes: Any) -> RunOptions:
    return RunOptions(allow_code=True, **changes)


@pytest.mark.slow
def test_a_folder_is_embedded_and_measured(place):
    stages: list[tuple[str, int, int]] = []
    report = evaluate_model(MODEL, PHOTOS, running=running(batch=3, listener=lambda *stage: stages.append(stage)))
    assert report.mauprc == 1
    assert (report.num_queries, report.num_gallery) == (8, 8)
    assert [stage for stage in stages if stage[0] == "embedding"] == [("embedding", n, 8) for n in (3, 6, 8)]
    stage, done, total = stages[-1]
    assert stage == "ranking"
    assert done == total
    assert report.notes[-1].startswith(f"model {MODEL}; 8 images of photos, manifest ")


@pytest.mark.slow
def test_a_protocol_is_named_in_the_report_with_its_checksum(place):
    images = products(place)
    report = evaluate_model(MODEL, images, running=running())
    assert report.protocol["name"] == "sop"
    assert report.num_queries == 5
    assert sorted(report.recall) == [1]  # of 1, 10, 100, 1000; a query has 4 others
    embed_model(MODEL, images, running=running()).save(place / "rows.npz")
    again = evaluate_model(f"embeddings:{place}/rows.npz", images)
    assert again.protocol == report.protocol
    assert again.metrics == report.metrics


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"paths": np.array([f"cat{row}.jpg" for row in range(5)])}, "10 images are in one of both alone"),
        ({"labels": np.array([0, 0, 1, 1, 1])}, "their classes, or who is query"),
        ({"is_query": np.arange(5) < 2}, "protocol sop takes every image as query and gallery"),
        ({"groups": np.arange(5)}, "protocol sop takes every image as query and gallery"),
    ],
)
def test_a_protocols_name_is_given_to_no_other_embeddings(place, change, message):
    images = products(place)
    replace(embed_model(MODEL, images, running=running()), **change).save(place / "rows.npz")
    with pytest.raises(UserError, match=message) as caught:
        evaluate_model("embeddings:rows.npz", images)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_options_that_cannot_be_met_are_told_before_anything_is_embedded(place, monkeypatch):
    monkeypatch.setattr(run_options, "embed", lambda *_, **__: pytest.fail("embedded"))
    for options, message in (
        ({"ties": "none"}, "ties must be one of"),
        ({"recall_at": (0,)}, "recall_at"),
        ({"backend": "abacus"}, "backend"),
        ({"max_memory": "1 pound"}, "max_memory"),
        ({"index": "Rubbish"}, "could not parse"),
        ({"index": "IVF4,Flat; nprob=2"}, "could not set parameter nprob"),
    ):
        with pytest.raises(UserError, match=message):
            evaluate_model(MODEL, PHOTOS, running=running(), **options)
    with pytest.raises(UserError, match="protocol sop sets recall_at itself"):
        evaluate_model(MODEL, products(place), running=running(), recall_at=(5,))


@pytest.mark.slow
def test_of_saved_embeddings_of_several_splits_the_test_rows_are_measured(tmp_path):
    rows, labels = np.random.default_rng(0).normal(size=(12, 3)), np.arange(12) % 3
    splits = np.array(["train"] * 6 + ["test"] * 6)
    np.savez(tmp_path / "all.npz", embeddings=rows, labels=labels, splits=splits)
    np.savez(tmp_path / "test.npz", embeddings=rows[6:], labels=labels[6:])
    model = f"embeddings:{tmp_path}/all.npz"
    report = evaluate_model(model)
    assert report.metrics == evaluate_model(f"embeddings:{tmp_path}/test.npz").metrics
    assert any("split test: 6 of 12 rows" in note for note in report.notes)
    assert evaluate_model(model, ImageSelection(split="all")).num_queries == 12
    assert evaluate_model(model, ImageSelection(split="train")).num_queries == 6
    with pytest.raises(UserError, match="has no embeddings of split 'val', only of train, test"):
        evaluate_model(model, ImageSelection(split="val"))
    with pytest.raises(UserError, match=r"--split test has no use with .* holds no array 'splits'"):
        evaluate_model(f"embeddings:{tmp_path}/test.npz", ImageSelection(split="test"))
    centred = evaluate_model(model, postprocess="center", fit_on=tmp_path / "all.npz")
    np.save(tmp_path / "train.npy", rows[:6])
    assert centred.metrics == evaluate_model(model, postprocess="center", fit_on=tmp_path / "train.npy").metrics


@pytest.mark.slow
def test_post_processing_of_a_model_is_fitted_on_the_training_images_alone(tmp_path):
    photos = write_split_photos(tmp_path / "photos", classes=6)
    images = ImageSelection(f"folder:{photos}", split="test")
    report = evaluate_model("timm:test_vit,pretrained=false", images, postprocess="center")
    assert (report.postprocessing["fitted_rows"], report.num_gallery) == (12, 12)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"postprocess": "whiten"}, "has to be fitted on training rows: .* or --fit-on FILE"),
        ({"fit_on": Path("rows.npz")}, "--fit-on rows.npz goes with --postprocess"),
        ({"postprocess": "query_expansion", "fit_on": Path("rows.npz")}, "no step of 'query_expansion' has anything"),
        ({"postprocess": "missing.safetensors"}, "missing.safetensors: cannot be read"),
    ],
)
def test_post_processing_that_cannot_be_had_is_refused(given, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("rows.npz", embeddings=np.random.default_rng(0).normal(size=(40, 6)), labels=np.arange(40) % 8)
    with pytest.raises(UserError, match=said):
        evaluate_model("embeddings:rows.npz", **given)

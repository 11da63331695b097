import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from testing.trees import pixels, write_tree

from aurank.commands import build_index, evaluate_model, examine_data, examine_embeddings
from aurank.embedding import ImageSelection
from aurank.errors import UserError
from aurank.reporting.doctor_page import doctor_page

MODEL = "timm:test_vit,pretrained=false"
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    names = [f"class{place % 3}/{place}.png" for place in range(12)]
    return write_tree(tmp_path / "photos", names, height=40, width=40)


def test_a_data_section_alone_is_enough_to_look_at_measure_and_index_images(photos: Path, tmp_path: Path) -> None:
    file = tmp_path / "data.yaml"
    file.write_text(f"data: {{name: folder, root: {photos}, params: {{test_fraction: 0.7}}}}\n", encoding="utf-8")
    report = examine_data(str(file), ["data.validation_fraction=0"])
    assert (report.counts["train images"], report.counts["test images"], report.severity) == (4, 8, 0)
    assert examine_data(str(file), ["data.validation_fraction=0"], model=MODEL).counts == report.counts
    images = ImageSelection(str(file), overrides=["data.odd_classes=keep"])
    assert evaluate_model(MODEL, images).num_gallery == 8
    assert len(build_index(MODEL, ImageSelection(str(file)), out=tmp_path / "index")) == 12
    with pytest.raises(UserError, match=r"train: unknown key"):
        examine_data(str(file), ["train.steps=3"])
    loss = "loss.params of sup_con: temperature must be a number in (0, inf), got -1"
    with pytest.raises(UserError, match=re.escape(loss)):
        examine_data("digits/soprc", ["loss.name=sup_con", "loss.params={temperature: -1}"])
    file.write_text("data: {name: folder}\ntrain: {steps: 3}\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"loss: missing"):
        examine_data(str(file))


def save(file: Path, rows: np.ndarray, **columns: np.ndarray) -> Path:
    np.savez(file, embeddings=rows, **({"labels": np.arange(len(rows)) // 5} | columns))
    return file


def clean_rows() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(60, 32)).astype(np.float32)


def test_sound_embeddings_have_no_findings(tmp_path: Path) -> None:
    report = examine_embeddings(save(tmp_path / "rows.npz", clean_rows()))
    assert (report.findings, report.severity) == ((), 0)
    assert report.counts == {"embeddings": 60, "dimensions": 32, "classes": 12}


def test_faults_of_embeddings_are_found_together(tmp_path: Path) -> None:
    rows = clean_rows()
    rows[:, 9] = 0.5
    rows[3, 5], rows[7], rows[11] = np.nan, 0, rows[10]
    rows[20] *= 100
    query = np.arange(60) < 11
    report = examine_embeddings(save(tmp_path / "rows.npz", rows, is_query=query, is_gallery=~query))
    assert report.errors == ["embeddings with NaN or infinity: 1 (row 3)", "embeddings of zeros: 1 (row 7)"]
    assert report.warnings == [
        "embeddings of another length: 1 (row 20)",
        "dimensions that hardly vary: 1 (dimension 9, from 0)",
        "nearly equal embeddings in query and gallery: 1 (row 10 = row 11)",
    ]
    assert report.severity == 2
    assert all(finding.consequence and finding.remedy for finding in report.findings)


def test_collapse_is_an_error(tmp_path: Path) -> None:
    report = examine_embeddings(save(tmp_path / "rows.npz", clean_rows() * 0.01 + 1))
    assert [error.split(":")[0] for error in report.errors] == ["collapsed embeddings"]


def test_every_row_broken_is_reported_not_raised(tmp_path: Path) -> None:
    report = examine_embeddings(save(tmp_path / "rows.npz", np.full((5, 3), np.nan)))
    assert len(report.errors) == 1


def test_a_model_is_examined_on_all_readable_images(photos: Path) -> None:
    (photos / "class0/broken.png").write_bytes(b"no image")
    report = examine_data(f"folder:{photos}", ["data.odd_classes=keep"], model=MODEL)
    # The untrained network sees all images alike.
    assert [error.split(":")[0] for error in report.errors] == ["unreadable images", "collapsed embeddings"]
    assert len(report.kept(["unreadable"])) == 12
    assert not any("broken" in path for path in report.kept(["unreadable"]).paths)


def test_the_page_shows_pictures_and_escapes_names(photos: Path) -> None:
    Image.fromarray(pixels(0, 40, 40)).save(photos / "class0" / f"{EVIL.replace('/', '')}.png")
    report = examine_data(f"folder:{photos}", ["data.odd_classes=keep"])
    page = doctor_page(report, command=EVIL)
    assert report.severity == 1
    assert "same image more than once in a split (1)" in page
    assert page.count("data:image/") == 2
    assert EVIL not in page
    assert "http://" not in page

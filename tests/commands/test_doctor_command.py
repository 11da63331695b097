"""`examine_data` and `examine_embeddings`, their page, and the findings on the page of an evaluation."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from testing.cases import Elements
from testing.trees import pixels, write_tree

from aurank.commands import RunOptions, build_index, evaluate_model, examine_data, examine_embeddings
from aurank.commands.report import Measurement, evaluation_page, examine_measured
from aurank.embedding import ImageSelection
from aurank.embedding.embedded import Embedded
from aurank.errors import UserError
from aurank.evaluation import Report
from aurank.reporting.doctor_page import doctor_page

MODEL = "timm:test_vit,pretrained=false"
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    names = [f"class{place % 3}/{place}.png" for place in range(12)]
    return write_tree(tmp_path / "photos", names, height=40, width=40)


def test_a_data_section_alone_is_enough_to_look_at_measure_and_index_images(photos, tmp_path):
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


def test_faults_of_embeddings_are_found_together(tmp_path):
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


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (clean_rows(), []),
        (clean_rows() * 0.01 + 1, ["collapsed embeddings"]),
        (np.full((5, 3), np.nan), ["embeddings with NaN or infinity"]),  # and nothing is left to look at
    ],
)
def test_sound_collapsed_and_broken_embeddings_are_told_apart(rows, found, tmp_path):
    report = examine_embeddings(save(tmp_path / "rows.npz", rows))
    assert [error.split(":")[0] for error in report.errors] == found
    assert (report.findings == ()) == (found == [])
    assert report.severity == 2 * len(found)
    assert report.counts == {"embeddings": len(rows), "dimensions": rows.shape[1], "classes": -(-len(rows) // 5)}


def test_a_model_is_examined_on_all_readable_images(photos):
    (photos / "class0/broken.png").write_bytes(b"no image")
    report = examine_data(f"folder:{photos}", ["data.odd_classes=keep"], model=MODEL)
    # The untrained network sees all images alike.
    assert [error.split(":")[0] for error in report.errors] == ["unreadable images", "collapsed embeddings"]
    assert len(report.kept(["unreadable"])) == 12
    assert not any("broken" in path for path in report.kept(["unreadable"]).paths)


def test_the_page_shows_pictures_and_escapes_names(photos):
    Image.fromarray(pixels(0, 40, 40)).save(photos / "class0" / f"{EVIL.replace('/', '')}.png")
    report = examine_data(f"folder:{photos}", ["data.odd_classes=keep"])
    page = doctor_page(report, command=EVIL)
    assert report.severity == 1
    assert "same image more than once in a split (1)" in page
    assert page.count("data:image/") == 2
    assert EVIL not in page
    assert "http://" not in page


def embedded(rows: np.ndarray, labels: np.ndarray, is_query: np.ndarray | None = None) -> Embedded:
    count = len(rows)
    query = np.ones(count, bool) if is_query is None else is_query
    gallery = np.ones(count, bool) if is_query is None else ~is_query
    flags = {"is_query": query, "is_gallery": gallery, "groups": np.full(count, -1)}
    paths = np.array([f"{row}.png" for row in range(count)])
    return Embedded(rows.astype(np.float32), labels, np.arange(count), paths, **flags)


def faulty() -> tuple[np.ndarray, np.ndarray]:
    """Returns rows of which 40 is called another class, 9 copies 8, and dimension 5 is silent."""
    draw = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 20)
    rows = draw.normal(size=(6, 16))[labels] * 2 + draw.normal(size=(120, 16))
    rows[9], rows[:, 5] = rows[8] * 3, 0.5
    labels[40] = 0
    return rows, labels


@pytest.mark.parametrize("distance", ["cosine", "dot", "euclidean"])
def test_an_evaluation_finds_what_the_doctor_finds(tmp_path, distance):
    rows, labels = faulty()
    np.savez(tmp_path / "rows.npz", embeddings=rows, labels=labels, paths=embedded(rows, labels).paths)
    by_doctor = examine_embeddings(tmp_path / "rows.npz").findings
    given = embedded(rows, labels)
    found = examine_measured(given.evaluate(neighbours=10, distance=distance), Measurement("mine", given))["findings"]
    assert {finding.check for finding in found} >= {"doubtful labels", "nearly equal embeddings"}
    assert [str(one) for one in found] == [str(one) for one in by_doctor]


def test_copies_are_found_between_query_and_gallery_by_the_rows_of_both():
    rows, labels = faulty()
    query = np.arange(120) % 2 == 1
    given = embedded(rows, labels, query)
    found = examine_measured(given.evaluate(neighbours=5), Measurement("mine", given))["findings"]
    across = next(one for one in found if one.check == "nearly equal embeddings in query and gallery")
    assert (across.rows, across.examples) == (((8, 9),), ("8.png = 9.png",))
    assert next(one for one in found if one.check == "doubtful labels").rows == ((40,),)


def test_what_is_not_looked_at_is_said(monkeypatch):
    rows, labels = faulty()
    given = embedded(rows, labels)
    examined = examine_measured(given.evaluate(), Measurement("mine", given))
    assert {one.check for one in examined["findings"]} == {"dimensions that hardly vary", "doubtful labels"}
    assert "Without lists of neighbours" in " ".join(examined["left_out"])
    monkeypatch.setattr("aurank.commands.report.MOST_WORK", 1000)
    examined = examine_measured(given.evaluate(neighbours=3), Measurement("mine", given))
    assert "doubtful labels" not in {one.check for one in examined["findings"]}
    assert "too many rows and classes" in " ".join(examined["left_out"])


def evaluated(folder: Path, neighbours: int) -> tuple[Report, Measurement]:
    """Measure eight photos of four classes, and what else is in their folders."""
    write_tree(folder, [f"{'abcd'[row // 2]}/{row}.png" for row in range(8)], height=32, width=32)
    made: dict[str, Any] = {}
    images = ImageSelection(f"folder:{folder}", overrides=["data.on_error=skip", "data.odd_classes=keep"])
    running = RunOptions(finished=made.__setitem__)
    report = evaluate_model("timm:test_resnet,pretrained=false", images, running=running, neighbours=neighbours)
    return report, made["measured"]


@pytest.mark.slow
def test_images_that_were_skipped_are_a_finding(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "broken.png").write_bytes(b"no image")
    report, measured = evaluated(tmp_path, neighbours=3)
    found = examine_measured(report, measured)["findings"][0]
    assert (found.check, found.count, found.examples) == ("unreadable images", 1, ("a/broken.png",))
    assert measured.images.sha256[:16] in Elements(evaluation_page(report, measured)).text


def test_the_first_queries_of_a_list_are_explained_with_their_first_wrong_and_right_image(tmp_path):
    report, measured = evaluated(tmp_path, neighbours=7)
    page = evaluation_page(report, measured)
    worst = page[page.index("Worst queries") : page.index("Median queries")]
    assert worst.count('<li class="alike"><img') == 4
    assert worst.count("explained in full") == 4
    assert 'class="alike"' not in evaluation_page(report, replace(measured, network=None))

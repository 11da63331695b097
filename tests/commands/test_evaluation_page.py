"""The page of an evaluation holds what the doctor finds by what the evaluation had at hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from testing.cases import Elements
from testing.trees import write_tree

from aurank.commands import RunOptions, evaluate_model, examine_embeddings
from aurank.commands.report import Measurement, evaluation_page, examine_measured
from aurank.embedding import ImageSelection
from aurank.embedding.embedded import Embedded
from aurank.evaluation import Report


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
def test_an_evaluation_finds_what_the_doctor_finds(tmp_path: Path, distance: str) -> None:
    rows, labels = faulty()
    np.savez(tmp_path / "rows.npz", embeddings=rows, labels=labels, paths=embedded(rows, labels).paths)
    by_doctor = examine_embeddings(tmp_path / "rows.npz").findings
    given = embedded(rows, labels)
    report = given.evaluate(neighbours=10, distance=distance)
    found = examine_measured(report, Measurement("mine", given))["findings"]
    assert {finding.check for finding in found} >= {"doubtful labels", "nearly equal embeddings"}
    assert [str(one) for one in found] == [str(one) for one in by_doctor]


def test_copies_are_found_between_query_and_gallery_by_the_rows_of_both() -> None:
    rows, labels = faulty()
    query = np.arange(120) % 2 == 1
    given = embedded(rows, labels, query)
    found = examine_measured(given.evaluate(neighbours=5), Measurement("mine", given))["findings"]
    across = next(one for one in found if one.check == "nearly equal embeddings in query and gallery")
    assert (across.rows, across.examples) == (((8, 9),), ("8.png = 9.png",))
    assert next(one for one in found if one.check == "doubtful labels").rows == ((40,),)


def test_what_is_not_looked_at_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_images_that_were_skipped_are_a_finding(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "broken.png").write_bytes(b"no image")
    report, measured = evaluated(tmp_path, neighbours=3)
    found = examine_measured(report, measured)["findings"][0]
    assert (found.check, found.count, found.examples) == ("unreadable images", 1, ("a/broken.png",))
    assert measured.images.sha256[:16] in Elements(evaluation_page(report, measured)).text


def test_the_first_queries_of_a_list_are_explained_with_their_first_wrong_and_right_image(tmp_path: Path) -> None:
    report, measured = evaluated(tmp_path, neighbours=7)
    page = evaluation_page(report, measured)
    worst = page[page.index("Worst queries") : page.index("Median queries")]
    assert worst.count('<li class="alike"><img') == 4
    assert worst.count("explained in full") == 4
    assert 'class="alike"' not in evaluation_page(report, replace(measured, network=None))

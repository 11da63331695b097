"""What a report says, keeps and gives back."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from testing.listing import ranks_of, read

from aurank.errors import AurankError, UserError
from aurank.evaluation import Report, evaluate
from aurank.evaluation.bootstrap import Resampling
from aurank.evaluation.evaluate import build_report

LISTS = [read(text) for text in ("+ - -", "- +- +", "- - +", "- -", "+ + + +")]
LABELS = np.array([2**53 + 1, -3, -3, 2**53 + 1])  # of the four queries that have a positive
PROTOCOL = {"name": "sop", "checksum": "12ab"}


def full() -> Report:
    """A report with everything that one may hold."""
    report = build_report(
        ranks_of(LISTS),
        labels=LABELS,
        metrics=["mauprc", "recall@1", "macro:mauprc", "ndcg@2"],
        notes=["gallery drawn with seed 3"],
        distance="dot",
        resampling=Resampling(200, 7, 0.9),
    )
    return replace(report, protocol=PROTOCOL)


def test_a_report_prints_its_metrics_intervals_ties_counts_protocol_and_notes() -> None:
    report = full()
    low, high = report.intervals.bounds["recall@1"]
    lines = str(report).splitlines()
    assert lines[0].startswith(f"mauprc        {report.mauprc:.4f}  [")
    assert lines[0].endswith("(threshold; equal scores allow 0.6875 to 0.7083)")
    assert lines[1] == f"recall@1      0.5000  [{low:.4f}, {high:.4f}]"
    assert [line.split()[0] for line in lines[:4]] == list(report.metrics)
    assert lines[4:] == [
        "5 queries, 1 of them skipped: no positive; 4 gallery rows",
        f"a random order has mauprc {report.random_order:.4f}",
        "protocol sop (12ab)",
        "distance dot",
        "[90 % interval]: 200 resamples of 2 classes, seed 7; of so few it comes out too narrow",
        "gallery drawn with seed 3",
    ]


def test_a_saved_report_loads_digit_for_digit(tmp_path: Path) -> None:
    report = full()
    path = tmp_path / "new" / "report.json"
    report.save(path)
    report.save(str(path))
    assert [entry.name for entry in path.parent.iterdir()] == ["report.json"]
    loaded = Report.load(path)
    assert loaded.per_query.keys() == report.per_query.keys()
    for name, values in report.per_query.items():
        assert loaded.per_query[name].dtype == values.dtype
        assert loaded.per_query[name].tolist() == values.tolist()
    assert np.array_equal(loaded.curve.recall, report.curve.recall)
    assert np.array_equal(loaded.curve.precision, report.curve.precision)
    for name in set(vars(report)) - {"per_query", "curve"}:
        assert getattr(loaded, name) == getattr(report, name), name
    assert str(loaded) == str(report)
    content = json.loads(path.read_text(encoding="utf-8"))
    assert (content["metrics"]["mauprc"], content["num_lone_queries"]) == (report.mauprc, 1)
    assert content["intervals"]["bounds"].keys() == report.metrics.keys()


def _damaged(report: dict[str, Any], place: str, value: Any) -> str:
    *way, last = place.split(".")
    entry = report = copy.deepcopy(report)
    for name in way:
        entry = entry[name]
    entry[last] = value
    return json.dumps(report)


def test_what_is_no_report_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    full().save(path)
    report = json.loads(path.read_text())
    wrong = {
        "[1, 2]": "is not a report",
        '{"format": "aurank.report", "version": 1}': "is not a report",
        "[" * 100_000: "cannot be read as a report",
        "\u0000\u0001": "cannot be read as a report",
    }
    for place, value, message in [
        ("metrics", {}, "metrics"),
        ("metrics.mauprc", {}, r"metrics\.mauprc"),
        ("intervals.bounds", {"mauprc": [1]}, r"intervals\.bounds\.mauprc"),
        ("curve", {"recall": [1.0]}, "precision"),
        ("num_queries", 2.5, "num_queries"),
        ("num_lone_queries", 5, "per_query"),
        ("per_query", {"ap": [0.5]}, "query"),
        ("per_query.ap", [[1], 2, 3, 4], r"per_query\.ap"),
        ("per_query.ap", [1, 2, 3], r"per_query\.ap"),
        ("per_query.label", [1, "b", 3, 4], r"per_query\.label"),
    ]:
        wrong[_damaged(report, place, value)] = message
    for content, message in wrong.items():
        path.write_text(content, encoding="utf-8")
        with pytest.raises(UserError, match=message):
            Report.load(path)


def test_a_table_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "per_query.parquet"
    full().write_per_query(path)
    before = path.read_bytes()

    def full_disk(table: object, file: object) -> None:
        file.write(b"PAR1")  # type: ignore[attr-defined]
        raise OSError("no space left on device")

    monkeypatch.setattr(pyarrow.parquet, "write_table", full_disk)
    with pytest.raises(AurankError, match="no space left"):
        full().write_per_query(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["per_query.parquet"]


def test_the_class_table_holds_the_means_of_each_class() -> None:
    table = full().class_table()
    assert list(table) == ["label", "num_queries", "mauprc", "recall@1", "ndcg@2"]
    assert table["label"].tolist() == [-3, 2**53 + 1]
    assert table["num_queries"].tolist() == [2, 2]
    assert table["mauprc"] == pytest.approx([((1 / 3 + 2 / 4) / 2 + 1 / 3) / 2, 1.0])
    assert table["recall@1"].tolist() == [0.0, 1.0]


def test_a_single_class_costs_the_intervals_and_not_the_report() -> None:
    report = build_report(ranks_of(LISTS), labels=np.full(4, 8), resampling=Resampling())
    assert report.intervals is None
    assert report.notes == [
        "no intervals: an interval needs queries of 2 classes or more to draw from; there is 1 class"
    ]


def test_queries_are_named_and_what_made_a_report_is_kept(tmp_path: Path) -> None:
    report = full().named(np.array(["a.png", "b.png", "c.png", "é.png", "\udcff.png"]), np.array(list("xyzxx")))
    assert list(report.per_query)[:4] == ["query", "label", "path", "class"]
    assert report.per_query["path"].tolist() == ["a.png", "b.png", "c.png", "\udcff.png"]  # the fourth is alone
    assert set(report.versions) >= {"python", "aurank", "numpy", "torch"}
    made = report.made_by("aurank evaluate --out x")
    made.save(tmp_path / "report.json")
    loaded = Report.load(tmp_path / "report.json")
    assert (loaded.command, loaded.date, loaded.versions) == (made.command, made.date, made.versions)
    assert loaded.date.endswith("+00:00")
    assert loaded.per_query["path"].tolist() == report.per_query["path"].tolist()
    assert list(loaded.class_table()) == ["label", "num_queries", *report._metric_names]
    made.write_per_query(tmp_path / "rows.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "rows.parquet")
    assert table["path"].to_pylist() == ["a.png", "b.png", "c.png", "\\udcff.png"]
    report.save(tmp_path / "plain.json")
    assert not {"date", "command"} & set(json.loads((tmp_path / "plain.json").read_text(encoding="utf-8")))


def test_neighbours_and_the_gallery_are_saved_and_read_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.array([f"class {row // 4}" for row in range(20)])
    paths = np.array([f"{row}.png" for row in range(20)])
    report = evaluate(rng.standard_normal((20, 4)), labels, neighbours=30, recall_at=(1,)).named(paths, labels)
    assert report.neighbours.row.shape == (20, 20)  # the own row is missing: a list of 19, then -1
    report.save(tmp_path / "report.json")
    again = Report.load(tmp_path / "report.json")
    for name in ("row", "score", "is_positive"):
        np.testing.assert_array_equal(getattr(again.neighbours, name), getattr(report.neighbours, name))
    assert again.gallery["path"].tolist() == paths.tolist()
    assert again.gallery["label"].tolist() == labels.tolist()
    report.write_per_query(tmp_path / "per_query.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "per_query.parquet").to_pydict()
    assert table["neighbour_rows"][3] == report.neighbours.row[3, :19].tolist()
    assert table["neighbour_paths"][3] == [f"{row}.png" for row in table["neighbour_rows"][3]]

"""The files of an evaluation: whole, together, and as the report says."""

import csv
import io
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pyarrow.parquet
import pytest

from aurank.errors import AurankError, UserError
from aurank.evaluation import Report, evaluate
from aurank.reporting import tables, write_results
from aurank.reporting.results import require_free
from aurank.reporting.tables import class_csv, to_markdown


@pytest.fixture(scope="module")
def report() -> Report:
    rows = np.random.default_rng(0).standard_normal((30, 4)).astype(np.float32)
    return evaluate(rows, np.arange(30) % 3)


def test_all_files_are_written_and_agree_with_the_report(report, tmp_path):
    out = tmp_path / "new" / "folder"
    out.mkdir(parents=True)
    (out / "report.html").write_text("", encoding="utf-8")  # of an earlier report
    write_results(report, out)
    assert sorted(path.name for path in out.iterdir()) == ["per_class.csv", "per_query.parquet", "report.json"]
    assert Report.load(out / "report.json").metrics == report.metrics
    table = pyarrow.parquet.read_table(out / "per_query.parquet")
    assert np.array_equal(table["ap"].to_numpy(), report.per_query["ap"])


def test_a_failure_leaves_the_earlier_files_as_they_were(report, tmp_path, monkeypatch):
    write_results(report, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(tables, "class_csv", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(AurankError, match=r"cannot write to .*No space left on device"):
        write_results(replace(report, metrics={**report.metrics, "mauprc": 0.0}), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with pytest.raises(AurankError, match="No space left on device"):
        write_results(report, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_training_runs_report_is_not_overwritten(report, tmp_path):
    names = ("config.yaml", "metrics.jsonl", "report.json")
    for name in names:
        (tmp_path / name).write_text("the run's", encoding="utf-8")
    for act in (require_free, lambda out: write_results(report, out)):
        with pytest.raises(UserError, match=r"a training run, .* report\.json would be overwritten; name another"):
            act(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(names, "the run's")
    (tmp_path / "metrics.jsonl").unlink()  # any other folder, an earlier evaluation's too, is written to
    for _ in range(2):
        write_results(report, tmp_path)


def test_a_folder_in_the_way_is_told_before_anything_is_replaced(report, tmp_path):
    name = "per_query.parquet"
    write_results(report, tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    before = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    for act in (require_free, lambda out: write_results(report, out)):
        with pytest.raises(UserError, match=f"{name} is a folder there; move it away"):
            act(tmp_path)
    assert {path.name: path.stat().st_ino for path in tmp_path.iterdir()} == before


@pytest.mark.slow
def test_a_result_that_came_meanwhile_is_not_replaced_unasked(report, tmp_path):
    write_results(report.made_by("one"), tmp_path)
    with pytest.raises(UserError, match=r"holds the result of another command \(one\)"):
        write_results(report.made_by("two"), tmp_path)
    write_results(report.made_by("one"), tmp_path)
    write_results(report.made_by("two"), tmp_path, overwrite=True)
    assert Report.load(tmp_path / "report.json").command == "two"


EVIL = ["=HYPERLINK(1)", "+1", "-1", "@SUM(A1)", "\tx", 'a,"b"\nc', "plain"]


def test_no_class_name_is_a_formula_in_csv():
    labels = np.repeat(EVIL, 2)
    report = evaluate(np.random.default_rng(0).standard_normal((14, 4)), labels, recall_at=(1,))
    head, *rows = csv.reader(io.StringIO(class_csv(report)))
    assert head[:3] == ["class", "num_queries", "mauprc"]
    assert {row[0] for row in rows} == {"'=HYPERLINK(1)", "'+1", "'-1", "'@SUM(A1)", "'\tx", 'a,"b"\nc', "plain"}
    assert [float(row[2]) for row in rows] == pytest.approx(sorted(report.class_table()["mauprc"].tolist()), abs=1e-6)


def test_names_are_escaped():
    report = evaluate(np.eye(2)[[0, 0, 1, 1]], [5, 5, 6, 6], metrics=["mauprc"])
    name = '<script>alert(1)</script>|`a`\n\\| 50% & a_b^~ {x} "q"'
    row = '| &lt;script>alert(1)&lt;/script>\\|\\`a\\` \\\\\\| 50% &amp; a_b^~ {x} "q" | 1.0000 |'
    assert to_markdown({name: report}).splitlines()[2] == row


def test_only_common_metrics_are_shown_unless_named():
    metrics = {"a": ["mauprc", "mrr"], "b": ["mauprc", "minp"]}
    reports = {name: evaluate(np.eye(2)[[0, 0, 1, 1]], [5, 5, 6, 6], metrics=each) for name, each in metrics.items()}
    assert to_markdown(reports).splitlines()[0] == "| model | mauprc |"
    with pytest.raises(UserError, match="the report 'b' has no mrr; it has mauprc, minp"):
        to_markdown(reports, ["mrr"])

"""Runs and qrels of TREC: measured against lists gone through one by one, written, read back, refused where odd."""

import math
import os
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

import aurank
from aurank.errors import UserError
from aurank.evaluation import compare
from aurank.evaluation.trec import Table, evaluate_run, read_qrels, read_run, write_run

# By hand: a, x, b are listed for q1, whose relevant documents are a (grade 2), b and c (1); z for q2 is wrong.
RUN = """q1 Q0 a 1 0.9 t
q1 Q0 x 2 0.8 t

q1\tQ0  b 3 0.5 t
q2 Q0 z 1 3e-1 t
q9 Q0 a 1 1 t
"""
QRELS = "q1 0 a 2\nq1 0 b 1\nq1 0 c 1\nq1 0 x 0\nq2 0 a 1\nq3 0 a 1\nq4 0 a 0\nq4 0 b -1\n"


def files(folder: Path, run: str = RUN, qrels: str = QRELS) -> tuple[Table, Table]:
    (folder / "a.run").write_text(run, encoding="utf-8")
    (folder / "a.qrels").write_text(qrels, encoding="utf-8")
    return read_run(folder / "a.run"), read_qrels(folder / "a.qrels")


def test_what_a_run_does_not_list_counts_as_never_retrieved(tmp_path: Path) -> None:
    report = evaluate_run(*files(tmp_path), recall_at=(1, 3, 4))
    assert report.per_query["path"].tolist() == ["q1", "q2", "q3"]
    ideal = 2 / math.log2(2) + 1 / math.log2(3) + 1 / math.log2(4)
    expected = {
        "recall@1": 1.0,
        "recall@3": 1.0,
        "precision@1": 1.0,
        "precision@3": 2 / 3,
        "coverage@1": 1 / 3,
        "coverage@3": 2 / 3,
        "map@3(r)": (1 + 2 / 3) / 3,
        "ndcg@3": (2 / math.log2(2) + 1 / math.log2(4)) / ideal,
        "mrr@3": 1.0,
    }
    assert list(report.metrics) == list(expected)
    for name, value in expected.items():
        assert report.per_query[name].tolist() == pytest.approx([value, 0, 0], abs=1e-15), name
        assert report.metrics[name] == pytest.approx(value / 3, abs=1e-15)
    assert (report.num_queries, report.num_lone_queries, report.num_gallery) == (4, 1, 5)
    assert any("1 of the queries are not in the run" in note for note in report.notes)


def test_there_is_no_metric_of_the_whole_gallery_and_files_keep_it_so(tmp_path: Path) -> None:
    run, qrels = files(tmp_path)
    for name in ("mauprc", "ndcg", "recall@4", "macro:recall@1"):
        with pytest.raises(UserError, match=r"cannot be told from a run whose longest list has 3 documents"):
            evaluate_run(run, qrels, metrics=[name])
    report = evaluate_run(run, qrels, metrics=["mrr@2"], resampling=aurank.evaluation.Resampling(100))
    report.save(tmp_path / "report.json")
    report.write_per_query(tmp_path / "rows.parquet")
    loaded = aurank.Report.load(tmp_path / "report.json")
    assert (loaded.metrics, loaded.tie_bounds) == ({"mrr@2": 1 / 3}, None)
    assert str(loaded) == str(report)
    assert compare(report, loaded, metric="mrr@2").difference == 0
    with pytest.raises(UserError, match="holds no values per query of 'mauprc'"):
        _ = report.mauprc
    with pytest.raises(UserError, match="distances"):
        compare(report, aurank.evaluate(np.eye(2), [0, 0], metrics=["mrr@2"]), metric="mrr@2")


@pytest.mark.parametrize("k", [1, 3, 8])
def test_graded_runs_without_ties_equal_scikit_learn(k: int) -> None:
    chance = np.random.default_rng(k)
    grades, scores = chance.integers(0, 3, (6, 8)), chance.normal(size=(6, 8))
    grades[:, 0] = 1
    run = {f"q{q}": {f"d{d}": float(scores[q, d]) for d in range(8)} for q in range(6)}
    qrels = {f"q{q}": {f"d{d}": float(grades[q, d]) for d in range(8)} for q in range(6)}
    report = evaluate_run(run, qrels, metrics=[f"ndcg@{k}"])
    assert report.metrics[f"ndcg@{k}"] == pytest.approx(ndcg_score(grades, scores, k=k), abs=1e-12)


def test_equal_scores_count_against_the_run_whatever_ranks_it_claims(tmp_path: Path) -> None:
    run = "q1 Q0 a 1 1 t\nq1 Q0 x 2 1 t\nq1 Q0 b 3 1 t\nq1 Q0 c 9 5 t\n"
    report = evaluate_run(*files(tmp_path, run, "q1 0 a 3\nq1 0 b 1\n"), metrics=["mrr@4", "ndcg@4", "map@4(r)"])
    ideal = 3 / math.log2(2) + 1 / math.log2(3)
    expected = {
        "mrr@4": 1 / 3,
        "ndcg@4": (1 / math.log2(4) + 3 / math.log2(5)) / ideal,
        "map@4(r)": (1 / 3 + 2 / 4) / 2,
    }
    assert report.metrics == pytest.approx(expected, abs=1e-15)


def test_a_written_run_has_the_numbers_of_evaluate(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    rows, labels = chance.normal(size=(30, 4)).astype(np.float32), chance.integers(0, 6, 30)
    is_query, is_gallery = chance.random(30) < 0.6, chance.random(30) < 0.7
    groups = chance.integers(-1, 3, 30)
    names = [f"images/ü {row}%.png" for row in range(30)]
    roles = {"is_query": is_query, "is_gallery": is_gallery, "groups": groups}
    write_run(tmp_path / "a.run", tmp_path / "a.qrels", rows, labels, names, **roles)
    metrics = ["recall@3", "coverage@3", "precision@3", "map@5(r)", "ndcg@5", "mrr@5"]
    report = evaluate_run(read_run(tmp_path / "a.run"), read_qrels(tmp_path / "a.qrels"), metrics=metrics)
    ids = np.arange(30)
    exact = aurank.evaluate(
        rows[is_query], labels[is_query], rows[is_gallery], labels[is_gallery], ids=ids[is_query], metrics=metrics,
        gallery_ids=ids[is_gallery], groups=groups[is_query], gallery_groups=groups[is_gallery],
    )  # fmt: skip
    assert report.metrics == pytest.approx(exact.metrics, abs=1e-15)
    first = ids[is_query][exact.per_query["query"][0]]
    assert report.per_query["path"][0] == f"images/ü%20{first}%25.png"
    write_run(tmp_path / "b.run", tmp_path / "b.qrels", rows, labels, names, **roles, depth=5)
    short = evaluate_run(read_run(tmp_path / "b.run"), read_qrels(tmp_path / "b.qrels"), metrics=metrics)
    assert short.metrics == report.metrics
    assert max(map(len, read_run(tmp_path / "b.run").values())) == 5
    with pytest.raises(UserError, match="a run needs a name for each row, all different"):
        write_run(tmp_path / "b.run", tmp_path / "b.qrels", rows, labels, ["a"] * 30, **roles)


@pytest.mark.parametrize(
    ("run", "qrels", "message"),
    [
        ("q1 a 1 2\n", QRELS, "a.run, line 1: 'q1 a 1 2'"),
        ("q1 Q0 a 1 high t\n", QRELS, "a.run, line 1: .*high"),
        ("q1 Q0 a 1 nan t\n", QRELS, "a.run, line 1: .*nan"),
        ("q1 Q0 a 1 2 t\nq1 Q0 a 2 1 t\n", QRELS, "line 2: 'q1 Q0 a 2 1 t' lists a document twice"),
        ("\n", QRELS, "a.run is empty"),
        (RUN, "q1 a 1\n", "a.qrels, line 1"),
        (RUN, "q1 0 a 0\n", "0 of the 1 queries"),
        (RUN, "q7 0 a 1\n", "1 of the 1 queries"),
    ],
)
def test_what_is_no_run_and_no_qrels_raises(run: str, qrels: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as caught:
        evaluate_run(*files(tmp_path, run, qrels))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_text_raises(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="binary: cannot be read as a run"):
        read_run(tmp_path / "binary")


def test_ndcg_compares_with_an_ideal_that_is_cut_too() -> None:
    report = evaluate_run({"q": {"a": 2.0, "b": 1.0}}, {"q": {"a": 1.0, "b": 1.0, "c": 1.0}})
    assert report.metrics["ndcg@2"] == 1.0  # trec_eval's ndcg_cut_2; its ndcg is 0.7654
    assert "`ndcg@D` its ndcg_cut_D" in (evaluate_run.__doc__ or "")


def test_a_mark_of_the_byte_order_changes_no_number(tmp_path: Path) -> None:
    plain = evaluate_run(*files(tmp_path))
    for name in ("a.run", "a.qrels"):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + (tmp_path / name).read_bytes())
        marked = evaluate_run(read_run(tmp_path / "a.run"), read_qrels(tmp_path / "a.qrels"))
        assert marked.metrics == plain.metrics
        assert marked.per_query["path"].tolist() == ["q1", "q2", "q3"]


@pytest.mark.skipif(os.name == "nt", reason="there are no such files")
def test_a_pipe_and_a_device_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        for read in (read_run, read_qrels):
            with pytest.raises(UserError, match=f"{path} is a pipe or a device; name a file"):
                read(path)


def test_names_that_are_no_utf_8_are_written_with_their_bytes_as_escapes(tmp_path: Path) -> None:
    every = {"is_query": np.ones(3, bool), "is_gallery": np.ones(3, bool), "groups": np.full(3, -1)}
    names = ["\udcff.png", "b.png", "c.png"]
    write_run(tmp_path / "a.run", tmp_path / "a.qrels", np.eye(3), np.zeros(3, int), names, **every)
    assert set(read_run(tmp_path / "a.run")) == {"\\udcff.png", "b.png", "c.png"}
    assert set(read_qrels(tmp_path / "a.qrels")) == {"\\udcff.png", "b.png", "c.png"}


def test_two_runs_are_compared_whatever_else_they_list_but_not_over_other_queries() -> None:
    qrels = {"q1": {"a": 1.0}, "q2": {"b": 1.0}}
    one = evaluate_run({"q1": {"a": 1.0, "x": 2.0}, "q2": {"b": 1.0}}, qrels, metrics=["mrr@1"])
    two = evaluate_run({"q1": {"a": 1.0, "y": 0.5}, "q2": {"b": 1.0, "z": 0.1}}, qrels, metrics=["mrr@1"])
    assert (one.num_gallery, two.num_gallery) == (3, 4)
    assert compare(one, two, metric="mrr@1").difference == 0.5
    others = evaluate_run({"q1": {"a": 1.0}}, {"q1": {"a": 1.0}, "q3": {"b": 1.0}}, metrics=["mrr@1"])
    with pytest.raises(UserError, match="differ in their paths: q2 and q3 at place 1"):
        compare(one, others, metric="mrr@1")


def test_one_query_has_no_intervals_and_a_note_says_so() -> None:
    report = evaluate_run({"q": {"a": 1.0}}, {"q": {"a": 1.0}}, resampling=aurank.evaluation.Resampling(100))
    assert report.intervals is None
    assert any(note.startswith("no intervals: an interval needs") for note in report.notes)


def test_a_runs_table_speaks_of_documents(tmp_path: Path) -> None:
    lines = str(evaluate_run(*files(tmp_path))).splitlines()
    assert "4 queries, 1 of them skipped: no positive; 5 documents" in lines
    assert not any("gallery rows" in line or "distance" in line for line in lines)

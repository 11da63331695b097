"""`aurank evaluate` with runs and qrels of TREC, as typed."""

from pathlib import Path

import numpy as np
import pytest
from testing.shell import Shell

from aurank.errors import AurankError
from aurank.evaluation import Report

ROWS = ("evaluate", "--model", "embeddings:rows.npz")
TREC = ("evaluate", "--model", "trec:out/a.run", "--out", "two", "--overwrite")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with embeddings of eight images in two classes, where commands are given."""
    monkeypatch.chdir(tmp_path)
    chance = np.random.default_rng(0)
    paths = np.array([f"{row}.png" for row in range(8)])
    np.savez(tmp_path / "rows.npz", embeddings=chance.normal(size=(8, 3)), labels=np.arange(8) % 2, paths=paths)
    return tmp_path


@pytest.mark.slow
def test_a_run_is_written_for_trec_eval_and_measured_from_its_files(place: Path, aurank: Shell) -> None:
    asked = ("--metrics", "mauprc,map@7(r),mrr@3", "--trec-run", "out/a.run")
    assert aurank(*ROWS, "--out", "one", *asked)[0] == 0
    assert aurank(*ROWS, "--out", "two")[0] == 0
    assert (place / "two" / "pr_curve.png").exists()
    lines = (place / "out" / "a.run").read_text().splitlines()
    assert len(lines) == 8 * 7
    assert lines[0].startswith("0.png Q0 ")
    assert len((place / "out" / "a.qrels").read_text().splitlines()) == 8 * 3
    code, output, _ = aurank(*TREC, "--labels", "out/a.qrels")
    assert code == 0
    assert "of a run with up to 7 documents a query: what it does not list counts as never" in output
    assert sorted(path.name for path in (place / "two").iterdir()) == ["per_query.parquet", "report.json"]
    exact, read = (Report.load(place / name / "report.json").metrics for name in ("one", "two"))
    assert list(exact) == ["mauprc", "map@7(r)", "mrr@3"]
    assert read["map@7(r)"] == exact["map@7(r)"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (TREC, "needs the judgements: give the file of qrels as --labels FILE"),
        ((*TREC, "--labels", "x", "--data", "folder:x"), "--data folder:x has no use with --model trec:out/a.run"),
        ((*TREC, "--labels", "x", "--distance", "dot"), "--distance dot has no use with --model trec:out/a.run"),
        ((*TREC, "--labels", "x"), "out/a.run: cannot be read as a run"),
        ((*ROWS, "--out", "x", "--trec-run", "a.txt"), "--trec-run a.txt: the file written is of type .run"),
        ((*ROWS, "--out", "x", "--metrics", "mAP"), "unknown metric 'mAP'"),
        ((*TREC, "--labels", "x", "--batch", "4"), "--batch 4 has no use with --model trec:out/a.run"),
        ((*TREC, "--labels", "x", "--device", "cpu"), "--device cpu has no use with"),
        ((*TREC, "--labels", "x", "--cache", "kept"), "--cache kept has no use with"),
        ((*TREC, "--labels", "x", "--seeds", "0,1"), "--seeds 0,1 has no use with"),
        ((*TREC, "--labels", "x", "--no-cache"), "--no-cache has no use with"),
        ((*TREC, "--labels", "x", "--allow-code"), "--allow-code has no use with"),
        ((*TREC, "--labels", "x", "--baselines"), "--baselines has no use with --model trec:out/a.run"),
        (("embed", "--model", "trec:a.run", "--out", "x.npz"), "a file of ranked lists, which `aurank evaluate`"),
        (("probe", "--model", "trec:a.run", "--out", "x"), "a file of ranked lists, which `aurank evaluate`"),
    ],
)
def test_what_does_not_go_together_is_refused(
    arguments: tuple[str, ...],
    message: str,
    place: Path,
    aurank: Shell,
) -> None:
    code, _, said = aurank(*arguments)
    assert code == 2
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.run", "a.qrels"])
def test_a_run_that_is_there_is_replaced_by_its_own_command_or_when_asked_for(
    name: str, place: Path, aurank: Shell
) -> None:
    (place / name).write_text("mine")
    command = (*ROWS, "--out", "one", "--trec-run", "a.run")
    code, _, said = aurank(*command)
    assert code == 2
    assert f"--trec-run a.run: {name} is there already; name another, or add --overwrite" in said
    assert (place / name).read_text() == "mine"
    assert not (place / "one").exists()
    assert aurank(*command, "--overwrite")[0] == 0
    assert aurank(*command)[0] == 0
    assert aurank(*ROWS, "--out", "two", "--trec-run", "a.run")[0] == 2


@pytest.mark.slow
def test_names_are_looked_at_before_the_ranking_and_a_run_that_fails_loses_no_report(
    place: Path, aurank: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise AurankError("cannot save a.run: no space")

    monkeypatch.setattr("aurank.commands.evaluate.write_run", full)
    assert aurank(*ROWS, "--out", "one", "--trec-run", "a.run")[0] == 1
    assert Report.load(place / "one" / "report.json").num_queries == 8
    paths = np.array(["a b", "a b", *"cdefgh"])
    np.savez(place / "rows.npz", embeddings=np.eye(8), labels=np.arange(8) % 2, paths=paths)
    monkeypatch.setattr("aurank.embedding.embed.Embedded.evaluate", lambda *_, **__: pytest.fail("ranked"))
    monkeypatch.setattr("aurank.commands.evaluate._check_options", lambda *_: None)
    code, _, said = aurank(*ROWS, "--out", "two", "--trec-run", "b.run", "data.repeated=keep")
    assert code == 2
    assert "a run needs a name for each row, all different" in said

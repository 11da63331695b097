"""`aurank evaluate --postprocess`, `--dims` and `--precision` as typed."""

from pathlib import Path

import numpy as np
import pytest
from testing.shell import Shell

from aurank.evaluation import PostProcessing, Report

GENERATOR = np.random.default_rng(1)
LABELS = np.arange(60) % 6
ROWS = (GENERATOR.normal(size=(6, 12))[LABELS] + GENERATOR.normal(size=(60, 12)) + 1).astype(np.float32)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    np.savez(tmp_path / "rows.npz", embeddings=ROWS, labels=LABELS)
    np.savez(tmp_path / "train.npz", embeddings=ROWS[:30], labels=LABELS[:30])
    monkeypatch.chdir(tmp_path)
    return tmp_path


EVALUATE = ("evaluate", "--model", "embeddings:rows.npz", "--recall-at", "1,5")


@pytest.mark.slow
def test_both_numbers_are_printed_and_the_steps_are_kept(place: Path, aurank: Shell) -> None:
    steps = "center, whiten:dim=4, k_reciprocal:k1=5,k2=2"
    code, said, _ = aurank(*EVALUATE, "--out", "out", "--postprocess", steps, "--fit-on", "train.npz")
    report = Report.load(place / "out/report.json")
    assert code == 0
    assert report.postprocessing is not None
    between = report.interval("mauprc")
    assert f"{report.mauprc:.4f}  {between}  (plain {report.postprocessing['plain']['mauprc']:.4f})" in said
    assert "k_reciprocal is transductive" in said
    kept = PostProcessing.load(place / "out/postprocessing.safetensors")
    assert (str(kept), kept.fitted_rows) == (steps, 30)
    code, said, _ = aurank(*EVALUATE, "--out", "again", "--postprocess", "out/postprocessing.safetensors")
    assert code == 0
    assert Report.load(place / "again/report.json").metrics == report.metrics
    code, said, _ = aurank(*EVALUATE, "--out", "out", "--overwrite")
    assert code == 0
    assert sorted(path.name for path in (place / "out").iterdir() if "postprocessing" in path.name) == []


@pytest.mark.slow
def test_a_table_and_a_picture_of_codes(place: Path, aurank: Shell) -> None:
    words = ("--out", "out", "--dims", "4,12", "--precision", "float32,int8,binary", "--rescore", "20")
    code, said, _ = aurank(*EVALUATE, *words)
    assert code == 0
    assert "dim  precision  bytes an image  rescored  mauprc  recall@1  recall@5" in said
    codes = Report.load(place / "out/report.json").codes
    assert codes is not None
    assert len(codes) == 11
    assert (place / "out/codes.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rescore", "5"), "--rescore 5 goes with --dims or --precision"),
        (("--dims", "4,x"), "--dims '4,x': expected whole numbers and commas"),
        (("--dims", "13"), "dims asks for 13 numbers, and the embeddings have 12"),
        (("--precision", "int4"), "no precision 'int4'"),
        (("--postprocess", "whiten"), "whiten has to be fitted on training rows"),
        (("--postprocess", "\x1b[31mred"), "\\x1b"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line_and_nothing_is_written(
    words: tuple[str, ...],
    said: str,
    place: Path,
    aurank: Shell,
) -> None:
    code, _, heard = aurank(*EVALUATE, "--out", "out", *words)
    assert code == 2
    assert said in heard
    assert "\x1b[31m" not in heard
    assert not (place / "out").exists()

"""`aurank doctor` as typed."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from testing.data_trees import pixels
from testing.shell import Shell

from aurank.data.checks.findings import FIXES

FIXED = ("--fix", "repeats,conflicts", "--out", "clean.csv")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for number in range(8):
        path = tmp_path / f"photos/class{number % 4}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(number % 7, 40, 40)).save(path)
    np.savez(tmp_path / "rows.npz", embeddings=np.eye(4), labels=[0, 0, 1, 1])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_cleaned_table_is_sound_and_a_page_is_written(place: Path, aurank: Shell) -> None:
    code, output, _ = aurank("doctor", "folder:photos", "--html", "doctor.html", *FIXED)
    assert code == 1
    assert "same image under two classes: 1 (class0/0.png = class3/7.png)" in output
    assert "written to doctor.html" in output
    assert "same image" in Path("doctor.html").read_text(encoding="utf-8")
    assert "--fix leaves out 2 of 8 rows (repeats 0, conflicts 2)\n" in output
    assert "2 of 4 classes lose their last pair: 'class0' in test, 'class3' in test\n6 of 8 rows" in output
    where = next(line for line in output.splitlines() if "6 of 8 rows are in table:clean.csv" in line)
    code, output, _ = aurank("doctor", *where.partition(" are in ")[2].split())
    assert output.startswith("clean: 6 images")
    assert "same image" not in output


def test_its_help_lists_what_a_table_can_leave_out(aurank: Shell) -> None:
    text = aurank("doctor", "--help")[1].partition("--fix NAMES")[2].partition("  --out ")[0]
    words = re.findall(r"[\w-]+", re.sub(r"-\s+", "-", text))  # a line may end within a name
    assert set(FIXES) <= set(words)


def test_a_name_that_no_table_holds_is_told(place: Path, aurank: Shell) -> None:
    (photo,) = list((place / "photos").rglob("*.png"))[:1]
    photo.rename(os.fsdecode(os.fsencode(photo.parent) + b"/\xff.png"))
    code, _, complaint = aurank("doctor", "folder:photos", "--fix", "tiny", "--out", "clean.csv")
    assert code == 2
    assert "\\udcff.png" in complaint
    assert not (place / "clean.csv").exists()


def test_saved_embeddings_are_examined(place: Path, aurank: Shell) -> None:
    code, output, _ = aurank("doctor", "--embeddings", "rows.npz")
    assert output.startswith("rows.npz: 4 embeddings, 4 dimensions, 2 classes\n")
    assert code in (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "say what to examine"),
        (("folder:photos", "--embeddings", "rows.npz"), "DATA folder:photos has no use with --embeddings"),
        (("--embeddings", "rows.npz", *FIXED), "--fix repeats,conflicts has no use with --embeddings"),
        (("folder:photos", "--labels", "rows.npz"), "goes with --embeddings"),
        (("folder:photos", "--fix", "tiny", "--out", "clean.txt"), "name it clean.csv"),
        (("folder:photos", "--fix", "tiny,repeat", "--out", "clean.csv"), "no finding is named 'repeat'; did you mean"),
        (("folder:photos", "--fix", "clean.csv"), "the table to write is --out FILE.csv"),
        (("folder:photos", "--fix", "tiny"), "--fix NAMES and --out FILE.csv go together"),
        (("folder:photos", "--out", "clean.csv"), "--fix NAMES and --out FILE.csv go together"),
        (("folder:photos", "--fix", "tiny,labels", "--out", "clean.csv"), "--fix labels goes with --model"),
        (("digits:", *FIXED), "images of digits are in memory"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(
    place: Path, aurank: Shell, words: tuple[str, ...], complaint: str
) -> None:
    code, _, said = aurank("doctor", *words)
    assert (code, said.count("\n")) == (2, 1)
    assert complaint in said
    assert not list(place.glob("clean*"))

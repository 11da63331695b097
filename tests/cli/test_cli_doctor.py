"""`aurank doctor` as typed."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from testing.trees import pixels, write_image

from aurank.data.checks.findings import FIXES

FIXED = ("--fix", "repeats,conflicts", "--out", "clean.csv")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for number in range(8):
        write_image(tmp_path / f"photos/class{number % 4}/{number}.png", pixels(number % 7, 40, 40))
    np.savez(tmp_path / "rows.npz", embeddings=np.eye(4), labels=[0, 0, 1, 1])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_cleaned_table_is_sound_and_a_page_is_written(place, aurank):
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


def test_its_help_lists_what_a_table_can_leave_out(aurank):
    text = aurank("doctor", "--help")[1].partition("--fix TEXT")[2].partition("  --negatives PATH")[0]
    words = re.findall(r"[\w-]+", re.sub(r"-\s+", "-", text))  # a line may end within a name
    assert set(FIXES) <= set(words)


def test_a_name_that_no_table_holds_is_told(place, aurank):
    (photo,) = list((place / "photos").rglob("*.png"))[:1]
    photo.rename(os.fsdecode(os.fsencode(photo.parent) + b"/\xff.png"))
    assert "\\udcff.png" in aurank.refused("doctor", "folder:photos", "--fix", "repeats", "--out", "clean.csv")
    assert not (place / "clean.csv").exists()


def test_doctor_ends_with_exit_code_2_where_images_are_broken(aurank, tmp_path):
    for name in ("train/a/1.png", "test/b/1.png"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(b"no image")
    code, output, _ = aurank("doctor", f"folder:{tmp_path}", "data.validation_fraction=0")
    assert code == 2
    assert "--html FILE shows pictures, consequences and remedies" in output
    assert "error: unreadable images: 2" in output

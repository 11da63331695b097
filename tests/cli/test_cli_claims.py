"""Two commands that write to one place: the second ends with one line, before it reads anything."""

import os
from pathlib import Path

import pytest
from testing.processes import Shell

from aurank.files import claimed

# What these name is no model and no report: a command that read it would say so.
FOLDERS = [
    ("evaluate", "--model", "timm:resnet18"),
    ("embed", "--model", "timm:resnet18"),
    ("calibrate", "--model", "timm:resnet18", "--precision", "0.9"),
    ("index", "build", "--model", "timm:resnet18"),
    ("demo",),
    ("data", "prepare", "digits/soprc"),
]
FILES = [("embed", "--model", "timm:resnet18", "rows.npz"), ("compare", os.devnull, os.devnull, "page.html")]


@pytest.mark.parametrize("command", FOLDERS, ids=" ".join)
def test_the_second_command_in_a_folder_ends_at_once(
    command: tuple[str, ...], aurank: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with claimed(Path("out")):
        complaint = aurank.refused(*command, "--out", "out")
    assert complaint.startswith("error: --out out is in use by another process")
    assert complaint.endswith("; wait for it or stop it, or name another place\n")
    assert not list(tmp_path.iterdir())
    assert "is in use" not in aurank(*command[:2], "--help")[2]


@pytest.mark.parametrize("command", FILES, ids=" ".join)
def test_the_second_command_that_writes_a_file_ends_at_once(
    command: tuple[str, ...], aurank: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    *words, name = command
    with claimed(tmp_path / name, is_file=True):
        assert f"--out {name} is in use by another process" in aurank(*words, "--out", name)[2]
        assert "is in use" not in aurank(*words, "--out", f"other-{name}")[2]
    assert not list(tmp_path.iterdir())

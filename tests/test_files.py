import errno
import json
import os
import pickle
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typing_extensions import TypedDict

from aurank.errors import AurankError, UserError
from aurank.evaluation import Index, Report
from aurank.files import (
    ABANDONED,
    EXACT,
    checked,
    read_bundle,
    read_record,
    reading,
    remove_temporaries,
    replacing,
    replacing_folder,
    require_writable,
    write_bundle,
    write_safetensors,
    write_text,
)


def test_a_file_takes_its_place_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.txt"
    write_text(path, "first")
    with pytest.raises(TypeError), replacing(path) as file:
        file.writelines([b"second", 3])  # type: ignore[list-item]
    assert path.read_text(encoding="utf-8") == "first"
    assert list(path.parent.iterdir()) == [path]


def test_what_a_killed_process_left_behind_goes_an_hour_later(tmp_path: Path) -> None:
    left, other = (tmp_path / f".{name}.{0:032x}.part" for name in ("last[1].pt", "other.pt"))
    for age, is_left in ((ABANDONED - 60, True), (ABANDONED + 60, False)):
        for path in (left, other):
            path.touch()
            os.utime(path, (time.time() - age,) * 2)
        write_text(tmp_path / "last[1].pt", "whole")
        assert (left.exists(), other.exists()) == (is_left, True)


def test_all_temporaries_of_a_folder_go_and_nothing_else(tmp_path: Path) -> None:
    half = f".last.safetensors.{0:032x}.part"
    kept = [".mine.part", ".2024.part/photo.png", f"deeper/{half}"]
    for name in [half, f".report.json.{1:032x}.part/report.json", *kept]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"half")
    remove_temporaries(tmp_path)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == sorted(kept)


def test_a_bundle_comes_back_as_its_type_says(tmp_path: Path) -> None:
    class Piece(TypedDict):
        __pydantic_config__ = {"arbitrary_types_allowed": True, "extra": "forbid"}  # type: ignore[misc]  # noqa: RUF012
        rows: torch.Tensor
        names: tuple[str, ...]
        state: dict[int, dict[str, Any]]

    state = {3: {"flags": np.array([True, False]), "step": np.float64(0.1), "none": None, "empty": torch.zeros(0, 2)}}
    write_bundle(tmp_path / "piece", {"rows": torch.eye(2).half().t(), "names": ("é", "b"), "state": state}, "a piece")
    piece = read_bundle(tmp_path / "piece", Piece, "a piece")
    assert piece["rows"].equal(torch.eye(2).half())
    assert piece["names"] == ("é", "b")
    assert piece["state"][3]["flags"].tolist() == [True, False]
    assert piece["state"][3]["step"] == 0.1
    assert piece["state"][3]["empty"].shape == (0, 2)
    for kind, what in ((Piece, "another"), (dict[str, int], "a piece")):
        with pytest.raises(UserError, match="piece: cannot be read as"):
            read_bundle(tmp_path / "piece", kind, what)


def test_a_bundle_has_the_same_bytes_each_time(tmp_path: Path) -> None:
    shared = torch.arange(6.0)
    content = {"whole": shared, "again": shared, "part": shared[2:4], "seed": 3}
    for name in "12345":
        write_bundle(tmp_path / name, content, "a piece")
    assert len({(tmp_path / name).read_bytes() for name in "12345"}) == 1


def test_of_two_writers_of_one_path_each_file_is_whole_and_the_last_to_end_stays(tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    with replacing(path) as first:
        first.write(b"first, begun before")
        write_text(path, "second")
        assert path.read_text(encoding="utf-8") == "second"
        first.write(b" and ended after")
    assert path.read_text(encoding="utf-8") == "first, begun before and ended after"
    assert list(tmp_path.iterdir()) == [path]


def test_tensors_that_share_memory_are_written_as_they_are(tmp_path: Path) -> None:
    whole = torch.arange(12.0).view(3, 4)
    views = {"whole": whole, "again": whole, "rows": whole[1:], "column": whole[:, 1], "turned": whole.T}
    views |= {"repeated": whole.expand(2, 3, 4), "empty": torch.zeros(0, 3), "scalar": torch.tensor(3)}
    write_safetensors(tmp_path / "views.safetensors", views)
    written = load_file(tmp_path / "views.safetensors")
    assert all(torch.equal(written[name], value) for name, value in views.items())


def test_a_disk_that_is_full_for_the_writer_of_safetensors_is_told_alike(tmp_path: Path) -> None:
    path, limits = tmp_path / "weights.safetensors", resource.getrlimit(resource.RLIMIT_FSIZE)
    write_safetensors(path, {"weight": torch.arange(3.0)})
    before = path.read_bytes()
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(AurankError, match=f"^cannot save {path}: .*File too large.*; what was there before is"):
            write_safetensors(path, {"weight": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("place", ["file/inside", "folder"])
def test_a_place_where_no_file_can_be_is_told_before_and_when_writing(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("kept", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="--out"):
        require_writable(tmp_path / place)
    with pytest.raises(AurankError, match="cannot save") as caught:
        write_text(tmp_path / place, "text")
    assert str(tmp_path / place) in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_folder_without_permission_is_told_and_a_new_one_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_writable(tmp_path / "new" / "deeper" / "file.npz")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UserError, match=f"no permission in {tmp_path}"):
        require_writable(tmp_path / "new" / "file.npz")


@pytest.mark.parametrize("load", [Report.load, Index.load])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, load: Callable[[Path], object]) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    for name, said in (("pipe", "a pipe or a device"), ("endless", "a pipe or a device"), (".", "a folder")):
        with pytest.raises(UserError, match=f"is {said}; name a file"):
            load(tmp_path / name)


def test_a_folder_takes_its_place_only_when_it_is_complete(tmp_path: Path) -> None:
    out, link = tmp_path / "real", tmp_path / "link"
    out.mkdir()
    (out / "old").touch()
    link.symlink_to(out)
    for error in (RuntimeError, KeyboardInterrupt):
        with pytest.raises(error), replacing_folder(link):
            raise error
    assert [path.name for path in out.iterdir()] == ["old"]
    with replacing_folder(link) as folder:
        (folder / "new").touch()
    assert [path.name for path in out.iterdir()] == ["new"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]
    assert link.is_symlink()


def test_a_folder_that_cannot_take_its_place_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").touch()
    rename = Path.replace

    def interrupted(path: Path, target: Path) -> Path:
        if path.exists() and (path / "new").exists():
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt), replacing_folder(tmp_path / "out") as folder:
        (folder / "new").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "old"]


def fail(error: BaseException, path: str = "rows.json") -> None:
    with reading(path, "a report", remedy="evaluate again"):
        raise error


@pytest.mark.parametrize(
    "error",
    [
        KeyError("metrics"),
        TypeError("two\nlines"),
        RecursionError(),
        pickle.UnpicklingError("GLOBAL os.system"),
        FileNotFoundError(errno.ENOENT, "No such file", "rows.json"),
        MemoryError("Unable to allocate 8 EiB"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_damaged_file_raises_is_one_line_with_its_name_and_the_remedy(error: Exception) -> None:
    with pytest.raises(UserError, match=r"^rows\.json: .*; evaluate again$") as caught:
        fail(error)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), AurankError("lost"), OSError(errno.EMFILE, "Too many open files")]
)
def test_what_is_not_the_files_fault_passes_through_its_reader(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        fail(error)
    assert caught.value is error


@dataclass(frozen=True)
class Described:
    __pydantic_config__ = EXACT

    count: int
    scale: float = 1.0


def test_a_value_of_a_file_is_what_its_type_says_or_names_the_entry() -> None:
    assert checked({"count": 3, "scale": 2}, Described) == Described(3, 2.0)
    for value, entry in (({}, "count"), ({"count": "x"}, "count"), ({"count": 1, "scal": 2}, "scal"), ([], "")):
        with pytest.raises(ValueError, match=f"^{entry}"):
            checked(value, Described)
    with pytest.raises(ValueError, match="scale"):
        checked(json.loads('{"count": 1, "scale": 1e999}'), Described)
    others: list[tuple[Any, Any]] = [(True, int), ("0.5", float), (1, bool), ([1, "2"], list[int])]
    for value, kind in others:
        with pytest.raises(ValueError, match="valid"):
            checked(value, kind)


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, '{"format": "rows", "version": 3}'])
def test_a_record_of_another_format_or_version_is_refused_by_name(text: str, tmp_path: Path) -> None:
    path = tmp_path / "about.json"
    path.write_text('{"format": "rows", "version": 2, "a": 1}')
    assert read_record(path, dict[str, Any], "a record", named="rows", version=2)["a"] == 1
    with pytest.raises(UserError, match=r"about\.json: cannot be read as a record \(version: .* valid string\)"):
        read_record(path, dict[str, str], "a record", named="rows", version=2)
    path.write_text(text)
    with pytest.raises(UserError, match=r"about\.json"):
        read_record(path, dict[str, Any], "a record", named="rows", version=2)


def test_a_name_that_is_no_utf_8_is_written_as_an_escape(tmp_path: Path) -> None:
    write_text(tmp_path / "page.html", "é \udcff \ud800")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == "é \\udcff \\ud800"

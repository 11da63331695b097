import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from aurank.errors import AurankError, UserError
from aurank.evaluation import Index, Report
from aurank.files import ABANDONED, replacing, replacing_folder, require_writable, write_text


def test_a_file_takes_its_place_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.txt"
    write_text(path, "first")
    with pytest.raises(TypeError), replacing(path) as file:
        file.writelines([b"second", 3])  # type: ignore[list-item]
    assert path.read_text(encoding="utf-8") == "first"
    assert list(path.parent.iterdir()) == [path]


def test_what_a_killed_process_left_behind_goes_with_a_write_of_that_file_an_hour_later(tmp_path: Path) -> None:
    script = f"""
import os, signal
from pathlib import Path
from aurank.files import replacing
with replacing(Path({str(tmp_path / "last[1].pt")!r})) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=120)
    assert [path.name.startswith(".last[1].pt.") for path in tmp_path.iterdir()] == [True]
    (left,) = tmp_path.iterdir()
    write_text(tmp_path / "last[1].pt", "whole")
    assert left.exists()
    os.utime(left, (time.time() - ABANDONED - 60,) * 2)
    write_text(tmp_path / "other.pt", "other")
    assert len(list(tmp_path.iterdir())) == 3
    write_text(tmp_path / "last[1].pt", "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last[1].pt", "other.pt"]


def test_of_two_writers_of_one_path_each_file_is_whole_and_the_last_to_end_stays(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    with replacing(path) as first:
        first.write(b"first, begun before")
        write_text(path, "second")
        assert path.read_text(encoding="utf-8") == "second"
        first.write(b" and ended after")
    assert path.read_text(encoding="utf-8") == "first, begun before and ended after"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_told_with_file_and_reason_and_leaves_the_old_file(tmp_path: Path) -> None:
    """The limit on file size makes the kernel itself refuse the second, larger file."""
    path = tmp_path / "file.txt"
    script = f"""
import resource, signal
from pathlib import Path
from aurank.errors import AurankError
from aurank.files import write_text
path = Path({str(path)!r})
write_text(path, "first")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_text(path, "x" * 10_000)
except AurankError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout == f"cannot save {path}: File too large; what was there before is untouched\n", done.stderr
    assert path.read_text(encoding="utf-8") == "first"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("place", ["file/inside", "folder", "n" * 300])
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


def test_a_file_of_another_type_is_told_before(tmp_path: Path) -> None:
    require_writable(tmp_path / "rows.npz", suffix=".npz")
    for name in ("rows.npy", "rows"):
        with pytest.raises(UserError, match=rf"--out .*{name}: .* type \.npz; name it rows\.npz"):
            require_writable(tmp_path / name, suffix=".npz")


def test_a_name_is_on_disk_with_its_file_and_what_was_there_may_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, older = tmp_path / "last.pt", [tmp_path / "last.1.pt", tmp_path / "last.2.pt"]
    synced: list[bool] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), tmp_path.stat()):
            synced.append(path.exists())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    for text in ("a", "b", "c", "d"):
        with replacing(path, displaced=older) as file:
            file.write(text.encode())
    assert synced == [True] * 4
    assert [one.read_text(encoding="utf-8") for one in (path, *older)] == ["d", "c", "b"]


@pytest.mark.parametrize("links", [True, False])
def test_a_file_keeps_its_name_where_the_last_step_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    path, older = tmp_path / "last.pt", [tmp_path / "last.1.pt", tmp_path / "last.2.pt"]
    for text in ("a", "b"):
        with replacing(path, displaced=older) as file:
            file.write(text.encode())
    real = Path.replace

    def replace(self: Path, target: Path) -> Path:
        if target == path:
            raise OSError(errno.EIO, "Input/output error")
        return real(self, target)

    def unable(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", unable)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        with pytest.raises(AurankError, match="is untouched"), replacing(path, displaced=older) as file:
            file.write(b"c")
    assert path.read_text(encoding="utf-8") == "b"
    with replacing(path, displaced=older) as file:
        file.write(b"d")
    assert [one.read_text(encoding="utf-8") for one in (path, *older)] == ["d", "b", "b"]
    assert len(list(tmp_path.iterdir())) == 3


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

"""Files that are either whole or not there: written under a temporary name, then renamed."""

import contextlib
import glob
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from aurank.errors import AurankError, UserError

ABANDONED = 3600  # seconds without a byte after which a temporary file is a killed process's


@contextmanager
def replacing(path: Path, *, displaced: Sequence[Path] = ()) -> Iterator[BinaryIO]:
    """A file to write that takes the place of ``path`` once it is complete and on disk.

    On any error the temporary file is removed and what was at ``path`` stays as it was. Of several processes that write
    one path at once, the last to end is the one whose file stays.

    Args:
        displaced: where what was at ``path`` goes in the same folder, and what was there to the next, the last one's
            being lost.

    Raises:
        AurankError: a full disk, a missing permission, a folder in the way; names the file and the reason.
    """
    temporary, spare = temporary_name(path), temporary_name(path)
    with _saving(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                remove_abandoned(path, temporary)
                yield file
                file.flush()
                os.fsync(file.fileno())
            for newer, older in reversed(list(pairwise(displaced))):
                if newer.exists():
                    newer.replace(older)
            if displaced and path.exists():  # it stays under its name as well, should the last step fail
                _link(path, spare)
                spare.replace(displaced[0])
            temporary.replace(path)
            _sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
            spare.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """A folder to fill that takes the place of ``path`` once it is complete; on any error all stays as it was.

    Raises:
        AurankError: a full disk or a missing permission; names the folder and the reason.
    """
    path = path.resolve()  # of a link the folder is replaced, not the link
    staging, spare = temporary_name(path), temporary_name(path)
    try:
        with _saving(path):
            staging.mkdir(parents=True)
            remove_abandoned(path, staging)
        yield staging
        with _saving(path):
            if path.exists():
                path.replace(spare)
            try:
                staging.replace(path)
            except BaseException:  # an interrupt too
                if spare.exists():
                    spare.replace(path)
                raise
            _sync_folder(path.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        shutil.rmtree(spare, ignore_errors=True)


@contextmanager
def _saving(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise AurankError(f"cannot save {path}: {reason}; what was there before is untouched") from error


def _link(path: Path, other: Path) -> None:
    """Give the file a second name, or a copy where the file system has no such names."""
    try:
        os.link(path, other)
    except OSError:
        shutil.copyfile(path, other)


def _sync_folder(folder: Path) -> None:
    """Write the folder's names to disk, so that they survive a power failure, where the system can."""
    with contextlib.suppress(OSError):  # not every file system and not every platform has it
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def temporary_name(path: Path) -> Path:
    """Return a name beside ``path`` of its writer's own: two processes never mix their bytes in one file."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.part")


def remove_abandoned(path: Path, temporary: Path) -> None:
    """Remove what killed processes left under temporary names of ``path``; never what one still writes."""
    # The clock of the disk: that of this machine may differ from it.
    now = temporary.stat().st_mtime
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        # Gone already, or another user's: no reason to fail.
        with contextlib.suppress(OSError):
            if now - left.stat().st_mtime > ABANDONED:
                shutil.rmtree(left) if left.is_dir() else left.unlink()


def require_ordinary(path: Path) -> None:
    """Raise UserError where there is something at `path` that is no file: a pipe is waited for, a device never ends."""
    try:
        is_other = path.exists() and not path.is_file()
    except OSError:  # reading it will tell
        return
    if is_other:
        raise UserError(f"{path} is {'a folder' if path.is_dir() else 'a pipe or a device'}; name a file")


def require_writable(path: Path, *, suffix: str = "", option: str = "--out") -> None:
    """Raise UserError unless a file of this ``suffix`` can be written; called before the work starts."""
    try:
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        if path.is_dir():
            raise UserError(f"{option} {path} is a folder; name a file in it")
    except OSError as error:
        raise UserError(f"cannot write {option} {path}: {error.strerror}; name another place") from error
    if suffix and path.suffix != suffix:
        raise UserError(
            f"{option} {path}: the file written is of type {suffix}; name it {path.with_suffix(suffix).name}"
        )
    if not folder.is_dir():
        raise UserError(f"cannot write {option} {path}: {folder} is a file; name another place")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"cannot write {option} {path}: no permission in {folder}; name another place")


def file_sha256(path: Path) -> str:
    """Return the hexadecimal digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8, whole or not at all."""
    with replacing(path) as file:
        file.write(text.encode("utf-8"))

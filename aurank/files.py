"""Files are whole or not there: written under a temporary name, then renamed; read so that damage is one clear line."""

import contextlib
import glob
import hashlib
import json
import os
import pickle
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from aurank.errors import AurankError, UserError, explained
from aurank.launched import own_machine, trouble_of

T = TypeVar("T")
EXACT: dict[str, Any] = {"extra": "forbid", "allow_inf_nan": False}
"""The `__pydantic_config__` of a dataclass that `checked` makes of a file: no other entries, no infinity, no NaN."""
ABANDONED = 3600  # seconds without a byte after which a temporary file is a killed process's, of whatever machine


@contextmanager
def replacing(path: Path, *, displaced: Sequence[Path] = ()) -> Iterator[BinaryIO]:
    """A file to write that takes the place of ``path`` once it is complete and on disk.

    On any error the temporary file is removed and what was at ``path`` stays as it was; that of a killed process is
    removed by the next that writes ``path``. Of several processes that write one path at once, the last to end is the
    one whose file stays.

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
    return path.with_name(f".{path.name}.{_machine_mark()}{os.getpid():08x}{uuid.uuid4().hex[:8]}.part")


@cache
def _machine_mark() -> str:
    return hashlib.sha256(own_machine().encode()).hexdigest()[:8]


def remove_abandoned(path: Path, temporary: Path) -> None:
    """Remove what killed processes left under temporary names of ``path``; never what one still writes."""
    # The clock of the disk: that of this machine may differ from it.
    now = temporary.stat().st_mtime
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        # Gone already, or another user's: no reason to fail.
        with contextlib.suppress(OSError):
            if _has_no_writer(left) or now - left.stat().st_mtime > ABANDONED:
                shutil.rmtree(left) if left.is_dir() else left.unlink()


def _has_no_writer(temporary: Path) -> bool:
    """Whether a temporary name is of a process of this machine that has ended; of others this is not known."""
    written_by = re.search(rf"\.{_machine_mark()}([0-9a-f]{{8}})[0-9a-f]{{8}}\.part$", temporary.name)
    return written_by is not None and trouble_of(int(written_by[1], 16)) == "has ended"


_AGAIN = "copy or make it again"


@contextmanager
def reading(
    path: Path | str, what: str, *, remedy: str = _AGAIN, raising: type[UserError] = UserError
) -> Iterator[None]:
    """Turn whatever a damaged file makes a library raise into one line; all that reads the file stands inside.

    A UserError from inside passes, with the file before it where it lacks that; so does what the machine is short of.

    Args:
        path: the file or folder, or the name of the model in it.
        what: it should be, such as "a report".
        remedy: to be named.
        raising: the type of the error.

    Raises:
        UserError: names the file, what is wrong and the remedy.

    Example:
        >>> with reading("mine.json", "a report", remedy="evaluate again"):
        ...     {}["metrics"]
        Traceback (most recent call last):
        aurank.errors.UserError: mine.json: cannot be read as a report ('metrics' is missing); evaluate again
    """
    try:
        yield
    except UserError as error:
        if str(path) in str(error):
            raise
        raise UserError(f"{path}: {error}") from error
    except AurankError:
        raise
    except Exception as error:
        if explained(error) is not None:
            raise
        raise raising(f"{path}: cannot be read as {what} ({_said(error, str(path))}); {remedy}") from error


def _said(error: Exception, path: str) -> str:
    """Return what an error says of the file at a path, on one line."""
    if isinstance(error, MemoryError):  # advice on batches would lead astray: a whole file takes about its own size
        return "it is damaged, or larger than the memory of this machine"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if str(error.filename or path) in path else f"{error.filename}: {error.strerror}"
    if isinstance(error, KeyError):
        return f"{error} is missing"
    if isinstance(error, pickle.UnpicklingError):  # torch's own words advise to load it with all that it would run
        named = re.search(r"GLOBAL (\S+)", str(error))
        return "torch cannot read it" if named is None else f"to load it would run {named[1]}"
    return " ".join(str(error).split())[:200] or type(error).__name__


def read_record(
    path: Path, what: str, *, named: str, versions: tuple[int, ...] = (1,), remedy: str = _AGAIN
) -> dict[str, Any]:
    """Return the mapping in a JSON file, whose "format" and "version" say that it is `what` aurank writes.

    Raises:
        UserError: for any other file.
    """
    require_ordinary(path)
    with reading(path, what, remedy=remedy):
        content: Any = json.loads(path.read_bytes())
        require_version(content, path, what, named=named, versions=versions, remedy=remedy)
    record: dict[str, Any] = content
    return record


def require_version(
    content: Any, path: Path, what: str, *, named: str, versions: tuple[int | str, ...] = (1,), remedy: str = _AGAIN
) -> None:
    """Raise UserError unless a record has the format `named` so, in a version that this aurank reads."""
    if not isinstance(content, dict) or content.get("format") != named:
        raise UserError(f"{path} is not {what} of aurank: {remedy}")
    if (found := content.get("version")) not in versions:
        reads = f"version{'s' * (len(versions) > 1)} {' and '.join(map(str, versions))}"
        raise UserError(
            f"{path} is {what} of version {found!r}, and this aurank reads {reads}: update aurank, or {remedy}"
        )


def checked(value: Any, kind: Callable[..., T]) -> T:
    """Return a plain value, read from a file, as the dataclass or TypedDict that says what it holds.

    Raises:
        ValueError: names the first entry that is missing, unknown or of another type; "1" and true are no numbers.
        TypeError: a value that JSON does not have.

    Example:
        >>> checked({"a": [1]}, dict[str, list[int]])
        {'a': [1]}
        >>> checked({"a": ["x"]}, dict[str, list[int]])
        Traceback (most recent call last):
        ValueError: a.0: Input should be a valid integer
    """
    from pydantic import ValidationError

    try:
        # As JSON, whose lists may be tuples; what is no UTF-8 in it, as in names of files, is of no account here.
        text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
        _adapter(kind).validate_json(text, strict=True)
        fit: T = _adapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part)[:60] for part in first["loc"])
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from error
    return fit


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


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


def content_sha256(content: dict[str, Any]) -> str:
    """Return the hexadecimal digest of a mapping that is to be JSON, without its entry "checksum".

    Example:
        >>> content_sha256({"rows": 3}) == content_sha256({"rows": 3, "checksum": "of before"})
        True
    """
    kept = {name: value for name, value in content.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8, whole or not at all; a name of a file that is no UTF-8 is escaped."""
    with replacing(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))

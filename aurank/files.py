"""Files are whole or not there: written under a temporary name, then renamed; read so that damage is one clear line."""

import contextlib
import csv
import glob
import hashlib
import io
import json
import os
import pickle
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from aurank.errors import AurankError, UserError, explained

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
EXACT: dict[str, Any] = {"extra": "forbid", "allow_inf_nan": False}
"""The `__pydantic_config__` of a dataclass that `checked` makes of a file: no other entries, no infinity, no NaN."""
ABANDONED = 3600.0  # seconds without a byte after which a temporary file is that of a killed process
_AGAIN = "copy or make it again"


# -- writing ----------------------------------------------------------------------------------------------------------


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of ``path`` once it is complete and on disk; on any error all stays."""
    temporary = temporary_name(path)
    with _saving(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_temporaries(path.parent, path.name, age=ABANDONED)
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """A folder to fill that takes the place of ``path`` once it is complete; on any error all stays as it was."""
    path = path.resolve()  # of a link the folder is replaced, not the link
    staging, spare = temporary_name(path), temporary_name(path)
    try:
        with _saving(path):
            staging.mkdir(parents=True)
            remove_temporaries(path.parent, path.name, age=ABANDONED)
        yield staging
        with _saving(path), ExitStack() as undo:
            if path.exists():
                path.replace(spare)
                undo.callback(spare.replace, path)
            staging.replace(path)
            undo.pop_all()
    finally:
        for folder in (staging, spare):
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _saving(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise AurankError(f"cannot save {path}: {reason}; what was there before is untouched") from error


def temporary_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")


def remove_temporaries(folder: Path, name: str = "*", *, age: float = 0.0) -> None:
    """Remove the temporary files and folders of ``name`` that killed processes left, so many seconds old at least."""
    for path in folder.glob(f".{name if name == '*' else glob.escape(name)}.{'[0-9a-f]' * 32}.part"):
        with contextlib.suppress(OSError):  # gone already, or another user's
            if time.time() - path.stat().st_mtime >= age:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def write_text(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


LOCK = ".lock"


class InUse(UserError):
    """Another process writes there."""


@contextmanager
def claimed(out: Path, *, is_file: bool = False, name: str = "--out") -> Iterator[None]:
    """Create ``out``, or the folder of a file, and keep other processes from writing to it while the context lasts."""
    from filelock import FileLock, Timeout

    path = out.with_name(f".{out.name}{LOCK}") if is_file else out / LOCK
    created = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
    lock = FileLock(path, timeout=0)
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout as error:
            remedy = "wait for it or stop it, or name another place"
            raise InUse(f"{name} {out} is in use by another process; {remedy}") from error
        except OSError as error:
            raise UserError(f"cannot write to {name} {out}: {error.strerror or error}; name another place") from error
        remove_temporaries(out.parent, out.name)  # nobody else writes them now
        if not is_file:
            remove_temporaries(out)
        yield
    finally:
        if lock.is_locked:
            path.unlink(missing_ok=True)  # still locked: nobody takes another file for this one
        lock.release()
        with contextlib.suppress(OSError):  # not empty
            for folder in created:
                folder.rmdir()


# -- reading ----------------------------------------------------------------------------------------------------------


@contextmanager
def reading(path: Path | str, title: str, *, remedy: str = _AGAIN) -> Iterator[None]:
    """Turn whatever a damaged file makes a library raise into one line that names the file and the remedy."""
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError) and str(path) not in str(error):
            raise UserError(f"{path}: {error}") from error
        if isinstance(error, AurankError) or explained(error) is not None:
            raise
        raise UserError(f"{path}: cannot be read as {title} ({_reason(error, str(path))}); {remedy}") from error


def _reason(error: Exception, path: str) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if str(error.filename or path) in path else f"{error.filename}: {error.strerror}"
    if isinstance(error, KeyError):
        return f"{error} is missing"
    if isinstance(error, pickle.UnpicklingError):  # torch's own words advise to load it with all that it would run
        named = re.search(r"GLOBAL (\S+)", str(error))
        return "torch cannot read it" if named is None else f"to load it would run {named[1]}"
    return " ".join(str(error).split())[:200] or type(error).__name__


def read_record(
    path: Path, kind: Callable[..., T], title: str, *, named: str, version: int = 1, remedy: str = _AGAIN
) -> T:
    require_ordinary(path)
    with reading(path, title, remedy=remedy):
        content: Any = json.loads(path.read_bytes())
        if not isinstance(content, dict) or (content.get("format"), content.get("version")) != (named, version):
            raise UserError(f"{path} is not {title} of this aurank (version {version}): {remedy}")
        return checked(content, kind)


def checked(value: Any, kind: Callable[..., T]) -> T:
    """Return a plain value of a file as the dataclass or TypedDict that says what it holds; "1" is no number there."""
    # As JSON, whose lists may be tuples; what is no UTF-8 in it, as in names of files, is of no account here.
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    with _first_misfit():
        _adapter(kind).validate_json(text, strict=True)
        fit: T = _adapter(kind).validate_python(value)
    return fit


@contextmanager
def _first_misfit() -> Iterator[None]:
    from pydantic import ValidationError

    try:
        yield
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        entry = ".".join(str(part)[:60] for part in first["loc"])
        raise ValueError(f"{entry}: {first['msg']}" if entry else first["msg"]) from error


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def require_ordinary(path: Path) -> None:
    if os.path.exists(path) and not os.path.isfile(path):  # noqa: PTH110, PTH113 - which raise no OSError
        raise UserError(f"{path} is {'a folder' if path.is_dir() else 'a pipe or a device'}; name a file")


def require_writable(path: Path, *, suffix: str = "", option: str = "--out") -> None:
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    reasons = {
        "it is a folder; name a file in it": os.path.isdir(path),  # noqa: PTH112 - which raises no OSError
        f"the file written is of type {suffix}; name it {path.stem}{suffix}": suffix and path.suffix != suffix,
        f"{folder} is a file; name another place": not folder.is_dir(),
        f"no permission in {folder}; name another place": not os.access(folder, os.W_OK | os.X_OK),
    }
    for reason, applies in reasons.items():
        if applies:
            raise UserError(f"cannot write {option} {path}: {reason}")


def require_own_folder(folder: Path, *beginnings: str) -> None:
    """Raise UserError if a folder to write holds other files than hidden ones and those of these names."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    if strange := [name for name in names if not name.startswith((".", *beginnings))]:
        raise UserError(f"--out {folder} holds other files, such as {min(strange)!r}: name a new folder")


def require_absent(path: Path, *, overwrite: bool | None = None) -> None:
    """Raise UserError if the file exists and may not be replaced; without `--overwrite` to offer, it is None."""
    if path.exists() and not overwrite:
        replaced = "" if overwrite is None else ", or replace it with --overwrite"
        raise UserError(f"{path} exists already; name another file{replaced}")


def file_sha256(path: Path) -> str:
    require_ordinary(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_sha256(content: dict[str, Any]) -> str:
    signed = {name: value for name, value in content.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(signed, sort_keys=True).encode()).hexdigest()


_TENSOR = "$tensor"  # in a bundle's JSON, {"$tensor": NAME} stands for a tensor


def write_bundle(path: Path, content: Mapping[str, Any], title: str) -> None:
    """Write nested plain values as JSON in the header of a safetensors file, and tensors in it, with a SHA-256."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_taken_out(content, "", tensors))
    about = {"aurank": title, "content": text, "sha256": _bundle_sha256(text, tensors)}
    write_safetensors(path, tensors, bundle=json.dumps(about))


def write_safetensors(path: Path, state: Mapping[str, "Tensor"], **metadata: str) -> None:
    """Write tensors as a safetensors file; several entries of metadata would be written in any order."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, value in state.items():
        tensor = value.detach().cpu().contiguous()
        storage = tensor.untyped_storage()
        if storage.data_ptr() in storages or storage.nbytes() != tensor.nbytes:  # the writer takes no shared memory
            tensor = tensor.clone()
        storages.add(storage.data_ptr())
        tensors[name] = tensor
    with replacing(path) as file:
        try:
            save_file(tensors, file.name, metadata=metadata or {"format": "pt"})
        except SafetensorError as error:  # as of a full disk
            raise OSError(str(error)) from error


def read_bundle(path: Path, kind: Callable[..., T], title: str, *, remedy: str = _AGAIN) -> T:
    from safetensors import safe_open

    require_ordinary(path)
    with reading(path, title, remedy=remedy):
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        about = json.loads(metadata.get("bundle", "{}"))
        if about.get("aurank") != title:
            raise ValueError("it is something else")
        if _bundle_sha256(about["content"], tensors) != about["sha256"]:
            raise ValueError("its checksum is wrong")
        content = json.loads(
            about["content"], object_hook=lambda entry: tensors[entry[_TENSOR]] if _TENSOR in entry else entry
        )
        with _first_misfit():
            fit: T = _adapter(kind).validate_python(content)
    return fit


def _taken_out(value: Any, path: str, tensors: dict[str, "Tensor"]) -> Any:
    import numpy as np
    import torch

    if isinstance(value, np.ndarray):
        value = torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, torch.Tensor):
        tensors[path] = value.detach().cpu().contiguous()
        return {_TENSOR: path}
    if isinstance(value, Mapping):
        under = f"{path}/" if path else ""
        return {str(key): _taken_out(item, f"{under}{key}", tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_taken_out(item, f"{path}/{number}", tensors) for number, item in enumerate(value)]
    return value.item() if isinstance(value, np.generic) else value


def _bundle_sha256(text: str, tensors: Mapping[str, "Tensor"]) -> str:
    import torch

    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()

"""Whether a checkpoint is what was written: the sums of its archive, and a digest of every tensor in it."""

import hashlib
import json
import zipfile
from collections.abc import Iterator
from typing import Any, BinaryIO

import torch
from torch import Tensor

_CHUNK = 1 << 20
_EXPANSION = 16  # values may repeat each other, tensors their storage: how often, before it is taken for a bomb
_FEW, _ITEM = 20_000, 16  # values that any file may hold, and bytes of a file for each value beyond
_PATH = 32  # characters of a path that count as one byte: a short key names far larger values


class DamageError(ValueError):
    """The bytes are not those that were written; says which."""


def check_archive(file: BinaryIO) -> None:
    """Raise DamageError unless every record of a checkpoint's zip archive has its sum, at which torch does not look.

    Compressed records, which torch never writes, are refused, so that no more memory is needed than the file is long.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                if info.compress_type != zipfile.ZIP_STORED:
                    raise DamageError(f"record {info.filename!r} is compressed")
                with archive.open(info) as record:
                    while record.read(_CHUNK):
                        pass
    # Beside BadZipFile: what a damaged directory makes zipfile do, such as a negative seek or a name that is not UTF-8.
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError, EOFError) as error:
        raise DamageError(str(error)) from error
    file.seek(0)


def checksums(content: dict[str, Any]) -> dict[str, str]:
    """A digest of every tensor by its path ("encoder/head.weight"), and one of the rest of each part ("encoder:")."""
    found: dict[str, str] = {}
    for part, value in content.items():
        plain = hashlib.blake2b(digest_size=16)
        for path, item in _walk(value, str(part)):
            if isinstance(item, Tensor):
                while path in found:  # a key may hold a "/", or be a number here and text there
                    path += "'"
                found[path] = _digest(item)
            else:
                plain.update(json.dumps([path, type(item).__name__, repr(item)]).encode() + b"\n")
        found[f"{part}:"] = plain.hexdigest()
    return found


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every tensor and every plain value, in their order, with their paths; containers as their type and their keys."""
    if isinstance(value, dict | list | tuple):
        yield path, (type(value).__name__, list(value) if isinstance(value, dict) else len(value))
        # A state_dict carries the versions of its modules beside its items.
        yield from _walk(vars(value), f"{path}/.") if getattr(value, "__dict__", None) else ()
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if not isinstance(key, str | int):
                raise DamageError(f"{path} has a key of type {type(key).__name__}")
            yield from _walk(item, f"{path}/{key}")
    elif value is None or isinstance(value, Tensor | bool | int | float | str | bytes):
        yield path, value
    else:
        raise DamageError(f"{path} is of type {type(value).__name__}")


def _digest(tensor: Tensor) -> str:
    if tensor.layout != torch.strided:
        raise DamageError(f"a tensor of layout {tensor.layout}")
    digest = hashlib.blake2b(f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}".encode(), digest_size=16)
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def require_small(content: dict[str, Any], size: int) -> None:
    """Raise DamageError where the content, counted once for each reference to it, is far larger than the file.

    A few hundred bytes can hold lists that refer to each other so often that no walk through them ends.
    """
    claimed = visited = 0
    for part, value in content.items():
        for path, item in _walk(value, str(part)):
            visited += 1
            if visited > _FEW + size // _ITEM:
                raise DamageError(f"more than {visited - 1:,} values in the {size:,} bytes of the file")
            if isinstance(item, Tensor):
                claimed += item.numel() * item.element_size()
            elif isinstance(item, str | bytes):
                claimed += len(item)
            claimed += 1 + len(path) // _PATH
            if claimed > _EXPANSION * size:
                raise DamageError(f"values that take more than {_EXPANSION} times the {size:,} bytes of the file")


def first_difference(expected: Any, found: dict[str, str]) -> str | None:
    """The path whose sum is another or that is on one side only, None where all agree."""
    if not isinstance(expected, dict):
        return "checksums"
    return next((path for path in [*expected, *found] if expected.get(path) != found.get(path)), None)

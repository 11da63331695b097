"""Where the bytes of images come from: a folder, an archive, parts of files, or memory."""

import io
import os
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aurank.errors import UserError
from aurank.files import reading

# What operating systems and tools leave beside images: never data. Other names with a dot may be classes (".22 rifle").
_LITTER = {
    *("__MACOSX", ".DS_Store", "Thumbs.db", "desktop.ini", ".Spotlight-V100", ".Trashes", ".fseventsd"),
    *(".git", ".gitattributes", ".gitignore", ".gitkeep", ".hg", ".svn", ".dvc", ".idea", ".vscode", ".venv", ".tox"),
    *(".cache", ".ipynb_checkpoints", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".thumbnails"),
}


Mark = tuple[int, int]
"""What tells a file from a later one of the same name: its length, and its CRC-32 or, where `has_times`, its time."""


class ImageSource(ABC):
    """Where images come from. Paths are relative, with "/" between the parts, on every platform.

    A source may be pickled, forked and read by several threads at once. `where` names it in messages.

    Example:
        >>> isinstance(ArraySource({}), ImageSource)
        True
    """

    where: str
    entries: Mapping[str, Any] = {}  # by path, where they are known beforehand
    has_times = False  # nanoseconds since 1970, which marks then have: no file is read for them
    is_read_to_mark = False  # whether the mark of an image takes as long as the image itself

    @abstractmethod
    def content(self, path: str) -> bytes:
        """Return the content of one file; KeyError or FileNotFoundError where it is not there."""

    def exists(self, path: str) -> bool:
        """Return whether the source holds that file."""
        return path in self.entries

    def names(self) -> list[str]:
        """Return the paths of all files, sorted, without litter such as .DS_Store; links are followed once."""
        return sorted(self.entries)

    def marks(self, paths: Sequence[str]) -> list[Mark | None]:
        """Return the mark of each file, None where it is missing."""
        return [(len(data), zlib.crc32(data)) for data in map(self.read_bytes, paths)]

    def read_bytes(self, path: str) -> bytes:
        """Return the content of one file; UserError names the file if it is missing or cannot be read."""
        content: bytes = self._named(self.content, path)
        return content

    def _named(self, read: Callable[[str], Any], path: str) -> Any:
        try:
            return read(path)
        except (MemoryError, UserError):
            raise
        except (KeyError, FileNotFoundError):
            message = f"image {path!r} is not in {self.where}"
        # OSError; a zero byte in a name; of archives BadZipFile, zlib.error, an unknown method, a password.
        except Exception as error:
            message = f"image {path!r} in {self.where} cannot be read: {getattr(error, 'strerror', None) or error}"
        raise UserError(message)


def open_source(path: Path, *, prefix: str = "") -> ImageSource:
    """Return the folder or zip archive at `path`; paths start at the folder `prefix` inside it.

    Raises:
        UserError: where there is neither.

    Example:
        >>> open_source(Path(".")).exists("no such image.png")
        False
    """
    with reading(path, "a folder or an archive", remedy="name another"):  # longer than the file system takes
        if path.is_dir():
            return FolderSource(path / prefix)
        if path.is_file():
            return ZipSource(path, prefix=prefix)
    raise UserError(
        f"{path} does not exist; expected a folder or a zip archive of images: fetch it, or set "
        "data.root (or AURANK_DATA) to the folder that holds it"
    )


class FolderSource(ImageSource):
    """Files below one folder.

    Example:
        >>> FolderSource(Path("photos")).where
        'photos'
    """

    has_times = True

    def __init__(self, root: Path) -> None:
        self.root = root
        self.where = str(root)

    def content(self, path: str) -> bytes:
        file = self.root / path
        # A pipe or a device would be waited for, or never end.
        if file.exists() and not (file.is_file() or file.is_dir()):
            raise ValueError("it is a pipe or a device, no file; remove it")
        return file.read_bytes()

    def exists(self, path: str) -> bool:
        return os.path.isfile(self.root / path)  # noqa: PTH113  # False also for a name that is too long

    def names(self) -> list[str]:
        """Return the paths of all files; of a folder that links lead to several times by its own name, or the first."""
        names: list[str] = []
        seen: set[str] = set()
        starts = [str(self.root)]
        while starts:
            links: list[str] = []
            for start in starts:
                real = os.path.realpath(start)
                for folder, below, files in os.walk(start):
                    if real + folder[len(start) :] in seen:
                        below.clear()
                        continue
                    seen.add(real + folder[len(start) :])
                    links += [str(path) for name in below if (path := Path(folder, name)).is_symlink()]
                    inside = Path(folder).relative_to(self.root).as_posix()
                    names += files if inside == "." else [f"{inside}/{name}" for name in files]
            starts = sorted(links)
        return sorted(name for name in names if not _is_litter(name))

    def marks(self, paths: Sequence[str]) -> list[Mark | None]:
        marks: list[Mark | None] = []
        for path in paths:
            try:
                stat = os.stat(os.path.join(self.root, path))  # noqa: PTH116, PTH118  # there may be half a million
                marks.append((stat.st_size, stat.st_mtime_ns))
            except (OSError, ValueError):  # a zero byte in the name
                marks.append(None)
        return marks


class ZipSource(ImageSource):
    """Members of one zip archive below the folder `prefix` ("" is all of it).

    The archive is opened once in each process: a forked worker that shared its parent's file position would read
    garbage.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with zipfile.ZipFile(Path(folder, "a.zip"), "w") as archive:
        ...         archive.writestr("photos/1.png", b"")
        ...     print(ZipSource(Path(folder, "a.zip"), prefix="photos").names())
        ['1.png']
    """

    def __init__(self, file: Path, *, prefix: str = "") -> None:
        self.file = file
        self.prefix = f"{prefix.strip('/')}/" if prefix.strip("/.") else ""
        self.where = f"{file}/{self.prefix}".rstrip("/")
        self._opened: tuple[int, zipfile.ZipFile] | None = None
        self._archive()

    def _archive(self) -> zipfile.ZipFile:
        if self._opened is None or self._opened[0] != os.getpid():
            with reading(self.where, "a zip archive", remedy="fetch it again"):
                self._opened = (os.getpid(), zipfile.ZipFile(self.file))
        return self._opened[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def content(self, path: str) -> bytes:
        return self._archive().read(self.prefix + path)

    def marks(self, paths: Sequence[str]) -> list[Mark | None]:
        with zipfile.ZipFile(self.file) as archive:  # as it is now
            members = {info.filename: info for info in archive.infolist()}
        infos = [members.get(self.prefix + path) for path in paths]
        return [None if info is None else (info.file_size, info.CRC) for info in infos]

    def exists(self, path: str) -> bool:
        return self.prefix + path in self._archive().NameToInfo

    def names(self) -> list[str]:
        members = (name for name in self._archive().namelist() if name.startswith(self.prefix) and name[-1:] != "/")
        return sorted(name[len(self.prefix) :] for name in members if not _is_litter(name))


class ArraySource(ImageSource):
    """Images held in memory: uint8 arrays [height, width(, channel)], or calls that make such; their files are .npy.

    Example:
        >>> ArraySource({"a": np.zeros((2, 2), np.uint8)}).names()
        ['a']
    """

    def __init__(self, images: Mapping[str, Any], *, where: str = "memory") -> None:
        self.entries, self.where = dict(images), where

    def _array(self, path: str) -> Any:
        image = self.entries[path]
        return image() if callable(image) else image

    def pixels(self, path: str) -> np.ndarray:
        """Return the array itself, which `decode` takes without the way through a file."""
        array: np.ndarray = self._named(self._array, path)
        return array

    def content(self, path: str) -> bytes:
        buffer = io.BytesIO()
        np.save(buffer, self._array(path), allow_pickle=False)
        return buffer.getvalue()


class PartsSource(ImageSource):
    """Images inside of larger files or buffers; of each path: the part, where it starts there, and its length."""

    def __init__(
        self,
        parts: Sequence[Any],
        entries: Mapping[str, tuple[int, int, int]],
        *,
        where: str,
        reader: tuple[str, Path, Mapping[str, str]] | None = None,
    ) -> None:
        self.parts, self.entries, self.where, self.reader = parts, entries, where, reader
        self.has_times = all(isinstance(part, str) for part in parts)

    def content(self, path: str) -> bytes:
        number, start, length = self.entries[path]
        if not isinstance(part := self.parts[number], str):
            return bytes(part[start : start + length])
        with open(part, "rb") as file:  # noqa: PTH123
            file.seek(start)
            return file.read(length)

    def marks(self, paths: Sequence[str]) -> list[Mark | None]:
        if not self.has_times:
            return super().marks(paths)
        versions = [Path(part).stat().st_mtime_ns for part in self.parts]
        entries = (self.entries[path] for path in paths)
        return [(length, versions[number] + start) for number, start, length in entries]


def _is_litter(name: str) -> bool:
    *folders, file = name.split("/")
    return file.startswith("._") or not _LITTER.isdisjoint((*folders, file))

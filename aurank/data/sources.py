"""Where the bytes of images come from: a folder, a zip archive, or arrays in memory."""

import io
import os
import stat
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aurank.arrays import is_bomb
from aurank.errors import UserError
from aurank.files import reading

# What an operating system leaves beside the images: never data.
_LITTER = ("__MACOSX", "Thumbs.db", "desktop.ini")


class ImageSource(ABC):
    """Where images come from. Paths are relative, with "/" between the parts, on every platform.

    A source may be pickled, forked and read by several threads at once. `where` names it in messages.

    Example:
        >>> isinstance(ArraySource({}), ImageSource)
        True
    """

    where: str

    @abstractmethod
    def content(self, path: str) -> bytes:
        """Return the content of one file; KeyError or FileNotFoundError where it is not there."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Return whether the source holds that file."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the paths of all files, sorted, without what operating systems leave; links are followed once."""

    def read_bytes(self, path: str) -> bytes:
        """Return the content of one file; UserError names the file if it is missing or cannot be read."""
        try:
            return self.content(path)
        except (MemoryError, UserError):
            raise
        except (KeyError, FileNotFoundError):
            said = f"image {path!r} is not in {self.where}"
        # OSError; a zero byte in a name; of archives BadZipFile, zlib.error, an unknown method, a password.
        except Exception as error:
            said = f"image {path!r} in {self.where} cannot be read: {getattr(error, 'strerror', None) or error}"
        raise UserError(said)


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
        f"{path} does not exist; expected a folder or a zip archive of images: fetch it, or set data.root "
        "(or AURANK_DATA) to the folder that holds it"
    )


class FolderSource(ImageSource):
    """Files below one folder.

    Example:
        >>> FolderSource(Path("photos")).where
        'photos'
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.where = str(root)

    def content(self, path: str) -> bytes:
        file = self.root / path
        # A pipe or a device would be waited for, or never end.
        if not (stat.S_ISREG(kind := file.stat().st_mode) or stat.S_ISDIR(kind)):
            raise ValueError("it is a pipe or a device, no file; remove it")
        return file.read_bytes()

    def exists(self, path: str) -> bool:
        try:
            return (self.root / path).is_file()
        except OSError:  # a name longer than the file system takes
            return False

    def names(self) -> list[str]:
        found = []
        for folder, files in _folders(str(self.root)):
            inside = Path(folder).relative_to(self.root).as_posix()
            found += [name if inside == "." else f"{inside}/{name}" for name in files]
        return sorted(name for name in found if not _is_litter(name))


def _folders(root: str) -> Iterator[tuple[str, list[str]]]:
    """Yield every folder at or below one with its files, each once: by its own name, else by the first link to it."""
    seen: set[str] = set()
    waiting = [root]
    while waiting:
        links: list[str] = []
        for start in waiting:
            real = os.path.realpath(start)
            for folder, below, files in os.walk(start):
                if real + folder[len(start) :] in seen:
                    below.clear()
                    continue
                seen.add(real + folder[len(start) :])
                links += [str(path) for name in below if (path := Path(folder, name)).is_symlink()]
                yield folder, files
        waiting = sorted(links)


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
        self._size = file.stat().st_size if file.is_file() else 0
        self._archive()

    def _archive(self) -> zipfile.ZipFile:
        if self._opened is None or self._opened[0] != os.getpid():
            with reading(self.file, "a zip archive", remedy="fetch it again"):
                self._opened = (os.getpid(), zipfile.ZipFile(self.file))
        return self._opened[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def content(self, path: str) -> bytes:
        archive = self._archive()
        member = archive.NameToInfo[self.prefix + path]
        if is_bomb(member, self._size):
            claims = f"claims {member.file_size:,} bytes in {member.compress_size:,} of the archive"
            raise ValueError(f"it {claims}; no image is packed so densely: remove it")
        return archive.read(member)

    def members(self) -> dict[str, zipfile.ZipInfo]:
        """Return what the archive's own directory says of each member, by its whole name, as it is now."""
        with zipfile.ZipFile(self.file) as archive:
            return {info.filename: info for info in archive.infolist()}

    def exists(self, path: str) -> bool:
        return self.prefix + path in self._archive().NameToInfo

    def names(self) -> list[str]:
        members = (name for name in self._archive().namelist() if name.startswith(self.prefix) and name[-1:] != "/")
        return sorted(name[len(self.prefix) :] for name in members if not _is_litter(name))


class ArraySource(ImageSource):
    """Images held in memory: uint8 arrays [height, width] or [height, width, channel]; their files are .npy.

    Example:
        >>> ArraySource({"a": np.zeros((2, 2), np.uint8)}).names()
        ['a']
    """

    def __init__(self, images: Mapping[str, np.ndarray], *, where: str = "memory") -> None:
        self._images = dict(images)
        self.where = where

    def pixels(self, path: str) -> np.ndarray:
        """Return the array itself, which `decode` takes without the way through a file."""
        if path not in self._images:
            self.read_bytes(path)
        return self._images[path]

    def content(self, path: str) -> bytes:
        buffer = io.BytesIO()
        np.save(buffer, self._images[path], allow_pickle=False)
        return buffer.getvalue()

    def exists(self, path: str) -> bool:
        return path in self._images

    def names(self) -> list[str]:
        return sorted(self._images)


class BytesSource(ImageSource):
    """The bytes of one file, whatever its path, as a source."""

    def __init__(self, held: bytes, where: str) -> None:
        self.held, self.where = held, where

    def content(self, path: str) -> bytes:
        return self.held

    def exists(self, path: str) -> bool:
        return True

    def names(self) -> list[str]:
        return []


class FileMark(NamedTuple):
    """What tells a file from a later one of the same name without reading it: its length, and its time or its sum."""

    length: int
    modified: int | None  # nanoseconds since 1970, in a folder
    crc: int | None  # CRC-32 of the content, where it is at hand: in an archive and in memory


def file_marks(source: ImageSource, paths: Sequence[str]) -> list[FileMark | None]:
    """Return the mark of each file, None where it is missing."""
    if isinstance(source, FolderSource):
        return [_stat_mark(os.path.join(source.root, path)) for path in paths]  # noqa: PTH118  # there may be half a million
    if isinstance(source, ZipSource):
        members = source.members()
        held = [members.get(source.prefix + path) for path in paths]
        return [None if info is None else FileMark(info.file_size, None, info.CRC) for info in held]
    return [FileMark(len(data), None, zlib.crc32(data)) for data in map(source.read_bytes, paths)]


def _stat_mark(path: str) -> FileMark | None:
    try:
        found = os.stat(path)  # noqa: PTH116  # see above
    except (OSError, ValueError):  # a zero byte in the name
        return None
    return FileMark(found.st_size, found.st_mtime_ns, None)


def _is_litter(name: str) -> bool:
    return any(part.startswith(".") or part in _LITTER for part in name.split("/"))

"""Published sets from their public addresses: fetched, gone on with after an interruption, verified, unpacked."""

import errno
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aurank.data.readers import BENCHMARKS, READERS
from aurank.data.readers.published import FETCHED, PUBLISHED, Benchmark, check_benchmark
from aurank.errors import UserError
from aurank.extras import import_library
from aurank.files import claimed, reading, temporary_name
from aurank.names import meant, nearest

_CHUNK = 2**16  # what of it a broken connection delivered last is lost
_WAIT = 30.0  # seconds without an answer, or a byte
OnBytes = Callable[[int, int | None], None]


def fetch(name: str, root: Path, *, url: str | None = None, on_bytes: OnBytes | None = None) -> str:
    """Fetch a published set into the data folder, so that its reader finds it; return what is there then, in words.

    A file is written as FILE.part and gets its name once it is whole and, where an md5 is published, as published.

    Args:
        url: of a mirror: the file itself, or, of several files or where it ends in "/", the folder that holds them.
        on_bytes: called with the bytes of a file that are here and how many it has, None where the server does not say.
    """
    about = find_set(name)
    if not about.addresses:
        where = f"expected layout: {about.layout}; then `aurank data check {name} --root {root}`"
        raise UserError(
            f"{about.title} has no public address: get it from {about.origin} (terms: {about.terms}); {where}"
        )
    if not _problems(name, root):
        return f"{about.title} is in {root} already"
    with claimed(root / name, is_file=True, name="--to"):
        files = [root / file for file in about.addresses]
        for file in files:
            _fetch_file(about, file, _address(about, file.name, url), on_bytes or (lambda done, size: None))
        if about.unpack is not None:
            _unpack(files, root / about.unpack)
    if problems := _problems(name, root):
        remedy = f"remove {', '.join(map(str, files))} and run the command again, or get it from {about.origin}"
        raise UserError(f"{about.title} in {root} is not as published: {'; '.join(problems)}; {remedy}")
    spare = "" if about.unpack is None else f"; {' and '.join(map(str, files))} may go"
    return f"{about.title} is in {root}{spare}"


def find_set(name: str) -> Benchmark:
    known = {**FETCHED, **BENCHMARKS}
    if name not in known:
        raise UserError(f"no published set {name!r}, expected one of {', '.join(known)}{meant(nearest(name, known))}")
    return known[name]


def _problems(name: str, root: Path) -> tuple[str, ...]:
    try:
        if name in PUBLISHED:
            return check_benchmark(name, root, checksums=False).problems
        READERS[name](root)
    except UserError as error:  # a damaged archive, too
        return (str(error),)
    return ()


def _address(about: Benchmark, file: str, url: str | None) -> str:
    if url is None:
        return about.addresses[file]
    return url if len(about.addresses) == 1 and not url.endswith("/") else f"{url.rstrip('/')}/{file}"


def _fetch_file(about: Benchmark, file: Path, url: str, on_bytes: OnBytes) -> None:
    pooch, requests = (import_library(library, "fetching a set") for library in ("pooch", "requests"))
    pooch.get_logger().setLevel("ERROR")  # it has its own words for what is said here
    md5 = about.archives.get(file.name)
    known = None if md5 is None else f"md5:{md5}"
    download = _Resuming(file, on_bytes, room_for=1 if about.unpack is None else 2)
    again, mirror = "run the command again", f"get it from {about.origin}, or name a mirror with --url"
    try:
        pooch.retrieve(url, known, fname=file.name, path=file.parent, downloader=download)
        return
    except requests.HTTPError as error:
        said = f"{url} answers {error.response.status_code} {error.response.reason}: {mirror}"
    except requests.RequestException as error:
        cause = "it is no address of a file" if isinstance(error, ValueError) else _cause(error)
        said = f"{url} cannot be reached, or ended early ({cause}): {download.kept()}; {again}, or {mirror}"
    except ValueError:  # another checksum
        said = f"{url} is not {file.name} as published, of md5 {md5}: what came was removed; {again}, or {mirror}"
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        said = (
            f"{file.parent} has no room for {file.name} ({error.strerror}): {download.kept()}; free some, and {again}"
        )
    raise UserError(said)


def _cause(error: Exception) -> str:
    words = str(error).partition("(Caused by ")[2] or str(error)
    return words.rstrip(")").rpartition(": ")[2].strip("'\")") or type(error).__name__


class _Resuming:
    """A downloader for pooch, whose own begins anew: it keeps FILE.part, and goes on there if the server can."""

    def __init__(self, file: Path, on_bytes: OnBytes, *, room_for: int) -> None:
        self.file, self.on_bytes, self.room_for = file, on_bytes, room_for
        self.part, self.version = (file.with_name(f"{file.name}.{kind}") for kind in ("part", "version"))

    def kept(self) -> str:
        there = self.part.stat().st_size if self.part.exists() and self.version.exists() else 0
        return f"{there:,} bytes are kept in {self.part}" if there else "nothing is kept"

    def __call__(self, url: str, output: str, pooch: Any) -> None:
        import requests

        have = self.part.stat().st_size if self.part.exists() and self.version.exists() else 0
        # Of a file that has changed since, the server sends all.
        further = {"Range": f"bytes={have}-", "If-Range": self.version.read_text("utf-8")} if have else {}
        headers = {"Accept-Encoding": "identity", **further}
        with requests.get(url, headers=headers, stream=True, timeout=_WAIT) as answer:
            if answer.status_code == 416:  # all of it is there, or more
                self.version.unlink()
                self(url, output, pooch)
                return
            answer.raise_for_status()
            done = have if answer.status_code == 206 else 0
            length = answer.headers.get("Content-Length")
            size = None if length is None else done + int(length)
            free = shutil.disk_usage(self.file.parent).free
            if size is not None and (needed := self.room_for * size - done) > free:
                raise OSError(errno.ENOSPC, f"{needed:,} bytes needed, {free:,} free")
            with self.part.open("ab" if done else "wb") as file:
                version = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
                self.version.unlink(missing_ok=True)
                if version is not None and not version.startswith("W/"):
                    self.version.write_text(version, "utf-8")
                for chunk in answer.iter_content(_CHUNK):
                    file.write(chunk)
                    done += len(chunk)
                    self.on_bytes(done, size)
        if size is not None and done != size:
            raise requests.ConnectionError(f"{done:,} of {size:,} bytes came")
        self.part.replace(output)
        self.version.unlink(missing_ok=True)


def _unpack(archives: list[Path], folder: Path) -> None:
    staging = temporary_name(folder / "unpacked")
    try:
        for archive in archives:
            with reading(archive, "an archive", remedy="remove it, and run the command again"):
                if zipfile.is_zipfile(archive):
                    with zipfile.ZipFile(archive) as zipped:
                        zipped.extractall(staging)
                else:
                    with tarfile.open(archive) as tarred:
                        if not hasattr(tarfile, "data_filter"):  # without it files may land anywhere
                            raise UserError(f"{archive}: only Python 3.11.4 or later unpacks it safely")
                        tarred.extractall(staging, filter="data")
        for entry in staging.iterdir():
            if (folder / entry.name).exists():
                raise UserError(f"{folder / entry.name} is there, and not as published: move it away, and run again")
        for entry in staging.iterdir():
            entry.replace(folder / entry.name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)

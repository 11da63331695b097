"""Published sets from their public addresses: fetched, gone on with after an interruption, verified, unpacked."""

import errno
import hashlib
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from aurank.data.readers import BENCHMARKS, READERS
from aurank.data.readers.published import FETCHED, PUBLISHED, Benchmark, check_benchmark
from aurank.errors import UserError
from aurank.extras import import_library
from aurank.files import claimed, reading, temporary_name
from aurank.names import meant, nearest

_CHUNK = 2**16  # bytes that a broken connection loses
_WAIT = 30.0  # seconds without an answer, or a byte
OnBytes = Callable[[int, int | None], None]


def fetch(name: str, root: Path, *, url: str | None = None, on_bytes: OnBytes | None = None) -> str:
    """Fetch a published set into the data folder, so that its reader finds it; return what is there then, in words.

    A file is written as FILE.part and gets its name once it is whole and, where an md5 is published, as published.

    Args:
        name: a published set, such as omniglot, grocery or cub200.
        url: a mirror: the file's address, or, of several files or where it ends in "/", that of their folder.
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
            address = about.addresses[file.name]
            if url is not None:
                address = url if len(files) == 1 and not url.endswith("/") else f"{url.rstrip('/')}/{file.name}"
            _fetch_file(about, file, address, on_bytes or (lambda done, size: None))
        if about.unpack is not None:
            _unpack(files, root / about.unpack)
    if problems := _problems(name, root):
        remedy = f"remove {', '.join(map(str, files))} and run the command again, or get it from {about.origin}"
        raise UserError(f"{about.title} in {root} is not as published: {'; '.join(problems)}; {remedy}")
    spare = "" if about.unpack is None else f"; {' and '.join(map(str, files))} may go"
    return f"{about.title} is in {root}{spare}"


def find_set(name: str) -> Benchmark:
    sets = {**FETCHED, **BENCHMARKS}
    if name not in sets:
        raise UserError(f"no published set {name!r}, expected one of {', '.join(sets)}{meant(nearest(name, sets))}")
    return sets[name]


def _problems(name: str, root: Path) -> tuple[str, ...]:
    try:
        if name in PUBLISHED:
            return check_benchmark(name, root, checksums=False).problems
        READERS[name](root)
    except UserError as error:  # a damaged archive, too
        return (str(error),)
    return ()


def _fetch_file(about: Benchmark, file: Path, url: str, on_bytes: OnBytes) -> None:
    requests: Any = import_library("requests", "fetching a set")
    md5 = about.archives.get(file.name)
    if file.exists() and md5 in (None, _md5(file)):
        return
    part = file.with_name(f"{file.name}.part")
    again, mirror = "run the command again", f"get it from {about.origin}, or name a mirror with --url"
    try:
        _download(url, part, on_bytes)
    except requests.HTTPError as error:
        message = f"{url} answers {error.response.status_code} {error.response.reason}: {mirror}"
    except requests.RequestException as error:
        words = str(error).partition("(Caused by ")[2] or str(error)
        cause = words.rstrip(")").rpartition(": ")[2].strip("'\")") or type(error).__name__
        cause = "it is no address of a file" if isinstance(error, ValueError) else cause
        message = f"{url} cannot be reached, or ended early ({cause}): {_rest(part)}; {again}, or {mirror}"
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        reason = f"{file.parent} has no room for {file.name} ({error.strerror})"
        message = f"{reason}: {_rest(part)}; free some, and {again}"
    else:
        if md5 in (None, _md5(part)):
            part.replace(file)
            return
        part.unlink()
        message = f"{url} is not {file.name} as published, of md5 {md5}: what came was removed; {again}, or {mirror}"
    raise UserError(message)


def _md5(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, partial(hashlib.md5, usedforsecurity=False)).hexdigest()


def _version(part: Path) -> Path:
    """Return the file with what names the content of a part; without it the server cannot go on from where it ended."""
    return part.with_suffix(".version")


def _rest(part: Path) -> str:
    can_go_on = part.exists() and _version(part).exists() and part.stat().st_size
    return f"{part.stat().st_size:,} bytes are kept in {part}" if can_go_on else "nothing is kept"


def _download(url: str, part: Path, on_bytes: OnBytes) -> None:
    """Write a whole file as `part`, from where it ended if the server can."""
    import requests

    version, headers, start = _version(part), {"Accept-Encoding": "identity"}, 0
    if part.exists() and version.exists():  # of a file that has changed since, the server sends all
        start = part.stat().st_size
        headers |= {"Range": f"bytes={start}-", "If-Range": version.read_text("utf-8")} if start else {}
    with requests.get(url, headers=headers, stream=True, timeout=_WAIT) as answer:
        if answer.status_code == 416:  # all of it is there, or more
            version.unlink()
            return _download(url, part, on_bytes)
        answer.raise_for_status()
        done = start if answer.status_code == 206 else 0
        length = answer.headers.get("Content-Length")
        size = None if length is None else done + int(length)
        with part.open("ab" if done else "wb") as file:
            tag = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
            version.unlink(missing_ok=True)
            if tag is not None and not tag.startswith("W/"):
                version.write_text(tag, "utf-8")
            for chunk in answer.iter_content(_CHUNK):
                file.write(chunk)
                done += len(chunk)
                on_bytes(done, size)
    if size is not None and done != size:
        raise requests.ConnectionError(f"{done:,} of {size:,} bytes came")
    version.unlink(missing_ok=True)


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
                        tarred.extractall(staging, filter="data")  # which Python knows from 3.11.4 on
        entries = [*staging.iterdir()]
        if existing := next((entry.name for entry in entries if (folder / entry.name).exists()), None):
            raise UserError(f"{folder / existing} is there, and not as published: move it away, and run again")
        for entry in entries:
            entry.replace(folder / entry.name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)

"""Published sets from their public addresses: fetched, verified, unpacked."""

import hashlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from aurank.data.readers import BENCHMARKS, READERS
from aurank.data.readers.published import FETCHED, PUBLISHED, Benchmark, check_benchmark, file_md5
from aurank.errors import UserError, first_line
from aurank.files import claimed, reading, replacing, temporary_name
from aurank.lazy import import_library
from aurank.names import require_choice

_CHUNK = 2**20  # bytes
_WAIT = 30.0  # seconds without an answer, or a byte
OnBytes = Callable[[int, int | None], None]
PUBLIC_SETS: Mapping[str, Benchmark] = {**FETCHED, **BENCHMARKS}


def fetch(name: str, root: Path, *, url: str | None = None, on_bytes: OnBytes | None = None) -> str:
    """Fetch a published set into the data folder, so that its reader finds it; return what is there then, in words.

    A file gets its name once it is whole and, where an md5 is published, as published.

    Args:
        name: a published set, such as omniglot, grocery or cub200.
        url: a mirror: the file's address, or, of several files or where it ends in "/", that of their folder.
        on_bytes: called with the bytes of a file that are here and how many it has, None where the server does not say.
    """
    about = PUBLIC_SETS[require_choice("the published set", name, PUBLIC_SETS)]
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
    return f"{about.title} is in {root}" + (f"; {' and '.join(map(str, files))} may go" if about.unpack else "")


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
    if file.exists() and md5 in (None, file_md5(file)):
        return
    remedy = f"run the command again, get it from {about.origin}, or name a mirror with --url"
    digest, done = hashlib.md5(usedforsecurity=False), 0
    with replacing(file) as opened:
        try:
            with requests.get(url, headers={"Accept-Encoding": "identity"}, stream=True, timeout=_WAIT) as answer:
                answer.raise_for_status()
                size = int(answer.headers["Content-Length"]) if "Content-Length" in answer.headers else None
                for chunk in answer.iter_content(_CHUNK):
                    opened.write(chunk)
                    digest.update(chunk)
                    done += len(chunk)
                    on_bytes(done, size)
        except requests.RequestException as error:
            raise UserError(f"{url} cannot be fetched ({first_line(error)}): {remedy}") from None
        if md5 not in (None, digest.hexdigest()):
            raise UserError(f"{url} is not {file.name} as published, of md5 {md5}: {remedy}")


def _unpack(archives: list[Path], folder: Path) -> None:
    staging = temporary_name(folder / "unpacked")
    try:
        for archive in archives:
            with reading(archive, "an archive", remedy="remove it, and run the command again"):
                shutil.unpack_archive(archive, staging, filter=None if archive.suffix == ".zip" else "data")
        entries = [*staging.iterdir()]
        if existing := next((entry.name for entry in entries if (folder / entry.name).exists()), None):
            raise UserError(f"{folder / existing} is there, and not as published: move it away, and run again")
        for entry in entries:
            entry.replace(folder / entry.name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)

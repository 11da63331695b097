"""Sets are fetched from a server on the loopback: whole, in pieces, and in every way that goes wrong."""

import errno
import hashlib
import io
import os
import shutil
import socket
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from testing.trees import cub_tree, grocery_tree, omniglot_zip, publish_small_sizes, zip_tree

from aurank.data import BENCHMARKS, READERS
from aurank.data.download import fetch
from aurank.data.readers.published import FETCHED
from aurank.errors import UserError

ZIP = "GroceryStoreDataset-master.zip"


class Server:
    """What a server has and how it behaves; `asked` are the Range headers that came, "" for none."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.ranges, self.version, self.cut = True, '"1"', 0  # bytes after which a connection ends, 0 for never
        self.asked: list[str] = []
        about = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                about.asked.append(self.headers.get("Range", ""))
                content = about.files.get(self.path.lstrip("/"))
                if content is None:
                    self.send_error(404)
                    return
                first = 0
                if about.ranges and about.asked[-1] and self.headers.get("If-Range") == about.version:
                    first = int(about.asked[-1].removeprefix("bytes=").rstrip("-"))
                self.send_response(416 if first >= len(content) else 206 if first else 200)
                self.send_header("Content-Length", str(max(0, len(content) - first)))
                self.send_header("ETag", about.version)
                self.end_headers()
                self.wfile.write(content[first : about.cut or None])

            def log_message(self, *words: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    publish_small_sizes(monkeypatch)
    made = Server()
    for about in FETCHED.values():
        for file in about.addresses:
            monkeypatch.setitem(about.addresses, file, f"{made.url}/{file}")
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@pytest.fixture
def groceries(server: Server, tmp_path: Path) -> bytes:
    folder = grocery_tree(tmp_path / "made")
    server.files[ZIP] = zip_tree(folder, tmp_path / ZIP, prefix=f"{folder.name}/").read_bytes()
    return server.files[ZIP]


def refusal(name: str, root: Path, **options: object) -> str:
    with pytest.raises(UserError) as error:
        fetch(name, root, **options)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_set_is_fetched_and_read_and_not_fetched_again(server: Server, groceries: bytes, tmp_path: Path) -> None:
    root, seen = tmp_path / "data", list[tuple[int, int | None]]()
    assert fetch("grocery", root, on_bytes=lambda *bytes: seen.append(bytes)) == f"Grocery Store Dataset is in {root}"
    assert [path.name for path in root.iterdir()] == [ZIP]
    assert READERS["grocery"](root).sha256 == READERS["grocery"](tmp_path / "made").sha256
    assert seen[-1] == (len(groceries), len(groceries))
    assert fetch("grocery", root) == f"Grocery Store Dataset is in {root} already"
    assert server.asked == [""]


def same(server: Server) -> None:
    pass


def no_ranges(server: Server) -> None:
    server.ranges = False


def another_version(server: Server) -> None:
    server.version = '"2"'


@pytest.mark.parametrize("change", [same, no_ranges, another_version])
def test_an_interrupted_download_goes_on_where_the_server_can(
    server: Server, groceries: bytes, tmp_path: Path, change: Callable[[Server], None]
) -> None:
    root, server.cut = tmp_path / "data", 70_000
    said = refusal("grocery", root)
    assert f"65,536 bytes are kept in {root / ZIP}.part; run the command again" in said
    assert not (root / ZIP).exists()
    server.cut = 0
    change(server)
    seen = list[tuple[int, int | None]]()
    fetch("grocery", root, on_bytes=lambda *bytes: seen.append(bytes))
    assert server.asked == ["", "bytes=65536-"]
    assert (root / ZIP).read_bytes() == groceries
    assert seen[-1] == (len(groceries), len(groceries))
    assert [path.name for path in root.iterdir()] == [ZIP]


def test_another_checksum_or_content_is_not_taken(server: Server, groceries: bytes, tmp_path: Path) -> None:
    root = tmp_path / "data"
    server.files["Stanford_Online_Products.zip"] = groceries
    assert "as published, of md5 7f73d41a2f44250d4779881525aea32e: what came was removed; run" in refusal("sop", root)
    assert list(root.iterdir() if root.exists() else ()) == []
    server.files[ZIP] = groceries[:5000]
    assert f"cannot be read as a zip archive (File is not a zip file); fetch it again; remove {root / ZIP}" in refusal(
        "grocery", root
    )
    folder = grocery_tree(tmp_path / "fewer", images=3)
    (root / ZIP).unlink()
    server.files[ZIP] = zip_tree(folder, tmp_path / "fewer.zip", prefix=f"{folder.name}/").read_bytes()
    assert "has 45 images of 15 classes, expected 90 images of 15 classes" in refusal("grocery", root)


def test_a_full_disk_is_told_and_keeps_what_came(server: Server, groceries: bytes, tmp_path: Path) -> None:
    root = tmp_path / "data"

    def full(*bytes: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    said = refusal("grocery", root, on_bytes=full)
    assert "(No space left on device): 65,536 bytes are kept in" in said
    assert not (root / ZIP).exists()
    fetch("grocery", root)


def test_no_network_no_such_file_and_no_address_are_told(server: Server, tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    said = refusal("grocery", tmp_path / "data", url=f"http://127.0.0.1:{port}/file.zip")
    assert f"http://127.0.0.1:{port}/file.zip cannot be reached, or ended early (" in said
    assert "Connection refused): nothing is kept; run the command again, or get it from https://github.com" in said
    assert f"{server.url}/{ZIP} answers 404 Not Found: get it from https" in refusal("grocery", tmp_path / "data")
    assert "(it is no address of a file): nothing is kept" in refusal("grocery", tmp_path / "data", url="mirror")
    assert not (tmp_path / "data").exists()


def packed(folder: Path, *, further: str | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(folder, folder.name)
        if further is not None:
            archive.addfile(tarfile.TarInfo(further), io.BytesIO(b""))
    return buffer.getvalue()


@pytest.mark.skipif(not hasattr(tarfile, "data_filter"), reason="older Pythons unpack no tar")
def test_an_archive_is_unpacked_where_the_reader_looks_and_nowhere_else(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, file = tmp_path / "data", "CUB_200_2011.tgz"
    for further in ("../outside", None):
        server.files[file] = packed(cub_tree(tmp_path / str(further)), further=further)
        monkeypatch.setitem(BENCHMARKS["cub200"].archives, file, hashlib.md5(server.files[file]).hexdigest())
        if further is not None:
            assert f"{root / file}: cannot be read as an archive ('../outside' would be" in refusal("cub200", root)
            assert not (tmp_path / "outside").exists()
    assert fetch("cub200", root) == f"CUB-200-2011 is in {root}; {root / file} may go"
    assert sorted(path.name for path in root.iterdir()) == ["CUB_200_2011", file]
    assert len(READERS["cub200"](root)) == 9


def test_a_mirror_of_several_files_is_their_folder(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    omniglot_zip(tmp_path / "omniglot_full.zip")
    shutil.unpack_archive(tmp_path / "omniglot_full.zip", tmp_path / "whole")
    for file in FETCHED["omniglot"].addresses:
        part = file.removesuffix(".zip")
        made = zip_tree(tmp_path / "whole" / part, tmp_path / file, prefix=f"{part}/").read_bytes()
        server.files[f"mirror/{file}"] = made
        monkeypatch.setitem(FETCHED["omniglot"].archives, file, hashlib.md5(made).hexdigest())
    root = tmp_path / "data"
    assert "answers 404 Not Found" in refusal("omniglot", root)
    fetch("omniglot", root, url=f"{server.url}/mirror")
    assert READERS["omniglot"](root).sha256 == READERS["omniglot"](tmp_path).sha256


@pytest.mark.skipif(not hasattr(tarfile, "data_filter"), reason="older Pythons unpack no tar")
def test_what_lies_there_otherwise_is_left_alone(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, file = tmp_path / "data", "CUB_200_2011.tgz"
    server.files[file] = packed(cub_tree(tmp_path))
    monkeypatch.setitem(BENCHMARKS["cub200"].archives, file, hashlib.md5(server.files[file]).hexdigest())
    (root / "CUB_200_2011").mkdir(parents=True)
    assert f"{root / 'CUB_200_2011'} is there, and not as published: move it away" in refusal("cub200", root)
    assert list((root / "CUB_200_2011").iterdir()) == []


@pytest.mark.parametrize("name", sorted(BENCHMARKS.keys() - FETCHED.keys()))
def test_a_set_without_an_address_says_where_to_ask(name: str, tmp_path: Path) -> None:
    said = refusal(name, tmp_path)
    assert f"{BENCHMARKS[name].title} has no public address: get it from {BENCHMARKS[name].origin} (terms: " in said


def test_every_set_that_is_fetched_is_verified_by_md5_or_by_a_reader_that_counts() -> None:
    for name, about in FETCHED.items():
        assert about.addresses.keys() <= about.archives.keys() or name in BENCHMARKS
        assert all(address.startswith("https://") for address in about.addresses.values())
    with pytest.raises(UserError, match=r"no published set 'omniglt', expected .* did you mean 'omniglot'"):
        fetch("omniglt", Path("data"))

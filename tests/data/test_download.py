"""Sets are fetched from a server on the loopback: whole, and in every way that goes wrong."""

import errno
import hashlib
import io
import os
import shutil
import socket
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from testing.refusals import refused
from testing.trees import cub_tree, grocery_tree, omniglot_zip, publish_small_sizes, zip_tree

from aurank.data import BENCHMARKS, READERS
from aurank.data.download import fetch
from aurank.data.readers.published import FETCHED
from aurank.errors import AurankError

ZIP = "GroceryStoreDataset-master.zip"


class Server:
    """What a server has, how it behaves, and how often it was asked."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cut = 0  # bytes after which a connection ends, 0 for never
        self.asked = 0
        about = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                about.asked += 1
                content = about.files.get(self.path.lstrip("/"))
                if content is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: about.cut or None])

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
    return refused("", fetch, name, root, **options)


def test_a_set_is_fetched_and_read_and_not_fetched_again(server, groceries, tmp_path):
    root, seen = tmp_path / "data", list[tuple[int, int | None]]()
    assert fetch("grocery", root, on_bytes=lambda *bytes: seen.append(bytes)) == f"Grocery Store Dataset is in {root}"
    assert [path.name for path in root.iterdir()] == [ZIP]
    assert READERS["grocery"](root).sha256 == READERS["grocery"](tmp_path / "made").sha256
    assert seen[-1] == (len(groceries), len(groceries))
    assert fetch("grocery", root) == f"Grocery Store Dataset is in {root} already"
    assert server.asked == 1


def test_another_checksum_or_content_is_not_taken(server, groceries, tmp_path):
    root = tmp_path / "data"
    server.files["Stanford_Online_Products.zip"] = groceries
    assert "as published, of md5 7f73d41a2f44250d4779881525aea32e: run the command again" in refusal("sop", root)
    assert list(root.iterdir() if root.exists() else ()) == []
    server.files[ZIP] = groceries[:5000]
    said = refusal("grocery", root)
    assert f"cannot be read as a zip archive (File is not a zip file); fetch it again; remove {root / ZIP}" in said
    folder = grocery_tree(tmp_path / "fewer", images=3)
    (root / ZIP).unlink()
    server.files[ZIP] = zip_tree(folder, tmp_path / "fewer.zip", prefix=f"{folder.name}/").read_bytes()
    assert "has 45 images of 15 classes, expected 90 images of 15 classes" in refusal("grocery", root)


def test_a_full_disk_and_a_broken_connection_leave_nothing(server, groceries, tmp_path):
    root = tmp_path / "data"

    def full(*bytes: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(AurankError, match=rf"cannot save {root / ZIP}: No space left on device"):
        fetch("grocery", root, on_bytes=full)
    server.cut = 70_000
    assert "run the command again" in refusal("grocery", root)
    assert not root.exists()


def test_no_network_no_such_file_and_no_address_are_told(server, tmp_path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    assert "Connection refused" in refusal("grocery", tmp_path / "data", url=f"http://127.0.0.1:{port}/file.zip")
    assert f"{server.url}/{ZIP} cannot be fetched (404 Client Error" in refusal("grocery", tmp_path / "data")
    assert "mirror cannot be fetched (Invalid URL" in refusal("grocery", tmp_path / "data", url="mirror")
    assert not (tmp_path / "data").exists()


def packed(folder: Path, *, further: str | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(folder, folder.name)
        if further is not None:
            archive.addfile(tarfile.TarInfo(further), io.BytesIO(b""))
    return buffer.getvalue()


@pytest.mark.skipif(not hasattr(tarfile, "data_filter"), reason="older Pythons unpack no tar")
def test_an_archive_is_unpacked_where_the_reader_looks_and_nowhere_else(server, tmp_path, monkeypatch):
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


def test_a_mirror_of_several_files_is_their_folder(server, tmp_path, monkeypatch):
    omniglot_zip(tmp_path / "omniglot_full.zip")
    shutil.unpack_archive(tmp_path / "omniglot_full.zip", tmp_path / "whole")
    for file in FETCHED["omniglot"].addresses:
        part = file.removesuffix(".zip")
        made = zip_tree(tmp_path / "whole" / part, tmp_path / file, prefix=f"{part}/").read_bytes()
        server.files[f"mirror/{file}"] = made
        monkeypatch.setitem(FETCHED["omniglot"].archives, file, hashlib.md5(made).hexdigest())
    root = tmp_path / "data"
    assert "404 Client Error" in refusal("omniglot", root)
    fetch("omniglot", root, url=f"{server.url}/mirror")
    assert READERS["omniglot"](root).sha256 == READERS["omniglot"](tmp_path).sha256


@pytest.mark.skipif(not hasattr(tarfile, "data_filter"), reason="older Pythons unpack no tar")
def test_what_lies_there_otherwise_is_left_alone(server, tmp_path, monkeypatch):
    root, file = tmp_path / "data", "CUB_200_2011.tgz"
    server.files[file] = packed(cub_tree(tmp_path))
    monkeypatch.setitem(BENCHMARKS["cub200"].archives, file, hashlib.md5(server.files[file]).hexdigest())
    (root / "CUB_200_2011").mkdir(parents=True)
    assert f"{root / 'CUB_200_2011'} is there, and not as published: move it away" in refusal("cub200", root)
    assert list((root / "CUB_200_2011").iterdir()) == []


@pytest.mark.parametrize("name", sorted(BENCHMARKS.keys() - FETCHED.keys()))
def test_a_set_without_an_address_says_where_to_ask(name, tmp_path):
    said = refusal(name, tmp_path)
    assert f"{BENCHMARKS[name].title} has no public address: get it from {BENCHMARKS[name].origin} (terms: " in said


def test_every_set_that_is_fetched_is_verified_by_md5_or_by_a_reader_that_counts():
    for name, about in FETCHED.items():
        assert about.addresses.keys() <= about.archives.keys() or name in BENCHMARKS
        assert all(address.startswith("https://") for address in about.addresses.values())
    refused(r"published set must be one of .* did you mean 'omniglot'", fetch, "omniglt", Path("data"))

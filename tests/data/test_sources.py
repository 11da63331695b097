import multiprocessing
import os
import pickle
import struct
import threading
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from testing.refusals import refused
from testing.trees import pixels, png, write_tree, zip_tree

from aurank.arrays import load_arrays
from aurank.data import ArraySource, FolderSource, ImageSource, ZipSource, open_source
from aurank.data.decode import decode, quiet_decoding
from aurank.errors import UserError

NAMES = ["a/1.png", "a/2.png", "b/c/3.png"]


@pytest.fixture(params=["folder", "zip", "zip below a prefix", "arrays"])
def source(request, tmp_path):
    tree = write_tree(tmp_path / "tree", NAMES)
    if request.param == "folder":
        return open_source(tree)
    if request.param == "arrays":
        return ArraySource({name: pixels(seed) for seed, name in enumerate(NAMES)})
    prefix = "deep/inside/" if "prefix" in request.param else ""
    return open_source(zip_tree(tree, tmp_path / "tree.zip", prefix=prefix), prefix=prefix)


def test_every_source_gives_the_same_names_and_pixels_and_names_a_missing_image(source):
    assert isinstance(source, ImageSource)
    assert source.names() == NAMES
    assert source.exists("a/1.png")
    assert not source.exists("a")
    assert not source.exists("a/4.png")
    refused(r"image 'a/4\.png' is not in ", source.read_bytes, "a/4.png")
    source = pickle.loads(pickle.dumps(source))
    for seed, name in enumerate(NAMES):
        np.testing.assert_array_equal(decode(source, name, 3), pixels(seed))


def test_a_source_may_be_read_by_threads(source):
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(source.read_bytes, NAMES * 50))
    assert read == [source.read_bytes(name) for name in NAMES] * 50


def _read_many(source, name, count, answers):
    answers.put({source.read_bytes(name) for _ in range(count)})


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_forked_processes_read_at_once_without_disturbing_each_other(source):
    threads = threading.active_count()  # those of a library that another test has used included
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    workers = [context.Process(target=_read_many, args=(source, name, 100, answers)) for name in NAMES]
    for worker in workers:
        worker.start()
    own = {source.read_bytes(NAMES[0]) for _ in range(100)}
    found = [answers.get() for _ in workers]
    for worker in workers:
        worker.join()
    assert own == {source.read_bytes(NAMES[0])}
    assert sorted(len(one) for one in found) == [1, 1, 1]
    assert set.union(*found) == {source.read_bytes(name) for name in NAMES}
    assert threading.active_count() == threads


def test_litter_is_not_listed_and_a_folder_with_a_dot_is(tmp_path):
    litter = ["a/._1.png", "__MACOSX/a/1.png", ".git/2.png", ".ipynb_checkpoints/3.png", "a/Thumbs.db", "a/.DS_Store"]
    tree = write_tree(tmp_path / "tree", [".22 rifle/1.png", "a/1.png", *litter])
    assert FolderSource(tree).names() == [".22 rifle/1.png", "a/1.png"]
    assert ZipSource(zip_tree(tree, tmp_path / "tree.zip")).names() == [".22 rifle/1.png", "a/1.png"]


def test_a_folder_that_is_missing_or_an_archive_that_is_none_is_refused(tmp_path):
    refused("does not exist; expected a folder or a zip archive", open_source, tmp_path / "none")
    (tmp_path / "text.zip").write_text("no archive")
    refused(r"text\.zip: cannot be read as a zip archive .*; fetch it again", open_source, tmp_path / "text.zip")
    refused(r"none\.zip: cannot be read as a zip archive", ZipSource, tmp_path / "none.zip")


def test_a_damaged_member_is_named(tmp_path):
    file = tmp_path / "tree.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("good.png", png(0))
        archive.writestr("bad.png", png(1))
    data = bytearray(file.read_bytes())
    data[data.index(png(1)) + 60] ^= 255
    file.write_bytes(data)
    source = ZipSource(file)
    assert source.read_bytes("good.png") == png(0)
    refused(r"image 'bad\.png' in .* cannot be read: Bad CRC", source.read_bytes, "bad.png")


# -- Files that are endless, or made to harm: one clear error each, and little memory


@pytest.mark.parametrize("name", ["a" * 300 + ".png", "a\x00b.png"])
def test_a_name_that_no_file_can_have_is_missing(tmp_path, name):
    source = FolderSource(write_tree(tmp_path, NAMES))
    assert not source.exists(name)
    with pytest.raises(UserError):
        source.read_bytes(name)
    with pytest.raises(UserError):
        open_source(tmp_path / name)


def blank_png(width: int, height: int) -> bytes:
    """Returns a PNG that claims this size, with no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    start = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", start) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("width", "height", "said"),
    [
        (178_000_000, 1, "178,000,000 × 1 pixels are more than data.max_pixels=128,000,000"),
        (13_000, 13_000, "13,000 × 13,000 pixels are more than data.max_pixels"),
        (1, 100_000, "a strip of 1 × 100,000 pixels"),
    ],
)
def test_an_image_too_large_to_hold_is_not_decoded(tmp_path, width, height, said):
    (tmp_path / "x.png").write_bytes(blank_png(width, height))
    with quiet_decoding(), pytest.raises(UserError, match=said):
        decode(FolderSource(tmp_path), "x.png", 3)
    np.save(tmp_path / "x.npy", np.zeros((10, 10), np.uint8))
    refused(r"more than data\.max_pixels=99", decode, FolderSource(tmp_path), "x.npy", 1, max_pixels=99)


def test_a_pipe_and_an_endless_device_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    for name in ("pipe.png", "zero.png"):
        refused("a pipe or a device", decode, FolderSource(tmp_path), name, 3)
        refused("a pipe or a device", load_arrays, tmp_path / name)

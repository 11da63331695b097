"""Files that are damaged, endless, or made to harm: one clear error each, and little memory."""

import contextlib
import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from testing.trees import png, write_tree

from aurank.arrays import load_arrays
from aurank.data import READERS, FolderSource, ImageDataset, build_manifest
from aurank.data.decode import decode, quiet_decoding
from aurank.data.prepared import contents
from aurank.data.sources import open_source
from aurank.data.transforms.standard import Resize
from aurank.embedding.cache import data_sha256
from aurank.errors import UserError

NAMES = [f"{label}/{row}.png" for label in "ab" for row in range(2)]
HEADER = "path,label,split"


def table(root: Path, text: str, **options: bool) -> object:
    (root / "t.csv").write_text(text, encoding="utf-8")
    return READERS["table"](root, file="t.csv", **options)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "data", NAMES)


def test_a_parquet_table_damaged_anywhere_is_refused(root: Path) -> None:
    columns = {"path": NAMES, "label": ["a", "a", "b", "b"], "split": ["test"] * 4}
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
    whole = buffer.getvalue()
    chance = np.random.default_rng(0)
    for place in chance.integers(4, len(whole) - 8, 60).tolist():
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(chance.integers(8))
        (root / "t.parquet").write_bytes(damaged)
        with contextlib.suppress(UserError):
            READERS["table"](root, file="t.parquet")


@pytest.mark.parametrize("name", ["a" * 300 + ".png", "a\x00b.png"])
def test_a_name_that_no_file_can_have_is_missing(root: Path, name: str) -> None:
    source = FolderSource(root)
    assert not source.exists(name)
    with pytest.raises(UserError):
        source.read_bytes(name)
    with pytest.raises(UserError):
        open_source(root / name)


def test_a_path_that_leaves_the_folder_is_read_where_the_list_is_trusted(root: Path) -> None:
    (root.parent / "secret.png").write_bytes(png(0))
    text = f"{HEADER}\n../secret.png,a,test\na/1.png,a,test\n"
    with pytest.raises(UserError, match="leaves"):
        table(root, text)
    table(root, text, outside=True)


def npy(shape: tuple[int, ...], kind: str) -> bytes:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": kind, "fortran_order": False, "shape": shape})
    return header.getvalue() + bytes(64)


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
def test_an_image_too_large_to_hold_is_not_decoded(tmp_path: Path, width: int, height: int, said: str) -> None:
    (tmp_path / "x.png").write_bytes(blank_png(width, height))
    with quiet_decoding(), pytest.raises(UserError, match=said):
        decode(FolderSource(tmp_path), "x.png", 3)
    (tmp_path / "x.npy").write_bytes(npy((10, 10), "|u1") + bytes(40))
    with pytest.raises(UserError, match=r"more than data\.max_pixels=99"):
        decode(FolderSource(tmp_path), "x.npy", 1, max_pixels=99)


def test_a_pipe_and_an_endless_device_are_not_read(root: Path) -> None:
    os.mkfifo(root / "a/pipe.png")
    (root / "a/zero.png").symlink_to("/dev/zero")
    for name in ("a/pipe.png", "a/zero.png"):
        with pytest.raises(UserError, match="a pipe or a device"):
            decode(FolderSource(root), name, 3)
        with pytest.raises(UserError, match="a pipe or a device"):
            load_arrays(root / name)


def test_a_zero_byte_in_a_listed_path_is_an_unreadable_image(root: Path) -> None:
    manifest = build_manifest(
        "odd", FolderSource(root), paths=["a/0.png", "a\x00b.png"], labels=["a", "a"], splits=["test"] * 2
    )
    assert data_sha256(manifest)
    assert contents(manifest)
    data = ImageDataset(manifest, Resize(8, 3), channels=3, on_error="skip")
    assert len(data.__getitems__([0, 1]).id) == 1

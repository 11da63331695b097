"""Files that are damaged, endless, or made to harm: one clear error each, and little memory."""

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from testing.trees import write_tree

from aurank.arrays import load_arrays
from aurank.data import FolderSource
from aurank.data.decode import decode, quiet_decoding
from aurank.data.sources import open_source
from aurank.errors import UserError

NAMES = [f"{label}/{row}.png" for label in "ab" for row in range(2)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "data", NAMES)


@pytest.mark.parametrize("name", ["a" * 300 + ".png", "a\x00b.png"])
def test_a_name_that_no_file_can_have_is_missing(root: Path, name: str) -> None:
    source = FolderSource(root)
    assert not source.exists(name)
    with pytest.raises(UserError):
        source.read_bytes(name)
    with pytest.raises(UserError):
        open_source(root / name)


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

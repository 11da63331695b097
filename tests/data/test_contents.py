"""What tells the images of a data set from others of the same names."""

import os
import shutil
import zipfile
from pathlib import Path

import pytest
from testing.trees import write_tree

from aurank.data import Manifest, build_manifest, open_source
from aurank.data import prepared as module
from aurank.data.prepared import contents

NAMES = [f"{number % 4}/{number}.png" for number in range(100)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "folder", NAMES)


def manifest_of(root: Path) -> Manifest:
    labels = [name.split("/")[0] for name in NAMES]
    return build_manifest("small", open_source(root), paths=NAMES, labels=labels, splits=["train"] * len(NAMES))


def test_a_moved_touched_or_archived_data_set_is_the_same(folder: Path, tmp_path: Path) -> None:
    before = contents(manifest_of(folder))
    shutil.copytree(folder, tmp_path / "moved", copy_function=shutil.copyfile)
    os.utime(tmp_path / "moved" / NAMES[0], (0, 0))
    assert contents(manifest_of(tmp_path / "moved")) == before
    with zipfile.ZipFile(tmp_path / "images.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in NAMES:
            archive.write(folder / name, name)
    archived = contents(manifest_of(tmp_path / "images.zip"))
    assert {name: archived[name] for name in before} == before


def test_other_bytes_under_an_old_name_are_seen(folder: Path) -> None:
    before = contents(manifest_of(folder))
    changed = bytearray((folder / NAMES[7]).read_bytes())
    changed[-1] ^= 1
    (folder / NAMES[7]).write_bytes(changed)
    after = contents(manifest_of(folder))
    assert after["sizes"] == before["sizes"]
    assert after["sample"] != before["sample"]
    (folder / NAMES[7]).write_bytes(bytes(5))
    assert contents(manifest_of(folder))["sizes"] != before["sizes"]
    (folder / NAMES[7]).unlink()
    assert contents(manifest_of(folder))["sizes"] != before["sizes"]


def test_of_a_large_folder_a_sample_is_read_and_of_a_large_archive_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SMALL", 1000)
    manifest, read = manifest_of(folder), []
    original = type(manifest.source).read_bytes
    monkeypatch.setattr(
        type(manifest.source), "read_bytes", lambda self, path: read.append(path) or original(self, path)
    )
    before = contents(manifest)
    assert len(set(read)) == len(read) == 64
    for name in NAMES:
        (folder / name).write_bytes(bytes((folder / name).stat().st_size))
    after = contents(manifest)
    assert read[64:] == read[:64]
    assert after["sizes"] == before["sizes"]
    assert after["sample"] != before["sample"]
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        for name in NAMES:
            archive.write(folder / name, name)
    packed = manifest_of(tmp_path / "images.zip")
    monkeypatch.setattr(type(packed.source), "read_bytes", lambda self, path: pytest.fail("read"))
    archived = contents(packed)
    assert {name: archived[name] for name in after} == after
    assert set(archived) - set(after) == {"sums"}

"""Images prepared once: the same rows and pixels as the originals', and all ways in which a folder of them can fail."""

import errno
import multiprocessing
import os
import shutil
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from testing.refusals import refused
from testing.trees import pixels, write_tree, zip_tree

from aurank.data import TRANSFORMS, FolderSource, ImageDataset, Manifest, build_manifest, open_source, prepared
from aurank.data.prepared import IMAGES, Preparation, PreparedImages, contents, prepare_images
from aurank.errors import AurankError, UserError

SIDE = 36
RAW = Preparation(SIDE, 3)


def photos(root: Path, count: int = 6) -> Manifest:
    """Returns images larger than SIDE, saved without loss below `root`."""
    for number in range(count):
        (root / f"c{number % 2}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(number, 50 + number, 70)).save(root / f"c{number % 2}" / f"{number}.png")
    return listed(root)


def listed(root: Path, source=None) -> Manifest:
    paths = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.png"))
    labels = [path.split("/")[0] for path in paths]
    return build_manifest("m", source or FolderSource(root), paths=paths, labels=labels, splits=["train"] * len(paths))


def data_of(manifest: Manifest, folder: Path | None = None, name: str = "center", **options: object) -> ImageDataset:
    held = None if folder is None else PreparedImages(folder)
    return ImageDataset(manifest, TRANSFORMS[name](32, 3, margin=SIDE / 32), channels=3, prepared=held, **options)


@pytest.mark.parametrize("name", ["center", "crop_flip", "random_crop", "simclr"])
@pytest.mark.parametrize("cache_bytes", [0, 2**30])
def test_raw_pixels_at_the_side_that_the_transform_asks_for_are_those_of_the_originals(tmp_path, name, cache_bytes):
    manifest = photos(tmp_path / "photos")
    result = prepare_images(manifest, tmp_path / "out", RAW)
    assert (result.images, result.written, result.unreadable) == (6, 6, ())
    keys = [5, 0, (3, 1, 0), (2, 0, 1), (2, 0, 0)]
    data = [data_of(manifest, folder, name, cache_bytes=cache_bytes) for folder in (None, tmp_path / "out")]
    first, second = (each.__getitems__(keys) for each in data)
    assert torch.equal(first.image, second.image)
    assert torch.equal(first.id, second.id)
    assert torch.equal(first.label, second.label)


def test_a_part_of_an_image_is_prepared_by_itself(tmp_path):
    photos(tmp_path / "photos", 1)
    same = {"paths": ["c0/0.png"] * 3, "labels": ["a", "b", "c"], "splits": ["train"] * 3}
    boxes = [[-1] * 4, [5, 6, 65, 46], [0, 0, 20, 10]]
    manifest = build_manifest("m", FolderSource(tmp_path / "photos"), **same, boxes=boxes)
    assert prepare_images(manifest, tmp_path / "out", RAW).images == 3
    assert torch.equal(*(data_of(manifest, at).__getitems__([0, 1, 2]).image for at in (None, tmp_path / "out")))


@pytest.mark.parametrize("kind", ["longer", "as long", "in a zip"])
def test_an_original_that_changed_is_named_and_prepared_again(tmp_path, kind):
    manifest = photos(tmp_path / "photos")
    file = tmp_path / "photos" / "c1" / "3.png"
    archive = tmp_path / "a.zip"
    if kind == "in a zip":
        manifest = listed(tmp_path / "photos", open_source(zip_tree(tmp_path / "photos", archive)))
    prepare_images(manifest, tmp_path / "out", RAW)
    if kind == "as long":
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        os.utime(file, (10**9, 10**9))
    else:
        Image.fromarray(pixels(9, 80, 80)).save(file)
    if kind == "in a zip":
        zip_tree(tmp_path / "photos", archive)
        manifest = listed(tmp_path / "photos", open_source(archive))
    with pytest.raises(UserError, match=r"1 of 6 images of m were changed .* \(first: 'c1/3\.png'\); give aurank"):
        data_of(manifest, tmp_path / "out")
    assert prepare_images(manifest, tmp_path / "out", RAW).written == 1
    assert torch.equal(data_of(manifest, tmp_path / "out")[4][0], data_of(manifest)[4][0])


def test_originals_that_were_copied_or_are_gone_are_not_changed(tmp_path):
    manifest = photos(tmp_path / "photos")
    prepare_images(manifest, tmp_path / "out", RAW)
    expected = data_of(manifest)[2][0]
    for path in (tmp_path / "photos").rglob("*.png"):
        os.utime(path, (10**9, 10**9))
    assert torch.equal(data_of(manifest, tmp_path / "out")[2][0], expected)
    archive = listed(tmp_path / "photos", open_source(zip_tree(tmp_path / "photos", tmp_path / "a.zip")))
    assert torch.equal(data_of(archive, tmp_path / "out")[2][0], expected)
    for path in (tmp_path / "photos").rglob("*.png"):
        path.unlink()
    assert torch.equal(data_of(manifest, tmp_path / "out")[2][0], expected)


def test_of_many_originals_of_one_length_a_run_reads_some_and_the_preparation_all_once(tmp_path):
    for number in range(100):
        (tmp_path / "photos" / "a").mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "photos" / "a" / f"{number:02d}.npy", np.full((4, 4, 3), number, np.uint8))
    paths = [f"a/{number:02d}.npy" for number in range(100)]
    source = FolderSource(tmp_path / "photos")
    manifest = build_manifest("m", source, paths=paths, labels=["a"] * 100, splits=["train"] * 100)
    prepare_images(manifest, tmp_path / "out", RAW)
    for path in paths:
        os.utime(tmp_path / "photos" / path, (10**9, 10**9))
    np.save(tmp_path / "photos" / paths[2], np.full((4, 4, 3), 255, np.uint8))
    images = PreparedImages(tmp_path / "out")
    assert len(images.changed(manifest, images.positions(manifest))) == 0  # not among the 64
    assert prepare_images(manifest, tmp_path / "out", RAW).written == 1
    rows = PreparedImages(tmp_path / "out").rows_of(manifest, 3)
    assert [rows.read(row)[0, 0, 0] for row in (0, 2, 3)] == [0, 255, 3]


def test_a_broken_image_follows_on_error(tmp_path):
    manifest = photos(tmp_path / "photos")
    good = (tmp_path / "photos/c0/4.png").read_bytes()
    (tmp_path / "photos/c0/4.png").write_bytes(b"no image")
    refused(r"image 'c0/4\.png' in .*photos cannot be decoded", prepare_images, manifest, tmp_path / "out", RAW)
    result = prepare_images(manifest, tmp_path / "out", RAW, on_error="skip")
    assert (result.images, result.unreadable) == (6, ("c0/4.png",))
    assert prepare_images(manifest, tmp_path / "out", RAW, on_error="skip").written == 0
    skipping = data_of(manifest, tmp_path / "out", on_error="skip")
    assert skipping.__getitems__([2, 1]).id.tolist() == [1]
    assert skipping.skipped == ["c0/4.png"]
    with pytest.raises(UserError, match=r"1 of 6 images of m could not be .* \(first: 'c0/4\.png'\); .*on_error=skip"):
        data_of(manifest, tmp_path / "out", cache_bytes=0)
    refused("cannot be decoded", prepare_images, manifest, tmp_path / "out", RAW)  # asked to raise, it says why
    (tmp_path / "photos/c0/4.png").write_bytes(good)
    assert prepare_images(manifest, tmp_path / "out", RAW).unreadable == ()


def test_other_pixels_have_another_digest_also_without_their_originals(tmp_path):
    first = photos(tmp_path / "photos")
    prepare_images(first, tmp_path / "one", RAW)
    known = contents(first, PreparedImages(tmp_path / "one").rows_of(first, 3))
    assert contents(first).items() < known.items()
    Image.fromarray(pixels(9, 52, 70)).save(tmp_path / "photos/c0/2.png")
    prepare_images(listed(tmp_path / "photos"), tmp_path / "two", RAW)
    shutil.rmtree(tmp_path / "photos")
    assert contents(first, PreparedImages(tmp_path / "one").rows_of(first, 3)) == known
    one, two = (data_of(first, tmp_path / name) for name in ("one", "two"))
    assert one.made_of == two.made_of
    assert one.prepared.sha256 == data_of(first, tmp_path / "one").prepared.sha256 != two.prepared.sha256


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize("garbage", [b"", b"half an image"])
def test_a_killed_preparation_goes_on(tmp_path, monkeypatch, garbage):
    manifest = photos(tmp_path / "photos", 9)
    monkeypatch.setattr(prepared, "_KEPT_EVERY", 2)

    def die(stage: str, done: int, total: int) -> None:
        if done == 5:
            os.kill(os.getpid(), signal.SIGKILL)

    work = partial(prepare_images, manifest, tmp_path / "out", RAW, progress=die)
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    refused(r"5 of 9 images of m are not in", data_of, manifest, tmp_path / "out")
    left = (tmp_path / "out" / IMAGES).read_bytes()
    with (tmp_path / "out" / IMAGES).open("ab") as file:
        file.write(garbage)
    assert prepare_images(manifest, tmp_path / "out", RAW).written == 5
    assert (tmp_path / "out" / IMAGES).read_bytes().startswith(left)
    assert torch.equal(*(data_of(manifest, at).__getitems__(range(9)).image for at in (None, tmp_path / "out")))


def test_a_full_disk_ends_in_one_line_and_what_was_prepared_stays(tmp_path, monkeypatch):
    manifest, left = photos(tmp_path / "photos", 9), 4
    monkeypatch.setattr(prepared, "_KEPT_EVERY", 2)

    def full(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(AurankError, match=r"into .*: No space left on device; what was prepared stays: give") as said:
        prepare_images(manifest, tmp_path / "out", RAW)
    assert "\n" not in str(said.value)
    monkeypatch.undo()
    assert 0 < prepare_images(manifest, tmp_path / "out", RAW).written < 9
    assert len(data_of(manifest, tmp_path / "out")) == 9


def test_a_damaged_image_is_named_and_mended(tmp_path):
    manifest = photos(tmp_path / "photos")
    prepare_images(manifest, tmp_path / "out", RAW)
    file = tmp_path / "out" / IMAGES
    content = bytearray(file.read_bytes())
    content[int(PreparedImages(tmp_path / "out").records["offset"][3]) + 700] ^= 255
    file.write_bytes(content)
    data = data_of(manifest, tmp_path / "out", cache_bytes=0)
    data[2]
    refused(rf"image '{manifest.paths[3]}' is damaged in .*images\.arrow; .*mends it", lambda: data[3])
    assert prepare_images(manifest, tmp_path / "out", RAW).written == 1
    data_of(manifest, tmp_path / "out", cache_bytes=0)[3]


def test_what_does_not_fit_is_refused(tmp_path):
    manifest = photos(tmp_path / "photos")
    with pytest.raises(UserError, match=r"No such file.*; give aurank data prepare CONFIG --out .*out again, or set"):
        PreparedImages(tmp_path / "out")
    refused("holds other files", prepare_images, manifest, tmp_path / "photos", RAW)
    prepare_images(manifest, tmp_path / "out", RAW)
    with pytest.raises(UserError, match=r"prepared otherwise \(shorter side 36, .* asked for: shorter side 40"):
        prepare_images(manifest, tmp_path / "out", Preparation(40, 3))
    refused(r"have 3 channels, not data\.channels=1", lambda: PreparedImages(tmp_path / "out").rows_of(manifest, 1))


# -- What tells the images of a data set from others of the same names

NAMES = [f"{number % 4}/{number}.png" for number in range(100)]


@pytest.fixture
def folder(tmp_path):
    return write_tree(tmp_path / "folder", NAMES)


def test_a_moved_touched_or_archived_data_set_is_the_same(folder, tmp_path):
    before = contents(listed(folder))
    shutil.copytree(folder, tmp_path / "moved", copy_function=shutil.copyfile)
    os.utime(tmp_path / "moved" / NAMES[0], (0, 0))
    assert contents(listed(tmp_path / "moved")) == before
    archived = contents(listed(folder, open_source(zip_tree(folder, tmp_path / "images.zip"))))
    assert {name: archived[name] for name in before} == before


def test_other_bytes_under_an_old_name_are_seen(folder):
    manifest = listed(folder)
    before = contents(manifest)
    changed = bytearray((folder / NAMES[7]).read_bytes())
    changed[-1] ^= 1
    (folder / NAMES[7]).write_bytes(changed)
    after = contents(manifest)
    assert after["sizes"] == before["sizes"]
    assert after["sample"] != before["sample"]
    (folder / NAMES[7]).write_bytes(bytes(5))
    assert contents(manifest)["sizes"] != before["sizes"]
    (folder / NAMES[7]).unlink()
    assert contents(manifest)["sizes"] != before["sizes"]


def test_of_a_large_folder_a_sample_is_read_and_of_a_large_archive_nothing(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(prepared, "_SMALL", 1000)
    manifest, read = listed(folder), []
    original = type(manifest.source).read_bytes
    kind = type(manifest.source)
    monkeypatch.setattr(kind, "read_bytes", lambda self, path: read.append(path) or original(self, path))
    before = contents(manifest)
    assert len(set(read)) == len(read) == 64
    for name in NAMES:
        (folder / name).write_bytes(bytes((folder / name).stat().st_size))
    after = contents(manifest)
    assert read[64:] == read[:64]
    assert after["sizes"] == before["sizes"]
    assert after["sample"] != before["sample"]
    packed = listed(folder, open_source(zip_tree(folder, tmp_path / "images.zip")))
    monkeypatch.setattr(type(packed.source), "read_bytes", lambda self, path: pytest.fail("read"))
    archived = contents(packed)
    assert {name: archived[name] for name in after} == after
    assert set(archived) - set(after) == {"sums"}

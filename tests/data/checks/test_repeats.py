import dataclasses
import io

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import gaussian_filter

from aurank.data import FolderSource, Manifest, build_manifest
from aurank.data.checks import pictures
from aurank.data.checks.doctor import examine
from aurank.data.checks.findings import FIXES, DoctorReport, describe_cleaning, write_table
from aurank.data.checks.pictures import close_pictures
from aurank.data.readers import READERS


def photo(seed: int, side: int = 128) -> Image.Image:
    """Returns a picture of soft blobs with some grain, as different from others as photos are."""
    draw = np.random.default_rng(seed)
    parts = [gaussian_filter(draw.normal(size=(side, side, 3)), (width, width, 0)) * width for width in (12, 4, 1)]
    values = 128 + 110 * np.tanh(sum(parts))
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))


def as_jpeg(image: Image.Image, quality: int) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(file)


def turned(image: Image.Image) -> Image.Image:
    hue, *others = image.convert("HSV").split()
    return Image.merge("HSV", [hue.point(lambda value: (value + 64) % 256), *others]).convert("RGB")


COPIES = {
    "another compression": lambda image: as_jpeg(image, 50),
    "half the size": lambda image: image.resize((64, 64)),
    "cropped": lambda image: image.crop((4, 2, 124, 123)),
    "darker": lambda image: image.point(lambda value: value * 0.85),
}


OTHER_COLOURS = {
    "channels in another order": lambda image: Image.merge("RGB", image.split()[1:] + image.split()[:1]),
    "no colours": lambda image: image.convert("L"),
    "another hue": turned,
}


def place(root, images: dict[str, Image.Image], **columns) -> Manifest:
    for name, image in images.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        image.save(root / name)
    given = {"labels": ["a"] * len(images), "splits": ["test"] * len(images)} | columns
    return build_manifest("photos", FolderSource(root), paths=list(images), **given)


def rows_of(report: DoctorReport, check: str) -> list[list[int]]:
    return [list(rows) for found in report.findings if found.check == check for rows in found.rows]


@pytest.mark.parametrize("colours", OTHER_COLOURS)
def test_a_picture_in_other_colours_is_no_copy(colours, tmp_path):
    """Of red things, whose structure any channel shows."""
    greys = [photo(seed).convert("L") for seed in range(4)]
    red = [Image.merge("RGB", [grey, *(grey.point(lambda v, by=by: v // by) for by in (2, 4))]) for grey in greys]
    images = {f"{number}.png": image for number, image in enumerate(red)}
    images |= {f"{number} changed.png": OTHER_COLOURS[colours](image) for number, image in enumerate(red)}
    report = examine(place(tmp_path, images, labels=["a", "b", "c", "d"] * 2))
    assert [finding.check for finding in report.findings] == ["empty splits"]
    assert len(report.kept(FIXES)) == 8


def test_pictures_are_compared_and_judged_as_they_look_on_white(tmp_path):
    """Of transparent pictures: whatever colour stands where nothing is seen, and black drawings on nothing."""
    shape = np.zeros((96, 96), np.uint8)
    shape[20:70, 30:80] = 255
    drawings = {"black.png": (0, 0), "hidden.png": (0, 200), "red.png": ((220, 0, 0), 0), "white.png": (250, 0)}
    images = {}
    for name, (ink, hidden) in drawings.items():
        colours = np.where(shape[..., None] > 0, np.uint8(ink), np.uint8(hidden)) * np.ones((1, 1, 3), np.uint8)
        images[name] = Image.fromarray(np.dstack([colours, shape]))
    report = examine(place(tmp_path, images, labels=["a", "b", "c", "d"]))
    named = {finding.check: finding.rows for finding in report.findings if finding.rows}
    assert named.pop("same image more than once in a split") == named.pop("same image under two classes") == ((0, 1),)
    assert not named


@pytest.mark.parametrize("k", [40, 2])
def test_close_pictures_are_those_of_a_loop_over_all_pairs(k, monkeypatch):
    monkeypatch.setattr(pictures, "_COLOURS_AT_ONCE", 4)
    hashes = np.random.default_rng(0).integers(0, 2, (40, 8)).astype(bool)
    hashes[30:] = hashes[20]  # more than k of one hash
    colours = np.zeros((40, 2, 64, 3), np.int8)
    colours[::3, :, 5, 1] = 17
    pairs = close_pictures(np.pad(hashes, ((0, 0), (0, 56))), colours, at_most=2, k=k)
    expected = set()
    for i in range(40):
        others = [j for j in range(40) if j != i and (i % 3 > 0) == (j % 3 > 0)]
        apart = sorted((int((hashes[i] != hashes[j]).sum()), j) for j in others)
        expected |= {(min(i, j), max(i, j)) for count, j in apart[:k] if count <= 2}
    assert [*map(tuple, pairs.tolist())] == sorted(expected)


def test_near_duplicates_are_found_where_they_stand_and_looking_tells_how_far_it_is(tmp_path):
    images = {f"{seed}.png": photo(seed) for seed in range(8)}
    images |= {"copy of 0.png": COPIES["cropped"](photo(0)), "copy of 1.png": COPIES["another compression"](photo(1))}
    images |= {"copy of 2.png": COPIES["half the size"](photo(2)), "copy of 4.png": COPIES["darker"](photo(4))}
    labels = ["a", "a", "b", "b", "c", "c", "d", "d", "a", "a", "c", "c"]
    splits = ["test"] * 8 + ["train", "test", "test", "test"]
    manifest = place(tmp_path, images, labels=labels, splits=splits)
    told = []
    report = examine(manifest, listener=lambda *said: told.append(said))
    assert [stage for stage, done, total in told if done == total] == ["looking at images"]
    assert rows_of(report, "nearly the same image in train and test") == [[0, 8]]
    assert rows_of(report, "nearly the same image more than once in a split") == [[1, 9], [2, 10], [4, 11]]
    assert rows_of(report, "nearly the same image under two classes") == [[2, 10]]
    left_out = {fix: {manifest.paths[row] for row in report.left_out(fix)} for fix in FIXES}
    assert {fix: paths for fix, paths in left_out.items() if paths} == {
        "near-leaks": {"copy of 0.png"},
        "near-repeats": {"copy of 1.png", "copy of 4.png"},
        "near-conflicts": {"2.png", "copy of 2.png"},
    }
    left = set(report.kept(["near-leaks", "near-repeats"]).paths)
    assert set(manifest.paths) - left == {"copy of 0.png", "copy of 1.png", "copy of 4.png"}


@pytest.mark.parametrize(
    "columns",
    [
        {"groups": [1, 2, 1, 2, 2, 1]},
        {"is_query": [True, True, False, False, False, True], "is_gallery": [False, False, True, True, True, False]},
    ],
)
@pytest.mark.parametrize("labels", [["a", "b"] * 3, ["a", "b"] * 2 + ["c", "d"]])
@pytest.mark.parametrize("copy", [lambda image: image, COPIES["cropped"]])
def test_pairs_of_two_cameras_or_of_query_and_gallery_are_left_alone(tmp_path, copy, labels, columns):
    images = {"0.png": photo(0), "1.png": photo(1), "2.png": photo(2), "3.png": photo(3)}
    images |= {"0 again.png": copy(photo(0)), "3 again.png": copy(photo(3))}
    report = examine(place(tmp_path, images, labels=labels, **columns))
    assert [rows for found in report.findings for rows in found.rows if rows in ((0, 4), (3, 5))]
    assert report.kept(FIXES).paths == tuple(images)


def test_one_path_in_two_splits_is_a_leak_and_under_two_classes_a_conflict(tmp_path):
    for seed in (0, 1, 2):
        photo(seed).save(tmp_path / f"{seed}.png")
    paths = ["0.png", "0.png", "1.png", "1.png", "2.png", "2.png"]
    labels, splits = ["a", "a", "a", "b", "b", "b"], ["train", "test", "test", "test", "test", "test"]
    report = examine(build_manifest("photos", FolderSource(tmp_path), paths=paths, labels=labels, splits=splits))
    assert [report.left_out(fix) for fix in ("leaks", "conflicts", "repeats")] == [{0}, {2, 3}, {5}]


def test_classes_that_lose_their_last_pair_are_counted(tmp_path):
    """Of two photos an identity, each of another camera, one is broken."""
    images = {f"{number}.png": photo(number) for number in range(9)}
    columns = {"labels": ["a", "a", "b", "b", "c", "c", "d", "d", "d"], "groups": [1, 2] * 3 + [1, 2, 2]}
    manifest = place(tmp_path, images, **columns)
    for number in (1, 3):
        (tmp_path / f"{number}.png").write_bytes(b"no image")
    assert describe_cleaning(examine(manifest), ["repeats", "unreadable"]).splitlines() == [
        "--fix leaves out 2 of 9 rows (repeats 0, unreadable 2)",
        "2 of 4 classes lose their last pair: 'a' in test, 'b' in test",
    ]


def test_the_table_of_what_is_left_is_read_back_as_it_was(tmp_path):
    names = ["=1.png", "a,b.png", '"q".png', "-x/2.png"]
    images = {name: photo(seed, 16) for seed, name in enumerate(names)}
    columns = {"labels": ["=cmd", "@b", "c d", "+1"], "groups": [0, -1, 2, 1]}
    columns |= {"splits": ["train", "val", "test", "test"], "is_query": [True, True, True, False]}
    manifest = place(tmp_path / "photos", images, **columns)
    file = tmp_path / "tables" / "clean.csv"
    where = write_table(manifest, file)
    assert where == f"table:{file} data.params.path={tmp_path / 'photos'}"
    again = READERS["table"](tmp_path / "tables", file="clean.csv", path=str(tmp_path / "photos"))
    assert again.sha256 == manifest.sha256
    write_table(dataclasses.replace(manifest, group_names=("west", "=east", "c3")), file)
    again = READERS["table"](tmp_path / "tables", file="clean.csv", path=str(tmp_path / "photos"))
    assert [again.group_names[group] if group >= 0 else "" for group in again.groups] == ["west", "", "c3", "=east"]

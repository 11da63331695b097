"""An index of images: built, opened again, searched, and changed without embedding anything twice."""

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from testing.galleries import MODEL, small_index, write_photo, write_photos

import aurank
from aurank.commands import Hit, ImageIndex, RunOptions, add_images, build_index, remove_images, search_photos
from aurank.commands.galleries.search import results_page
from aurank.data.photos import find_photos
from aurank.embedding import ImageSelection
from aurank.errors import UserError
from aurank.evaluation import RetrievalProblem


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    small_index(write_photos(folder / "photos"), folder / "index")
    return folder


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Path:
    """The index, and photos where it looks for them, to be changed."""
    shutil.copytree(made / "photos", tmp_path / "photos")
    small_index(tmp_path / "photos", tmp_path / "index")
    return tmp_path


def found(index: ImageIndex, photo: Any, **options: Any) -> list[tuple[str, float]]:
    return [(hit.path, round(hit.score, 5)) for hit in index.search([photo], **options)[0]]


def test_what_is_opened_finds_what_was_built(made: Path) -> None:
    index = ImageIndex.open(made / "index")
    path = made / "photos/c1/2.png"
    with Image.open(path) as image:
        hits = index.search([path, image, path.read_bytes(), np.asarray(image)], k=3)
    assert hits[0][0] == Hit(hits[0][0].row, "c1/2.png", "c1", hits[0][0].score)
    assert hits[0][0].score == pytest.approx(1.0, abs=1e-6)
    assert all(one == hits[0] for one in hits)
    assert [hit.score for hit in hits[0]] == sorted((hit.score for hit in hits[0]), reverse=True)
    assert index.images["sha256"][hits[0][0].row] == hashlib.sha256(path.read_bytes()).hexdigest()
    np.testing.assert_array_equal(index.read_image(hits[0][0].row), np.asarray(Image.open(path)))
    assert index.classes == ["c0", "c1", "c2", "c3"]


def test_rows_classes_and_thresholds_choose_what_is_found(made: Path) -> None:
    index = ImageIndex.open(made / "index")
    everything = index.search_rows([7], k=100)[0]
    assert len(everything) == 19
    assert 7 not in {hit.row for hit in everything}
    assert index.search_rows([7], k=100, threshold=everything[4].score)[0] == everything[:5]
    with pytest.raises(UserError, match="threshold must be a number"):
        index.search_rows([0], threshold=float("nan"))
    some = index.search_rows([7], k=100, classes=["c0", "c2"])[0]
    expected = [hit for hit in everything if hit.class_name in ("c0", "c2")]
    assert [hit.row for hit in some] == [hit.row for hit in expected]
    np.testing.assert_allclose([hit.score for hit in some], [hit.score for hit in expected], rtol=1e-12)
    with pytest.raises(UserError, match="no class 'C0', it has 4; did you mean 'c0'"):
        index.search_rows([7], classes=["C0"])
    photo = made / "photos/c0/0.png"
    for one in (str(photo), np.zeros((8, 8, 3), np.uint8)):
        with pytest.raises(UserError, match="photos as a list"):
            index.search(one)
    assert index.search([]) == []
    with pytest.raises(UserError, match="k must be 1"):
        index.search_rows([0], k=0)
    with pytest.raises(UserError, match="there is no image -1"):
        index.search_rows([-1])


@pytest.mark.slow
def test_images_are_added_replaced_and_left_as_they_are(copied: Path) -> None:
    write_photo(copied / "photos/c9/new.png", 100)
    write_photo(copied / "photos/c0/0.png", 101)
    change = add_images(copied / "index", ImageSelection(f"folder:{copied / 'photos'}"))
    assert (change.added, change.replaced, len(change.present), change.count) == (["c9/new.png"], ["c0/0.png"], 19, 21)
    again = add_images(copied / "index", ImageSelection(f"folder:{copied / 'photos'}"))
    assert (again.added, again.replaced, len(again.present)) == ([], [], 21)
    other = small_index(copied / "photos", copied / "anew")
    index = ImageIndex.open(copied / "index")
    for seed in (100, 101, 5):
        write_photo(copied / "query.png", seed)
        assert found(index, copied / "query.png", k=30) == found(other, copied / "query.png", k=30)
    write_photo(copied / "more/c0/0.png", 102)  # the same path elsewhere is another image
    assert add_images(copied / "index", ImageSelection(f"folder:{copied / 'more'}")).added == ["c0/0.png"]
    index = ImageIndex.open(copied / "index")
    assert len(index) == 22
    np.testing.assert_array_equal(index.read_image(21), np.asarray(Image.open(copied / "more/c0/0.png")))


def test_a_photo_that_changed_within_its_length_and_time_is_embedded_anew(tmp_path: Path) -> None:
    photo, images = tmp_path / "photos/c0/0.bmp", ImageSelection(f"folder:{tmp_path / 'photos'}")
    write_photo(photo, 0)
    how, before = RunOptions(device="cpu", cache=tmp_path / "cache"), photo.stat()
    build_index(MODEL, images, out=tmp_path / "index", running=how)
    write_photo(photo, 1)
    os.utime(photo, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert photo.stat().st_size == before.st_size
    assert add_images(tmp_path / "index", images, running=how).replaced == ["c0/0.bmp"]
    index = ImageIndex.open(tmp_path / "index")
    assert index.images["sha256"].tolist() == [hashlib.sha256(photo.read_bytes()).hexdigest()]
    np.testing.assert_allclose(np.asarray(index.rows.embeddings), index.embed([photo]), atol=1e-6)


def test_images_are_removed(copied: Path) -> None:
    index, (gone, *_), kept = copied / "index", [copied / "photos/c2/1.png"], copied / "photos/c0/0.png"
    before = found(ImageIndex.open(index), kept, k=30)
    gone.unlink()
    with pytest.raises(UserError, match=r"'c2/1\.png' is not in"):
        ImageIndex.open(index).read_image(ImageIndex.open(index).images["path"].tolist().index("c2/1.png"))
    assert remove_images(index, missing=True).removed == ["c2/1.png"]
    assert remove_images(index, missing=True).removed == []
    removed = remove_images(index, ["c0/3.png"], classes=["c3"]).removed
    assert sorted(removed) == ["c0/3.png", *(f"c3/{number}.png" for number in range(5))]
    lost = ("c2/1.png", "c0/3.png", "c3")
    assert found(ImageIndex.open(index), kept, k=30) == [one for one in before if not one[0].startswith(lost)]
    with pytest.raises(UserError, match=r"'c0/9\.png' is not in the index .*; did you mean"):
        remove_images(index, ["c0/9.png"])
    with pytest.raises(UserError, match="no image would be left"):
        remove_images(index, classes=["c0", "c1", "c2"])
    assert len(ImageIndex.open(index)) == 13


@pytest.mark.slow
@pytest.mark.parametrize("factory", ["IVF2,Flat", "HNSW8", "PCA8,IVF2,SQ8"])
def test_an_approximate_index_says_what_it_finds(factory: str, copied: Path) -> None:
    index = small_index(copied / "photos", copied / "near", factory=factory)
    recall = index.about["recall"]
    own = np.arange(20)
    lists = [{hit.row for hit in one} for one in index.search_rows(own.tolist(), k=10)]
    true = [{hit.row for hit in one} for one in index.search_rows(own.tolist(), k=10, exact=True)]
    assert recall["10"] == pytest.approx(np.mean([len(a & b) / 10 for a, b in zip(lists, true, strict=True)]))
    assert f"{recall['10']:.4f} of the true nearest 10 (mean of 20 of its images)" in index.description
    write_photo(copied / "more/c9/new.png", 100)
    add_images(copied / "near", ImageSelection(f"folder:{copied / 'more'}"))
    remove_images(copied / "near", classes=["c1"])
    changed = ImageIndex.open(copied / "near")
    assert (len(changed), len(changed.rows.index), changed.about["recall"]["queries"]) == (16, 16, 16)
    assert found(changed, copied / "more/c9/new.png", k=1, exact=True)[0] == ("c9/new.png", 1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "steps", ["whiten:dim=6", "center, database_augmentation:k=2, query_expansion:k=2", "binary, rescore:depth=50"]
)
def test_post_processing_is_kept_and_applied_to_what_is_added(steps: str, copied: Path) -> None:
    images = ImageSelection(f"folder:{copied / 'photos'}")
    np.save(copied / "train.npy", ImageIndex.open(copied / "index").rows.embeddings)
    how = {"postprocess": steps, "fit_on": None if steps.startswith("binary") else copied / "train.npy"}
    build_index(MODEL, images, out=copied / "steps", **how)  # type: ignore[arg-type]
    write_photo(copied / "photos/c9/new.png", 100)
    add_images(copied / "steps", images)
    remove_images(copied / "steps", ["c1/1.png"])
    index = ImageIndex.open(copied / "steps")
    processing = index.rows.processing
    assert str(processing) == steps
    query = index.embed([copied / "photos/c0/0.png"])
    labels = {"labels": [0], "gallery_labels": np.zeros(20, int)}
    problem = RetrievalProblem(query, gallery=np.asarray(index.rows.embeddings), **labels)
    expected = processing.apply(problem).nearest(20)
    hits = index.search(query, k=20)[0]
    np.testing.assert_allclose([hit.score for hit in hits], expected.score[0], rtol=1e-5)
    assert [hit.row for hit in hits] == expected.row[0].tolist()


@pytest.mark.slow
def test_a_trained_model_is_kept_as_it_is_evaluated(tiny_run: Path, tmp_path: Path) -> None:
    index = build_index(f"aurank:{tiny_run / 'best'}", ImageSelection(split="val"), out=tmp_path / "index")
    model = aurank.load(tiny_run / "best")
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 30), dtype=np.uint8))
    opened = ImageIndex.open(tmp_path / "index")
    np.testing.assert_allclose(opened.embed([photo]), model.encode([photo]), atol=1e-6)
    again = aurank.load(tmp_path / "index" / opened.about["model"]["folder"])
    np.testing.assert_array_equal(again.encode(photo), model.encode(photo))
    assert len(index) == len(opened)
    with pytest.raises(UserError, match="is gone: scikit-learn's digits is not there any more"):
        opened.read_image(0)


def test_photos_of_folders_and_archives_are_found(made: Path, tmp_path: Path) -> None:
    shutil.make_archive(str(tmp_path / "some"), "zip", made / "photos")
    names = [photo.path for photo in find_photos([str(tmp_path / "some.zip"), str(made / "photos/c0/0.png")])]
    zipped = [f"{tmp_path}/some.zip/c{a}/{b}.png" for a in range(4) for b in range(5)]
    assert names == [*zipped, f"{made}/photos/c0/0.png"]
    (tmp_path / "empty").mkdir()
    for given, said in ((["empty"], "holds no image"), ([], "there is no photo")):
        with pytest.raises(UserError, match=said):
            search_photos(ImageIndex.open(made / "index"), [str(tmp_path / one) for one in given])


def test_photos_that_cannot_be_read_are_told_beside_the_others(made: Path, tmp_path: Path) -> None:
    index = ImageIndex.open(made / "index")
    (tmp_path / "broken.png").write_bytes(b"broken")
    good = str(made / "photos/c0/0.png")
    photos = [str(tmp_path / "broken.png"), good, str(tmp_path / "none.png")]
    one, two, three = search_photos(index, photos, k=1, batch=2)
    assert [hit.path for hit in two.hits] == ["c0/0.png"]
    assert "cannot be decoded" in str(one.error)
    assert "on_error" not in str(one.error)
    assert "is not in" in str(three.error)
    with pytest.raises(UserError, match=r"broken\.png.*cannot be decoded"):
        search_photos(index, [str(tmp_path / "broken.png")])


ODD = ["<img src=x onerror=alert(1)>.jpg", "\x1b[31mred.png", os.fsdecode(b"\xff.png"), "=cmd|'x'.png"]


def test_odd_names_stay_text_and_gone_images_are_named(tmp_path: Path) -> None:
    for seed, name in enumerate(ODD):
        write_photo(tmp_path / "odd" / name, seed)
    build_index(MODEL, ImageSelection(f"unlabelled:{tmp_path / 'odd'}"), out=tmp_path / "index")
    index = ImageIndex.open(tmp_path / "index")
    assert sorted(index.images["path"].tolist()) == sorted(ODD)
    assert set(index.images["class"].tolist()) == {""}
    write_photo(tmp_path / "new\nline.png", 0)
    (tmp_path / "odd" / ODD[0]).unlink()
    page = results_page(index, search_photos(index, [str(tmp_path / "new\nline.png")]))
    assert "<img src=x" not in page
    assert "<span>&lt;img src=x onerror=alert(1)&gt;.<wbr>jpg</span>" in page
    assert "gone or unreadable: 1." in page
    assert page.count('src="data:image/') == 4


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of "photos" and "more", both in "new" afterwards; the second as an archive, too."""
    folder = tmp_path_factory.mktemp("moved")
    small_index(write_photos(folder / "photos", classes=2, images=2), folder / "index")
    write_photo(folder / "more/c0/0.png", 50)
    add_images(folder / "index", ImageSelection(f"folder:{folder / 'more'}"))
    (folder / "new").mkdir()
    for name in ("photos", "more"):
        (folder / name).rename(folder / "new" / name)
    shutil.make_archive(str(folder / "new/more"), "zip", folder / "new/more")
    return folder


@pytest.mark.parametrize("second", ["more", "more.zip"])
def test_pictures_are_found_where_they_are_now(second: str, moved: Path) -> None:
    with pytest.raises(UserError, match="photos is not there any more; say where it is with --root"):
        ImageIndex.open(moved / "index").read_image(0)
    index = ImageIndex.open(moved / "index", roots=[moved / "new/photos", moved / "new" / second])
    np.testing.assert_array_equal(index.read_image(4), np.asarray(Image.open(moved / "new/more/c0/0.png")))
    np.testing.assert_array_equal(index.read_image(0), np.asarray(Image.open(moved / "new/photos/c0/0.png")))


@pytest.mark.parametrize(
    ("roots", "said"),
    [
        (["new/photos"], r"--root is given 1 times for images from 2 places \(.*photos, .*more\): give one for each"),
        (["new/photos", "none"], "--root .*none is no folder or zip archive"),
        (["new/photos", "index/index.json"], "--root .*index.json is no folder or zip archive"),
        (["new", "new/more"], r"--root .*new is no folder .* with the images, such as \['c0/0\.png'\]"),
    ],
)
def test_what_is_not_where_it_is_said_to_be(roots: list[str], said: str, moved: Path) -> None:
    with pytest.raises(UserError, match=said):
        ImageIndex.open(moved / "index", roots=[moved / root for root in roots])

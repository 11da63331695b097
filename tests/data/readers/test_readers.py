import numpy as np
import pytest
from PIL import Image
from testing.refusals import refused
from testing.trees import real_archive, write_tree, zip_tree

from aurank.data import READERS
from aurank.data.checks.doctor import examine
from aurank.data.decode import IMAGE_SUFFIXES, decode
from aurank.data.readers.folders import read_digits, read_folder, read_omniglot, read_unlabelled

ALPHABETS = {"Latin": "background", "Greek": "background", "ULOG": "evaluation"}
OMNIGLOT = [
    f"images_{split}/{alphabet}/character{character:02d}/{character:04d}_{drawing:02d}.png"
    for alphabet, split in ALPHABETS.items()
    for character in (1, 2)
    for drawing in (1, 2)
]


def test_readers_are_known_by_name():
    benchmarks = {"sop", "grocery", "inaturalist2018", "vehicleid", "cub200", "cars196", "inshop"}
    benchmarks |= {"market1501", "veri776", "roxford5k", "rparis6k"}
    others = {"omniglot", "folder", "unlabelled", "table", "lists", "digits", "embeddings", "hf", "webdataset", "given"}
    assert set(READERS) == {*others, *benchmarks, "torchvision"}


def test_omniglot_has_the_same_content_from_a_zip_and_a_folder_in_its_usual_places(tmp_path):
    tree = write_tree(tmp_path / "tree", [*OMNIGLOT, "LICENSE.png", "images_background/strokes.png"])
    found = [read_omniglot(tree), read_omniglot(tmp_path, path="tree")]
    for place in ("omniglot", "omniglot-py", "omniglot/python"):
        write_tree(tmp_path / f"in {place}" / place, OMNIGLOT)
        found.append(read_omniglot(tmp_path / f"in {place}"))
    for number, prefix in enumerate(("", "omniglot/", "some/where/python/")):
        (tmp_path / str(number)).mkdir()
        zip_tree(tree, tmp_path / str(number) / "omniglot_full.zip", prefix=prefix)
        found.append(read_omniglot(tmp_path / str(number)))
    assert len({manifest.sha256 for manifest in found}) == 1
    for manifest in found:
        assert len(manifest) == 12
        assert set(manifest.classes) == {f"{name}/character0{number}" for name in ALPHABETS for number in (1, 2)}
        assert manifest.split_sizes == {"train": 8, "test": 4}
        assert set(manifest.split("test").classes) == {"ULOG/character01", "ULOG/character02"}
        assert np.bincount(manifest.super_labels).tolist() == [4, 4, 4]
        assert examine(manifest).findings == ()


@pytest.mark.parametrize("half", ["images_background", "images_evaluation", "nothing"])
def test_omniglot_that_is_missing_says_what_to_fetch_and_the_layout(tmp_path, half):
    write_tree(tmp_path / "omniglot", [name for name in OMNIGLOT if name.startswith(half)])
    said = refused("", read_omniglot, tmp_path)
    for words in ("aurank data get omniglot", "AURANK_DATA", str(tmp_path / "omniglot_full.zip")):
        assert words in said


def test_a_folder_with_split_folders_is_read_as_they_say(tmp_path):
    names = ["train/cat/1.png", "train/dog/2.PNG", "val/owl/3.png", "test/fish/trout/4.png", "test/fish/trout/5.png"]
    manifest = read_folder(write_tree(tmp_path / "pets", [*names, "train/cat/notes.txt"]))
    splits = dict(zip(manifest.paths, manifest.splits.tolist(), strict=True))
    assert splits == {name: name.split("/")[0] for name in names}
    labels = dict(zip(manifest.paths, (manifest.classes[label] for label in manifest.labels), strict=True))
    assert labels == {name: name.split("/", 1)[1].rsplit("/", 1)[0] for name in names}
    zipped = zip_tree(tmp_path / "pets", tmp_path / "pets.zip")
    assert read_folder(tmp_path, path=zipped.name).sha256 == manifest.sha256
    assert read_folder(tmp_path, path="pets").sha256 == manifest.sha256


def test_a_folder_of_classes_is_for_testing_unless_told_otherwise(tmp_path):
    tree = write_tree(tmp_path, [f"class{number}/{image}.png" for number in range(10) for image in range(3)])
    assert read_folder(tree).split_sizes == {"test": 30}
    halves = read_folder(tree, test_fraction=0.4, seed=1)
    assert halves.split_sizes == {"train": 18, "test": 12}
    assert not set(halves.split("train").classes) & set(halves.split("test").classes)
    assert read_folder(tree, test_fraction=0.4, seed=1).sha256 == halves.sha256
    assert read_folder(tree, test_fraction=0.4, seed=2).sha256 != halves.sha256


def test_a_class_may_be_called_as_a_split_or_begin_with_a_dot(tmp_path):
    names = ["train/1.png", "test/1.png", ".22 rifle/1.png", "val/1.png", "cat/1.png"]
    manifest = read_folder(write_tree(tmp_path, names))
    assert {*manifest.classes} == {"train", "test", ".22 rifle", "val", "cat"}
    assert manifest.split_sizes == {"test": 5}


def test_every_ending_of_an_image_is_read_and_every_other_file_is_counted_by_its_ending(tmp_path):
    photo = Image.new("RGB", (8, 8), "red")
    (tmp_path / "cat").mkdir()
    for ending in ("jfif", "avif", "jpe", "jp2", "tga", "dib", "PNG"):
        photo.save(tmp_path / f"cat/1.{ending}")
    write_tree(tmp_path, others := ["cat/1.heic", "cat/2.HEIC", "cat/1.pdf", "cat/1.eps", "labels/1.txt", "readme"])
    for reader in (read_folder, read_unlabelled):
        manifest = reader(tmp_path)
        assert len(manifest) == 7
        assert {decode(manifest.source, path, 3).shape for path in manifest.paths} == {(8, 8, 3)}
        assert sorted(manifest.unread) == sorted(others)
        (found,) = (finding for finding in examine(manifest).findings if finding.check.startswith("files"))
        assert found.check == "files that are not read (2 .heic, 1 .eps, 1 .pdf, 1 .txt, 1 without ending)"
        assert found.count == 6
    assert not {".pdf", ".eps", ".h5", ".mpg", ".pfm"} & {*IMAGE_SUFFIXES}
    assert {".mpo", ".npy", ".jfif"} < {*IMAGE_SUFFIXES}


def test_digits_are_scikit_learns_pixels_on_the_whole_range():
    from sklearn.datasets import load_digits

    manifest = read_digits()
    data = load_digits()
    for row in (0, 898, 1796):
        image = decode(manifest.source, manifest.paths[row], 1)
        assert image.shape == (8, 8, 1)
        np.testing.assert_allclose(image[:, :, 0] / 255, data.images[row] / 16, atol=0.5 / 255)
        assert manifest.classes[manifest.labels[row]] == str(data.target[row])


def test_unlabelled_images_of_any_depth_each_have_a_label_and_are_for_training(tmp_path):
    names = ["one.png", "a/two.jpg", "a/b/three.PNG", "test/four.png"]
    tree = write_tree(tmp_path / "photos", [*names, "a/notes.txt"])
    zip_tree(tree, tmp_path / "photos.zip")
    for root, params in ((tree, {}), (tmp_path, {"path": "photos"}), (tmp_path, {"path": "photos.zip"})):
        manifest = read_unlabelled(root, **params)
        assert sorted(manifest.paths) == sorted(names)
        assert manifest.labels.tolist() == [0, 1, 2, 3]
        assert manifest.classes == manifest.paths
        assert manifest.split_sizes == {"train": 4}
        assert manifest.name == "photos"


# -- The real archives, where they are there


@pytest.mark.data
def test_groceries_are_named_by_their_folders_and_recognised_as_ever():
    groceries = READERS["grocery"](real_archive("GroceryStoreDataset-master.zip"))
    assert {"Golden-Delicious", "Avocado", "Kiwi"} < set(groceries.classes)
    # That of the lists of products on which older results stand: so many images and classes in either split.
    assert groceries.sha256 == "1f6d4fa5d7492200a816489df4ca4d4ed2f620d459b9be1d0627ea75db2d09df"
    assert examine(groceries, contents=False).findings == ()


@pytest.mark.data
@pytest.mark.slow
def test_omniglot_has_its_published_sizes_and_its_one_repeated_image_is_found():
    drawings = read_omniglot(real_archive("omniglot_full.zip"))
    assert drawings.split_sizes == {"train": 19280, "test": 13180}
    assert len(drawings.split("train").classes) == 964
    assert len(drawings.split("test").classes) == 659
    assert (drawings.class_counts == 20).all()
    assert len(np.unique(drawings.super_labels)) == 50
    assert examine(drawings, contents=False).findings == ()
    braille = drawings.select(np.array(["/Braille/" in path for path in drawings.paths]))
    folder = "images_background/Braille/character01"
    repeated = f"same image more than once in a split: 1 ({folder}/0192_03.png = {folder}/0192_19.png)"
    assert [one for one in examine(braille).warnings if one.startswith("same image")] == [repeated]

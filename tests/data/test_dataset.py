import numpy as np
import pytest
import torch
from testing.trees import array_manifest, pixels, write_tree

from aurank.data import TRANSFORMS, ArraySource, ImageDataset, build_manifest, view_keys
from aurank.data.dataset import with_own_labels
from aurank.data.readers.folders import read_folder
from aurank.errors import UserError


def _dataset(name="crop_flip", **options):
    return ImageDataset(array_manifest({"train": [3, 4]}), TRANSFORMS[name](8, 3), channels=3, **options)


def test_an_item_is_the_pipelines_image_with_its_label_and_row():
    manifest = array_manifest({"train": [3, 4]})
    pipeline = TRANSFORMS["crop_flip"](8, 3)
    dataset = ImageDataset(manifest, pipeline, channels=3, seed=7)
    for row in range(len(dataset)):
        seed_of_view = int(np.random.SeedSequence([7, row, 2, 1]).generate_state(1, np.uint64)[0])
        for key, seed in ((row, None), ((row, 2, 1), seed_of_view)):
            image, label, id_ = dataset[key]
            assert image.dtype == torch.uint8
            assert torch.equal(dataset.to_input(image[None])[0], pipeline(pixels(row, 12, 10), seed))
            assert (label, id_) == (manifest.labels[row], row)


@pytest.mark.parametrize("cache_bytes", [0, 2**20])
def test_a_batch_holds_its_items_in_order(cache_bytes):
    dataset = _dataset(cache_bytes=cache_bytes)
    wanted = [(3, 0, 0), 5, (3, 0, 1), np.int64(0), (3, 1, 0)]
    batch = dataset.__getitems__(wanted)
    assert batch.image.shape == (5, 3, 8, 8)
    assert batch.id.tolist() == [3, 5, 3, 0, 3]
    assert batch.label.tolist() == dataset.manifest.labels[[3, 5, 3, 0, 3]].tolist()
    for place, key in enumerate(wanted):
        assert torch.equal(batch.image[place], dataset[key][0])
    assert len({image.numpy().tobytes() for image in batch.image}) == 5


def test_with_labels_of_their_own_only_the_views_of_an_image_share_one():
    manifest = with_own_labels(array_manifest({"train": [3, 4]}))
    assert manifest.labels.tolist() == list(range(7))
    assert manifest.class_counts.tolist() == [1] * 7
    dataset = ImageDataset(manifest, TRANSFORMS["crop_flip"](8, 3), channels=3)
    batch = dataset.__getitems__(view_keys([5, 2], 0, views=2))
    assert torch.equal(batch.label, batch.id)


def test_images_are_kept_only_if_all_of_them_fit():
    # Prepared for 8 × 8 crops: shorter side 9, so 10 × 9 × 3 bytes each.
    assert _dataset(cache_bytes=7 * 270).cached_bytes == 7 * 270
    assert _dataset(cache_bytes=7 * 270 - 1).cached_bytes == 0


def test_kept_images_are_read_once_and_only_the_rows_of_the_manifest(monkeypatch):
    read, original = [], ArraySource.pixels
    monkeypatch.setattr(ArraySource, "pixels", lambda self, path: read.append(path) or original(self, path))
    part = array_manifest({"train": [3], "test": [3]}).split("test")
    dataset = ImageDataset(part, TRANSFORMS["resize"](8, 3), channels=3)
    read.clear()
    dataset.__getitems__([0, 1, 2])
    assert read == []
    unkept = ImageDataset(part, TRANSFORMS["resize"](8, 3), channels=3, cache_bytes=0)
    unkept.__getitems__([0, 1, 2])
    assert read == list(part.paths)


@pytest.mark.parametrize("cache_bytes", [0, 2**20])
def test_corrupt_images_are_missing_from_all_views_and_counted_when_told(tmp_path, cache_bytes):
    manifest = read_folder(write_tree(tmp_path, [f"class{number % 2}/{number}.png" for number in range(8)]))
    for name in ("class0/2.png", "class1/5.png"):
        (tmp_path / name).write_bytes(b"no image")
    crop = TRANSFORMS["crop_flip"](16, 3)
    dataset = ImageDataset(manifest, crop, channels=3, on_error="skip", cache_bytes=cache_bytes)
    batch = dataset.__getitems__(view_keys(range(8), 0, views=3))
    assert dataset.skipped == ["class0/2.png", "class1/5.png"]
    good = [row for row in range(8) if manifest.paths[row] not in dataset.skipped]
    assert batch.id.tolist() == good * 3
    assert batch.label.tolist() == manifest.labels[good * 3].tolist()
    assert len(batch.image) == 18
    bad = manifest.paths.index("class0/2.png")
    nothing = dataset.__getitems__(view_keys([bad], 0, views=3))
    assert (nothing.image.shape, len(nothing.id)) == ((0, 3, 16, 16), 0)
    with pytest.raises(UserError, match=r"none of the 1 images of .* can be read \(first: 'class0/2\.png'\)"):
        ImageDataset(manifest.select([bad]), TRANSFORMS["resize"](8, 3), channels=3, on_error="skip")


@pytest.mark.parametrize("cache_bytes", [0, 2**20])
def test_an_image_that_the_transform_cannot_take_is_named_or_skipped(cache_bytes):
    images = {name: pixels(0, size, size) for name, size in {"a": 60, "b": 40, "c": 50}.items()}
    columns = {"paths": list(images), "labels": ["x"] * 3, "splits": ["train"] * 3}
    manifest = build_manifest("three", ArraySource(images), **columns)
    crop = TRANSFORMS["albumentations"](32, 3, pipeline=[{"name": "RandomCrop", "height": 48, "width": 48}])
    with pytest.raises(UserError, match=r"image 'b'.* 40 × 40 pixels"):
        ImageDataset(manifest, crop, channels=3, cache_bytes=cache_bytes).__getitems__(view_keys([0, 1, 2], 0))
    dataset = ImageDataset(manifest, crop, channels=3, cache_bytes=cache_bytes, on_error="skip")
    batch = dataset.__getitems__(view_keys([0, 1, 2], 0, views=2))
    assert batch.id.tolist() == [0, 2] * 2
    assert dataset.skipped == ["b"]
    assert torch.equal(batch.image[3:], dataset.__getitems__([(2, 0, 1)]).image)

"""JPEGs of training photos decoded at a fraction of their size: when, how close, and with the refusals of before."""

import functools
import io

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images
from testing.inputs import held_bytes

from aurank.data import TRANSFORMS, FolderSource, ImageDataset, build_manifest
from aurank.data.decode import decode
from aurank.data.sources import PartsSource

SIDE = 240  # of what a random part of 224 pixels is cut from, 256, a sixteenth less


@functools.cache
def photo(width: int = 640, height: int = 480, number: int = 0) -> Image.Image:
    """A real photo of much detail."""
    return Image.fromarray(load_sample_images().images[number]).resize((width, height), Image.Resampling.LANCZOS)


def held(image: Image.Image, kind: str = "JPEG", cut: int | None = None, **options: object) -> PartsSource:
    """A source of one photo's bytes."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return held_bytes(buffer.getvalue()[:cut])


@pytest.mark.parametrize(
    ("size", "least", "expected"),
    [
        ((640, 480), SIDE, (320, 240)),
        ((640, 480), SIDE + 1, (640, 480)),
        ((480, 640), 120, (120, 160)),
        ((640, 480), 60, (80, 60)),
        ((640, 480), 1, (80, 60)),
        ((644, 484), 60, (161, 121)),
        ((641, 480), 60, (641, 480)),
        ((256, 256), 8, (256, 256)),
        ((640, 480), None, (640, 480)),
    ],
)
def test_the_scale_leaves_enough_and_divides_the_sides(size, least, expected):
    found = decode(held(photo(*size)), "x", 3, least_side=least)
    assert found.shape == (*expected[::-1], 3)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("channels", [None, 1, 3, 4])
def test_a_photo_decoded_smaller_is_the_photo_made_smaller(mode, channels):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    source = held(photo().convert(mode), exif=exif, quality=95)
    small, whole = (decode(source, "x", channels, least_side=least) for least in (SIDE, None))
    assert small.shape == (320, 240, whole.shape[2])
    averaged = whole.astype(float).reshape(320, 2, 240, 2, -1).mean(axis=(1, 3))
    assert np.abs(small - averaged).mean() < 2


def test_a_crop_of_a_photo_decoded_smaller_differs_by_two_levels_at_most():
    pipeline = TRANSFORMS["crop_flip"](224, 3)
    differences = []
    for number in range(2):
        source = held(photo(number=number), quality=90)
        small, whole = (decode(source, "x", 3, least_side=least) for least in (pipeline.least_decoded_side, None))
        assert small.shape == (240, 320, 3)
        first, second = pipeline.prepare(small), pipeline.prepare(whole)
        for seed in range(4):
            pair = [pipeline.augment(prepared, seed).astype(float) for prepared in (first, second)]
            differences.append(np.abs(pair[0] - pair[1]).mean())
    assert np.mean(differences) < 2


@pytest.mark.parametrize(
    ("name", "params", "needed", "least"),
    [
        ("crop_flip", {}, 256, 240),
        ("crop_flip", {"margin": None}, 560, 525),
        ("random_crop", {}, 256, 384),
        ("simclr", {}, 256, 240),
        ("simclr", {"margin": None}, 792, 743),
        ("affine", {}, 896, 896),
        ("center", {"margin": 1}, 224, 336),
        ("resize", {}, 224, 336),
    ],
)
def test_every_transform_says_how_many_pixels_it_needs(name, params, needed, least):
    pipeline = TRANSFORMS[name](224, 3, **params)
    assert (pipeline.needed_side, pipeline.least_decoded_side) == (needed, least)


def test_only_a_data_set_that_asks_for_it_decodes_smaller(tmp_path):
    photo().save(tmp_path / "a.jpg")
    same = {"paths": ["a.jpg", "a.jpg"], "labels": ["a", "b"], "splits": ["train"] * 2}
    manifest = build_manifest("m", FolderSource(tmp_path), **same, boxes=[[-1] * 4, [0, 0, 400, 400]])
    pipeline = TRANSFORMS["crop_flip"](64, 3, margin=None, scale=(1, 1))
    shapes = []
    pipeline.prepare = lambda image: (shapes.append(image.shape[:2]), image)[1]
    for reduced in (False, True):
        ImageDataset(manifest, pipeline, channels=3, cache_bytes=0, reduced=reduced).__getitems__([0, 1])
    assert shapes == [(480, 640), (400, 400), (60, 80), (400, 400)]  # a box is of the pixels of the file

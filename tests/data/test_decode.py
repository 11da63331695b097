import contextlib
import functools
import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_sample_images
from testing.inputs import held_bytes
from testing.refusals import refused
from testing.trees import pixels

from aurank.data import TRANSFORMS, ArraySource, FolderSource, ImageDataset, build_manifest
from aurank.data.decode import decode, quiet_decoding
from aurank.data.sources import PartsSource
from aurank.errors import UserError


def _file(image: Image.Image, kind: str = "PNG", **options: object) -> PartsSource:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return held_bytes(buffer.getvalue())


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGB", "RGBA", "CMYK", "I;16"])
def test_every_kind_of_file_becomes_the_channels_asked_for(mode, channels):
    image = Image.new("L", (4, 2), 255)
    image.paste(0, (2, 0, 4, 2))  # black on the right
    image = Image.fromarray(np.asarray(image).astype(np.uint16) * 257) if mode == "I;16" else image.convert(mode)
    found = decode(_file(image, "TIFF" if mode == "CMYK" else "PNG"), "x", channels)
    assert found.dtype == np.uint8
    assert found.shape == (2, 4, channels)
    colours = found[:, :, : min(channels, 3)]
    assert (colours[:, :2] == 255).all()
    assert (colours[:, 2:] == 0).all()
    assert (found[:, :, 3:] == 255).all()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P, one clear colour", "P, alpha for each colour"])
def test_what_is_transparent_is_laid_on_white(mode):
    image = Image.new("RGBA", (3, 3), (0, 0, 0, 0))
    image.putpixel((1, 1), (0, 0, 0, 255))
    if mode.startswith("P"):
        palette = Image.new("P", (3, 3), 0)
        palette.putpalette([0, 0, 0, 0, 0, 0])
        palette.putpixel((1, 1), 1)
        file = _file(palette, transparency=0 if "clear" in mode else b"\x00\xff")
    else:
        file = _file(image.convert(mode))
    expected = np.full((3, 3), 255)
    expected[1, 1] = 0
    np.testing.assert_array_equal(decode(file, "x", 1)[:, :, 0], expected)
    np.testing.assert_array_equal(decode(file, "x", 3)[:, :, 1], expected)
    assert decode(file, "x", None).shape == (3, 3, 4)


@pytest.mark.parametrize(("orientation", "corner"), [(1, (0, 0)), (3, (2, 3)), (6, (0, 2)), (8, (3, 0))])
def test_the_exif_orientation_is_applied(orientation, corner):
    image = Image.new("L", (4, 3), 0)
    image.putpixel((0, 0), 255)
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = decode(_file(image, "PNG", exif=exif), "x", 1)[:, :, 0]
    assert tuple(np.argwhere(found == 255)[0]) == corner


GREYS = np.arange(0, 256, 5, dtype=np.int64).reshape(4, 13)[:, :12]


def _png(values: np.ndarray, *chunks: tuple[bytes, bytes]) -> bytes:
    """Returns a PNG with further chunks before its pixels."""
    png = _file(Image.fromarray(values)).read_bytes("x")
    for kind, content in chunks[::-1]:
        chunk = struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        png = png[:33] + chunk + png[33:]
    return png


def _tiff(content: bytes, bits: int, sample_format: int, order: str = "<") -> bytes:
    """Returns a grey TIFF of the shape of `GREYS` whose samples are written as they come."""
    height, width = GREYS.shape
    shape = {256: width, 257: height, 258: bits, 259: 1, 262: 1, 273: 134, 277: 1, 278: height, 279: len(content)}
    tags = {**shape, 339: sample_format}
    entries = b"".join(struct.pack(f"{order}HHIHH", tag, 3, 1, value, 0) for tag, value in tags.items())
    head = {"<": b"II", ">": b"MM"}[order] + struct.pack(f"{order}HIH", 42, 8, len(tags))
    return head + entries + bytes(134 - len(head) - len(entries)) + content


@pytest.mark.parametrize("order", "<>")
def test_the_range_that_a_file_declares_decides_its_grey_values(order: str) -> None:
    def grey(file: bytes) -> np.ndarray:
        return decode(held_bytes(file), "x", 1)[:, :, 0]

    deep = GREYS.astype(np.uint16)
    np.testing.assert_array_equal(grey(_png(deep * 256 + 255)), GREYS)
    np.testing.assert_array_equal(grey(b"P5\n12 4\n4095\n" + (deep * 16).astype(">u2").tobytes()), GREYS)
    unsigned, signed = (GREYS * 256 + 255, "u2", 16, 1), (GREYS * 256 - 2**15, "i2", 16, 2)
    for values, kind, bits, sample_format in (unsigned, signed, (GREYS - 2**7, "i1", 8, 2)):
        file = _tiff(values.astype(f"{order}{kind}").tobytes(), bits, sample_format, order)
        np.testing.assert_array_equal(grey(file), GREYS)
    pairs = (GREYS * 16 + 3).reshape(-1, 2).tolist()
    packed = b"".join((left << 12 | right).to_bytes(3, "big") for left, right in pairs)
    np.testing.assert_array_equal(grey(_tiff(packed, 12, 1)), GREYS)


@pytest.mark.parametrize(("kind", "sample_format"), [("u4", 1), ("i4", 2), ("f4", 3)])
def test_a_file_of_unknown_range_is_refused(kind: str, sample_format: int) -> None:
    file = _tiff(GREYS.astype(f"<{kind}").tobytes(), 32, sample_format)
    refused(r"image 'x' .*; convert (it|the image to 8 or 16 bits) first", decode, held_bytes(file), "x", 1)


def test_a_png_may_have_a_large_text_and_a_large_colour_profile() -> None:
    large = b"name\0\0" + zlib.compress(bytes(3_000_000))
    file = _png(GREYS.astype(np.uint8), (b"iCCP", large), (b"zTXt", large))
    np.testing.assert_array_equal(decode(held_bytes(file), "x", 1)[:, :, 0], GREYS)


@settings(max_examples=20, deadline=None)
@given(height=st.integers(1, 9), width=st.integers(1, 9), channels=st.sampled_from([1, 2, 3, 4, 7]))
def test_arrays_of_any_number_of_channels_come_back_unchanged(height, width, channels):
    image = pixels(0, height, width, channels)
    np.testing.assert_array_equal(decode(ArraySource({"x": image}), "x", channels), image)
    np.testing.assert_array_equal(decode(ArraySource({"x": image}), "x", None), image)


def test_arrays_are_converted_as_files_are():
    for old in (1, 3, 4):
        image = pixels(0, channels=old)
        file = _file(Image.fromarray(image[:, :, 0] if old == 1 else image))
        for new in (1, 3, 4):
            np.testing.assert_array_equal(decode(ArraySource({"x": image}), "x", new), decode(file, "x", new))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), kind=st.sampled_from(["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"]))
def test_a_damaged_file_is_an_image_or_named_and_nothing_else(data, kind):
    good = _file(Image.fromarray(pixels(0)), kind).read_bytes("x")
    damage = data.draw(st.lists(st.tuples(st.integers(0, len(good) - 1), st.integers(0, 255)), max_size=4))
    broken = bytearray(good)
    for place, value in damage:
        broken[place] = value
    length = data.draw(st.integers(0, len(good)))
    # Anything but a UserError would fail the test.
    with quiet_decoding(), contextlib.suppress(UserError):
        assert decode(held_bytes(bytes(broken[:length])), "x", 3).shape[2] == 3


# -- JPEGs of training photos decoded at a fraction of their size: when, and how close

SIDE = 240  # of what a random part of 224 pixels is cut from, 256, a sixteenth less


@functools.cache
def photo(width: int = 640, height: int = 480, number: int = 0) -> Image.Image:
    return Image.fromarray(load_sample_images().images[number]).resize((width, height), Image.Resampling.LANCZOS)


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
    found = decode(_file(photo(*size), "JPEG"), "x", 3, least_side=least)
    assert found.shape == (*expected[::-1], 3)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("channels", [None, 1, 3, 4])
def test_a_photo_decoded_smaller_is_the_photo_made_smaller(mode, channels):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    source = _file(photo().convert(mode), "JPEG", exif=exif, quality=95)
    small, whole = (decode(source, "x", channels, least_side=least) for least in (SIDE, None))
    assert small.shape == (320, 240, whole.shape[2])
    averaged = whole.astype(float).reshape(320, 2, 240, 2, -1).mean(axis=(1, 3))
    assert np.abs(small - averaged).mean() < 2


def test_a_crop_of_a_photo_decoded_smaller_differs_by_two_levels_at_most():
    pipeline = TRANSFORMS["crop_flip"](224, 3)
    differences = []
    for number in range(2):
        source = _file(photo(number=number), "JPEG", quality=90)
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

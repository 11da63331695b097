import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from testing.trees import pixels

from aurank.data import TRANSFORMS, open_source
from aurank.data.decode import decode
from aurank.data.transforms.base import resize, resize_shorter
from aurank.errors import UserError


@pytest.mark.parametrize("channels", [1, 3, 4, 6])
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize(("height", "width"), [(40, 30), (17, 64), (5, 5), (1, 1), (16, 16)])
def test_any_image_becomes_a_float32_square(name, channels, height, width):
    pipeline = TRANSFORMS[name](16, channels)
    for seed in (None, 0, 2**64 - 1):
        found = pipeline(pixels(0, height, width, channels), seed)
        assert found.shape == (channels, 16, 16)
        assert found.dtype == torch.float32
        assert found.is_contiguous()
        assert found.isfinite().all()


@pytest.mark.parametrize("name", TRANSFORMS)
def test_values_are_normalised_by_mean_and_spread(name):
    black, white = (np.full((20, 20, 1), value, np.uint8) for value in (0, 255))
    plain = TRANSFORMS[name](16, 1)
    assert plain(black).unique().tolist() == [-1]
    assert plain(white).unique().tolist() == [1]
    own = TRANSFORMS[name](16, 1, mean=[0.25], std=[0.5])
    assert own(white).unique().tolist() == [1.5]
    found = TRANSFORMS[name](16, 3)(np.full((20, 20, 3), 255, np.uint8))
    expected = (1 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    torch.testing.assert_close(found, expected.view(3, 1, 1).expand(3, 16, 16))


@pytest.mark.parametrize("name", TRANSFORMS)
@settings(max_examples=4, deadline=None)
@given(seeds=st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=6, unique=True))
def test_the_result_depends_on_image_and_seed_only(name, seeds):
    pipeline = TRANSFORMS[name](12, 3)
    images = [pixels(number, 20, 24) for number in range(len(seeds))]
    found = [pipeline(image, seed) for image, seed in zip(images, seeds, strict=True)]
    np.random.seed(0)  # noqa: NPY002  # the global state must not matter
    for image, seed, first in reversed(list(zip(images, seeds, found, strict=True))):
        torch.testing.assert_close(pipeline(image, seed), first, rtol=0, atol=0)
        torch.testing.assert_close(TRANSFORMS[name](12, 3)(image, seed), first, rtol=0, atol=0)
        torch.testing.assert_close(pickle.loads(pickle.dumps(pipeline))(image, seed), first, rtol=0, atol=0)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_the_image_that_came_is_left_as_it_was(name):
    image = pixels(0, 16, 16)
    image.setflags(write=False)  # writing raises, and a view of it given to torch would warn
    for seed in (None, 3):
        TRANSFORMS[name](16, 3)(image, seed)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_batch_is_normalised_as_its_images_are(name):
    pipeline = TRANSFORMS[name](8, 3)
    squares = [pipeline.augment(pipeline.prepare(pixels(number, 20, 20)), number) for number in range(5)]
    batch = pipeline.normalise(torch.from_numpy(np.stack(squares)).permute(0, 3, 1, 2))
    for number, one in enumerate(batch):
        assert torch.equal(one, pipeline(pixels(number, 20, 20), number))


def test_pixels_are_normalised_to_the_numbers_of_the_formula_on_any_device_and_in_any_order():
    pipeline = TRANSFORMS["resize"](8, 3, mean=[0.1, 0.2, 0.3], std=[0.4, 0.5, 0.6])
    values = torch.from_numpy(np.stack([pixels(number, 8, 8) for number in range(4)]))
    mean, std = (torch.tensor(numbers).view(3, 1, 1) for numbers in (pipeline.mean, pipeline.std))
    expected = (values.permute(0, 3, 1, 2).float() - 255 * mean) / (255 * std)
    for batch in (values.permute(0, 3, 1, 2), values.permute(0, 3, 1, 2).contiguous()):
        found = pipeline.normalise(batch)
        assert torch.equal(found, expected)
        assert found.is_contiguous()
        assert torch.equal(pickle.loads(pickle.dumps(pipeline)).normalise(batch), expected)
    with torch.inference_mode():
        pipeline.normalise(values.permute(0, 3, 1, 2)[:1])
    weight = torch.ones(3, 1, 1, requires_grad=True)
    (pipeline.normalise(batch) * weight).sum().backward()  # nothing of inference is kept
    assert pipeline.normalise(batch.to("meta")).device.type == "meta"


def test_crop_flip_without_margin_crops_the_image_at_its_own_size():
    image = pixels(0, 300, 400)
    pipeline = TRANSFORMS["crop_flip"](64, 3, margin=None)
    assert pipeline.prepare(image) is image
    assert torch.equal(pipeline(image), TRANSFORMS["center"](64, 3)(image))
    # Enlarging what was reduced loses detail: neighbours differ less than where the image itself is cropped.
    narrow = {"scale": [0.02, 0.02], "ratio": [1, 1]}  # 49 pixels a side
    whole, reduced = (TRANSFORMS["crop_flip"](64, 3, **narrow, **margin) for margin in ({"margin": None}, {}))
    changes = [[float(crop(image, seed).diff(dim=2).abs().mean()) for seed in range(10)] for crop in (whole, reduced)]
    assert min(changes[0]) > 2 * max(changes[1])


@given(height=st.integers(1, 60), width=st.integers(1, 60), side=st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_the_shorter_side_is_exact_and_the_shape_kept(height, width, side):
    found = resize_shorter(pixels(0, height, width, 1), side).shape[:2]
    assert min(found) == side
    assert max(found) == side * max(height, width) // min(height, width)


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("crop_flip", {"scale": [0.5, 0.1]}, "scale must be two numbers between 1e-06 and 1, smaller one first"),
        ("crop_flip", {"ratio": [1.0]}, "ratio must be two numbers"),
        ("crop_flip", {"flip": 2}, "flip must be between 0 and 1, got 2"),
        ("crop_flip", {"margin": 0.5}, "margin must be at least 1"),
        ("timm", {"crop_pct": 0}, "crop_pct must be between 0.01 and 2, got 0"),
        ("timm", {"crop_mode": "middle"}, "crop_mode must be one of center, squash, border, got 'middle'"),
        ("affine", {"oversample": 0.5}, "oversample must be at least 1, got 0.5"),
        ("resize", {"image_size": 0}, "image_size must be at least 1, got 0"),
        ("resize", {"mean": [0.5]}, "mean must be 3 numbers"),
        ("resize", {"mean": [123, 116, 103]}, "mean must be 3 numbers between 0 and 1"),
    ],
)
def test_impossible_parameters_are_refused(name, params, message):
    with pytest.raises(UserError, match=message):
        TRANSFORMS[name](**{"image_size": 32, "channels": 3} | params)


@pytest.mark.parametrize(
    ("image", "came"),
    [
        (pixels(0, 9, 8, 3), r"uint8 of shape \[9, 8, 3\]"),
        (pixels(0, 9, 8, 1)[:, :, 0], r"uint8 of shape \[9, 8\]"),
        (pixels(0, 9, 8, 1)[:0], r"uint8 of shape \[0, 8, 1\]"),
        (pixels(0, 9, 8, 1) / 255, r"float64 of shape \[9, 8, 1\]"),
    ],
)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_an_image_of_another_shape_or_type_is_refused_with_what_was_expected(name, image, came):
    with pytest.raises(UserError, match=r"must be Pillow's or a uint8 array \[height, width, 1\], got " + came):
        TRANSFORMS[name](8, 1)(image)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_an_image_of_pillow_is_taken_as_its_file_would_be(channels, tmp_path):
    grey = Image.fromarray(pixels(0, 20, 30, 1)[:, :, 0])
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    Image.fromarray(pixels(1, 20, 30, 3)).save(tmp_path / "turned.png", exif=exif)
    Image.fromarray(pixels(2, 20, 30, 4)).save(tmp_path / "clear.png")
    grey.save(tmp_path / "grey.png")
    grey.convert("P").save(tmp_path / "palette.png")
    pipeline = TRANSFORMS["resize"](16, channels)
    for name in ("turned.png", "clear.png", "grey.png", "palette.png"):
        expected = pipeline(decode(open_source(tmp_path), name, channels))
        with Image.open(tmp_path / name) as file:
            assert torch.equal(pipeline(file), expected)
    with pytest.raises(UserError, match=r"mode I, whose values may be of 8 or 16 bits: give image\.convert"):
        pipeline(grey.convert("I"))
    with pytest.raises(UserError, match="an image of Pillow gives 1, 3 or 4 channels, not 2"):
        TRANSFORMS["resize"](16, 2)(grey)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"])
def test_other_interpolations_are_those_of_pillow_for_each_channel(interpolation):
    image = pixels(0, 31, 47, 5)
    method = Image.Resampling[interpolation.upper()]
    for height, width in ((9, 14), (60, 70)):
        found = resize(image, height, width, interpolation)
        for channel in range(5):
            expected = Image.fromarray(image[:, :, channel]).resize((width, height), method)
            assert np.array_equal(found[:, :, channel], np.array(expected))
        colours = Image.fromarray(image[:, :, :3]).resize((width, height), method)
        assert np.array_equal(resize(image[:, :, :3], height, width, interpolation), np.array(colours))
    assert resize(image, 31, 47, interpolation) is image

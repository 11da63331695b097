import pickle
from functools import partial
from itertools import product

import albumentations
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from testing.refusals import refused
from testing.trees import pixels
from torchvision.transforms import v2

from aurank.data import TRANSFORMS
from aurank.data.transforms.base import resize
from aurank.data.transforms.geometry import chance_of

SHIFTS = [{"name": "Rotate", "p": 1.0}, {"name": "HorizontalFlip"}]
ERASING = {"name": "RandomApply", "transforms": [{"name": "RandomErasing", "p": 1}]}
MAKERS = {
    **TRANSFORMS,
    "albumentations": partial(TRANSFORMS["albumentations"], pipeline=SHIFTS),
    "torchvision": partial(TRANSFORMS["torchvision"], pipeline=[ERASING]),
}


@pytest.mark.parametrize("channels", [1, 3, 4, 6])
@pytest.mark.parametrize("name", MAKERS)
def test_any_image_becomes_float32_of_the_size_and_is_left_as_it_was(name, channels):
    ways = [(16, "crop"), ([24, 10], "crop"), ([24, 10], "pad"), ([10, 24], "squash"), ([16, 16], "pad")]
    shapes = [(40, 30), (17, 64), (5, 5), (1, 1), (16, 16)]
    for (size, how), (height, width), seed in product(ways, shapes, (None, 0, 2**64 - 1)):
        pipeline = MAKERS[name](size, channels, resize=how)
        image = pixels(0, height, width, channels)
        image.setflags(write=False)  # writing raises, and a view of it given to torch would warn
        found = pipeline(image, seed)
        assert found.shape == (channels, *((size, size) if size == 16 else size))
        assert found.dtype == torch.float32
        assert found.is_contiguous()
        assert found.isfinite().all()


@pytest.mark.parametrize("name", MAKERS)
def test_values_are_normalised_by_mean_and_spread(name):
    black, white = (np.full((20, 20, 1), value, np.uint8) for value in (0, 255))
    plain = MAKERS[name](16, 1)
    assert plain(black).unique().tolist() == [-1]
    assert plain(white).unique().tolist() == [1]
    own = MAKERS[name](16, 1, mean=[0.25], std=[0.5])
    assert own(white).unique().tolist() == [1.5]
    found = MAKERS[name](16, 3)(np.full((20, 20, 3), 255, np.uint8))
    expected = (1 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    torch.testing.assert_close(found, expected.view(3, 1, 1).expand(3, 16, 16))


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=4, deadline=None)
@given(seeds=st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=6, unique=True))
def test_the_result_depends_on_image_and_seed_only(name, seeds):
    pipeline = MAKERS[name](12, 3)
    images = [pixels(number, 20, 24) for number in range(len(seeds))]
    found = [pipeline(image, seed) for image, seed in zip(images, seeds, strict=True)]
    np.random.seed(0)  # noqa: NPY002  # the global state must not matter
    for image, seed, first in reversed(list(zip(images, seeds, found, strict=True))):
        torch.testing.assert_close(pipeline(image, seed), first, rtol=0, atol=0)
        torch.testing.assert_close(MAKERS[name](12, 3)(image, seed), first, rtol=0, atol=0)
        torch.testing.assert_close(pickle.loads(pickle.dumps(pipeline))(image, seed), first, rtol=0, atol=0)


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


@pytest.mark.parametrize("name", MAKERS)
def test_words_on_a_pipeline_are_those_of_before_there_were_rectangles(name):
    assert "resize=" not in repr(MAKERS[name](16, 3))
    assert repr(MAKERS[name]((16, 16), 3)) == repr(MAKERS[name](16, 3))  # caches and stored models are known by it
    for other in ({"resize": "pad"}, {"resize": "squash"}, {"image_size": (16, 17)}, {"image_size": (17, 16)}):
        assert repr(MAKERS[name](**{"image_size": 16, "channels": 3, **other})) != repr(MAKERS[name](16, 3))


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


def test_any_pipeline_of_albumentations_is_taken_from_a_file_or_a_list(tmp_path):
    whole = albumentations.Compose([albumentations.OneOf([albumentations.Blur(p=1), albumentations.Rotate(p=1)], p=1)])
    albumentations.save(whole, tmp_path / "mine.yaml", data_format="yaml")
    image = pixels(0, 40, 60)
    for steps in (str(tmp_path / "mine.yaml"), [{"name": "RandomResizedCrop", "size": (9, 12)}]):
        pipeline = TRANSFORMS["albumentations"](16, 3, pipeline=steps)
        assert not torch.equal(pipeline(image, 1), pipeline(image, 2))
        assert torch.equal(pipeline(image), TRANSFORMS["center"](16, 3, margin=1)(image))
    whole.set_random_state(np.random.default_rng(7), chance_of(7))
    expected = resize(whole(image=image)["image"], 16, 16)
    pipeline = TRANSFORMS["albumentations"](16, 3, pipeline=str(tmp_path / "mine.yaml"))
    np.testing.assert_array_equal(pipeline.augment(image, 7), expected)


def test_a_pipeline_of_torchvision_draws_from_the_seed_alone_and_leaves_torch_as_it_was():
    steps, image = [{"name": "RandAugment", "num_ops": 1}, ERASING], pixels(0, 40, 60)
    pipeline = TRANSFORMS["torchvision"](16, 3, pipeline=steps)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    found = pipeline(image, 1)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(pipeline(image), TRANSFORMS["center"](16, 3, margin=1)(image))
    torch.manual_seed(1)
    transforms = v2.Compose([v2.RandAugment(1), v2.RandomApply([v2.RandomErasing(p=1)])])
    changed = transforms(torch.tensor(image).permute(2, 0, 1)).permute(1, 2, 0).numpy()
    expected = torch.tensor(resize(changed, 16, 16)).permute(2, 0, 1)
    assert torch.equal(found, pipeline.normalise(expected))


@pytest.mark.parametrize(
    ("library", "steps", "said"),
    [
        ("albumentations", [{"name": "HorizontalFlipp"}], "did you mean 'HorizontalFlip'"),
        ("albumentations", [{"name": "HorizontalFlip", "often": 1}], "'often'"),
        ("albumentations", [{"name": "RandomCrop", "height": 100, "width": 100}], "exceeds image dimensions"),
        ("albumentations", [{"name": "Normalize"}], "leave out Normalize"),
        ("albumentations", "no such file.yaml", "no such file.yaml"),
        ("torchvision", [{"name": "RandomErase"}], "did you mean 'RandomErasing'"),
        ("torchvision", [{"name": "RandAugment", "often": 1}], "'often'"),
        ("torchvision", [{"name": "ToDtype", "dtype": torch.float32}], "leave out ToDtype"),
    ],
)
def test_a_pipeline_that_its_library_cannot_make_is_refused_before_training(library, steps, said):
    refused(said, TRANSFORMS[library], 16, 3, pipeline=steps)

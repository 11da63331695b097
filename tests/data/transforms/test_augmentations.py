"""The views of training without labels."""

import numpy as np
import pytest
import torch

from aurank.data import TRANSFORMS
from aurank.errors import UserError

PLAIN = {"jitter": 0, "grey": 0, "blur": 0}
RAW = {"mean": [0, 0, 0], "std": [1, 1, 1]}


def constant(value, size=24, channels=3):
    return np.full((size, size, channels), value, np.uint8)


@pytest.mark.parametrize("channels", [1, 4, 6])
def test_what_is_no_rgb_keeps_its_values(channels):
    pipeline = TRANSFORMS["simclr"](16, channels, jitter=1, grey=1, blur=1)
    image = constant(100, channels=channels)
    for seed in range(10):
        torch.testing.assert_close(pipeline(image, seed), pipeline(image), rtol=0, atol=0.01)


def test_the_first_views_are_large_crops_and_the_others_small_crops_of_small_parts():
    ramp = np.linspace(0, 255, 120).round().astype(np.uint8)
    image = np.stack([np.tile(ramp, (120, 1)), np.tile(ramp[:, None], (1, 120)), np.zeros((120, 120), np.uint8)], 2)
    pipeline = TRANSFORMS["multi_crop"](
        100, 3, local_size=32, local_scale=[0.05, 0.14], scale=[0.3, 1], global_views=2, **PLAIN, **RAW
    )
    prepared = pipeline.prepare(image)
    for view in range(5):
        small = view >= 2
        squares = [pipeline.of_view(view).augment(prepared, seed).astype(int) for seed in range(100)]
        assert {square.shape for square in squares} == {(32, 32, 3) if small else (100, 100, 3)}
        spans = np.array([(np.ptp(square[:, :, 0]) + 1, np.ptp(square[:, :, 1]) + 1) for square in squares]) / 256
        areas = spans.prod(axis=1)
        low, high = (0.05, 0.14) if small else (0.3, 1.0)
        assert 0.7 * low < areas.min() < 1.5 * low
        assert 0.75 * high < areas.max() < 1.1 * high
    assert torch.equal(pipeline(image), TRANSFORMS["simclr"](100, 3, **RAW)(image))


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("simclr", {"jitter": 2}, "jitter must be between 0 and 1, got 2"),
        ("simclr", {"strength": 3}, r"strength must be between 0 and 2\.5, got 3"),
        ("multi_crop", {"local_size": 0}, "local_size must be at least 1, got 0"),
        ("multi_crop", {"local_scale": [0.5, 0.1]}, "local_scale must be two numbers .* smaller one first"),
    ],
)
def test_impossible_parameters_are_refused(name, params, message):
    with pytest.raises(UserError, match=message):
        TRANSFORMS[name](32, 3, **params)

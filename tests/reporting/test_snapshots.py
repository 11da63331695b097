"""Pictures for trackers: what a grid marks is what the report says, whatever the images and names are."""

import numpy as np

import aurank
from aurank.data.sources import ArraySource
from aurank.evaluation import Report
from aurank.reporting.grids import make_grids
from aurank.reporting.pictures import Pictures
from aurank.reporting.snapshots import GAP, LINE, SIDE, curve_snapshot, grid_snapshot

RIGHT, WRONG = (0x0A, 0x7D, 0x43), (0xB4, 0x23, 0x18)
IMAGES = ArraySource({f"{row}.png": np.full((90, 60, 3), 10 * row, np.uint8) for row in range(20)})


def measured() -> Report:
    rows = np.random.default_rng(2).standard_normal((21, 4))
    labels = np.arange(21) // 3
    report = aurank.evaluate(rows, labels, neighbours=4)
    names = np.array([f"<b>\x1b $\\frac{{ {one}\n日本" for one in labels])
    return report.named(np.array([f"{row}.png" for row in range(21)]), names)  # 20.png is missing


def test_frames_say_what_the_report_says() -> None:
    report = measured()
    picture = grid_snapshot(report, IMAGES, queries=3)
    worst, _, random = make_grids(report, Pictures(None), queries=3)
    columns = 6  # the query, its list, and a positive behind
    assert picture.shape == (2 * (LINE + GAP) + 6 * (SIDE + 3 * LINE), columns * (SIDE + GAP), 3)
    top = 0
    for grid in (worst, random):
        top += LINE + GAP
        for row in grid.rows:
            assert any(one.is_right for one in row.found)
            for place, one in enumerate(row.found, 1):
                frame = tuple(picture[top + SIDE // 2, place * (SIDE + GAP)].tolist())
                assert frame == (RIGHT if one.is_right else WRONG)
            top += SIDE + 3 * LINE


def test_the_images_are_in_the_picture() -> None:
    report = measured()
    row = make_grids(report, Pictures(None), queries=1)[0].rows[0]
    picture = grid_snapshot(report, IMAGES, queries=1)
    middle = LINE + GAP + SIDE // 2
    for place, one in enumerate(row.found, 1):
        if one.path != "20.png":
            shade = picture[middle, place * (SIDE + GAP) + SIDE // 2].astype(int)
            assert np.abs(shade - 10 * int(one.path.removesuffix(".png"))).max() <= 2


def test_a_curve_is_pixels() -> None:
    picture = curve_snapshot(measured())
    assert picture.dtype == np.uint8
    assert picture.shape[2] == 3
    assert picture.min() < 64 < 192 < picture.max()

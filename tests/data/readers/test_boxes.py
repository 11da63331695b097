"""Boxes in tables: each row is a part of an image."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from testing.trees import pixels, write_tree

from aurank.data import ImageDataset
from aurank.data.checks.doctor import examine, repeated_image
from aurank.data.checks.findings import write_table
from aurank.data.decode import crop
from aurank.data.readers.table import read_table
from aurank.data.transforms.base import Pipeline
from aurank.errors import UserError

HEADER = "path,label,split,x1,y1,x2,y2\n"
ROWS = "a.png,cat,test,0,0,3,2\na.png,dog,test,2,1,5,6\nb.png,cat,test,,,,\n"


class AsItIs(Pipeline):
    """The pixels that a data set hands to its transform."""

    def prepare(self, image: np.ndarray) -> np.ndarray:
        return image


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tree(tmp_path, ("a.png", "b.png"))
    (tmp_path / "rows.csv").write_text(HEADER + ROWS)
    return tmp_path


def refusal(folder: Path, text: str) -> str:
    (folder / "rows.csv").write_text(text)
    with pytest.raises(UserError) as error:
        read_table(folder, file="rows.csv")
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_row_is_the_part_of_the_image_in_its_box_as_pillow_cuts_it(folder: Path) -> None:
    manifest = read_table(folder, file="rows.csv")
    assert manifest.boxes.tolist() == [[0, 0, 3, 2], [2, 1, 5, 6], [-1, -1, -1, -1]]
    dataset = ImageDataset(manifest, AsItIs(6, 3), channels=3, cache_bytes=0)
    for row, box in enumerate([(0, 0, 3, 2), (2, 1, 5, 6), None]):
        with Image.open(folder / manifest.paths[row]) as file:
            expected = np.asarray(file if box is None else file.crop(box))
        np.testing.assert_array_equal(dataset._read(row), expected)


def test_rows_that_differ_in_their_box_alone_are_no_repeats(folder: Path) -> None:
    manifest = read_table(folder, file="rows.csv")
    assert repeated_image(manifest) is None
    assert examine(manifest, contents=False).errors == []
    (folder / "rows.csv").write_text(HEADER + ROWS + "a.png,cat,test,0.2,0,3,1.9\n")
    again = read_table(folder, file="rows.csv")
    assert "lists image 'a.png [0, 0, 3, 2]' twice" in str(repeated_image(again))
    assert "a.png [0, 0, 3, 2]" in str(examine(again, contents=False))
    assert "has label 'dog', but 'cat'" in refusal(folder, HEADER + ROWS + "b.png,dog,test,,,,\n")


def test_boxes_are_part_of_the_content_and_stay_with_their_rows(folder: Path) -> None:
    manifest = read_table(folder, file="rows.csv")
    (folder / "whole.csv").write_text("path,label,split\nb.png,cat,test\n")
    whole = read_table(folder, file="whole.csv")
    assert whole.boxes is None
    part = manifest.select([1, 2])
    assert part.boxes.tolist() == [[2, 1, 5, 6], [-1] * 4]
    (folder / "rows.csv").write_text(HEADER + ROWS.replace("2,1,5,6", "2,1,5,5"))
    assert read_table(folder, file="rows.csv").sha256 != manifest.sha256
    write_table(manifest, folder / "kept.csv")
    assert read_table(folder, file="kept.csv").sha256 == manifest.sha256


def test_a_box_reaches_no_further_than_its_image_and_one_beyond_it_is_named() -> None:
    image = pixels(1, height=4, width=5)
    np.testing.assert_array_equal(crop(image, (3, 2, 90, 90), "a.png"), image[2:, 3:])
    with pytest.raises(UserError, match=r"image 'a.png' has 5 × 4 pixels, of which none lies in the box 5,0,9,4"):
        crop(image, (5, 0, 9, 4), "a.png")

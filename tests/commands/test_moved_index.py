"""An index whose photos were moved: found with --root, and remembered by what changes the index."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from testing.galleries import small_index, write_photo, write_photos

from aurank.commands import ImageIndex, add_images
from aurank.embedding import ImageSelection
from aurank.errors import UserError


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

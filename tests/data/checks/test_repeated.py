"""Images that are listed twice: by rows, by members of an archive, by links."""

import warnings
import zipfile
from pathlib import Path

import pytest
from testing.trees import write_tree

from aurank.data import READERS, FolderSource
from aurank.data.checks.doctor import repeated_image

NAMES = ["a/0.png", "a/1.png", "b/2.png", "b/3.png"]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "photos", NAMES)


@pytest.mark.parametrize(
    ("link", "target"), [("self", "."), ("a/up", ".."), ("a/more", "../b"), ("z", "a"), ("c/d", "../a"), ("0", "b")]
)
def test_links_within_a_folder_add_nothing(photos: Path, link: str, target: str) -> None:
    (photos / link).parent.mkdir(exist_ok=True)
    (photos / link).symlink_to(target)
    assert FolderSource(photos).names() == NAMES


def test_links_that_lead_elsewhere_are_followed_once(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "linked").mkdir()
    for name in ("x", "y"):
        (tmp_path / "linked" / name).symlink_to(photos)
    (photos / "back").symlink_to(tmp_path / "linked")
    assert FolderSource(tmp_path / "linked").names() == [f"x/{name}" for name in NAMES]
    (tmp_path / "top").symlink_to(photos)
    assert FolderSource(tmp_path / "top").names()[:4] == NAMES


def test_rows_that_name_one_image_twice_are_found(photos: Path) -> None:
    def table(*rows: str, header: str = "path,label,split") -> str | None:
        (photos / "rows.csv").write_text("\n".join([header, *rows]) + "\n")
        return repeated_image(READERS["table"](photos, file="rows.csv", outside=True))

    assert table("a/0.png,a,test", "a/1.png,a,test") is None
    assert table("a/0.png,a,test", "a/1.png,a,test", "a/0.png,a,train") == "rows lists image 'a/0.png' twice"
    found = table(*["a/0.png,a,test", "b/../a/0.png,a,test"] * 2, "b/2.png,b,test", "b/./2.png,b,test")
    assert found == "rows lists image 'a/0.png' twice, and 1 more"
    texts = ["a/0.png,a cat,train", "a/0.png,one cat,train", "b/2.png,a dog,train"]
    assert table(*texts, header="path,text,split") is None


def test_members_of_one_name_are_found(photos: Path) -> None:
    with zipfile.ZipFile(photos / "all.zip", "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in [*NAMES, NAMES[1]]:
            archive.write(photos / name, name)
    assert repeated_image(READERS["folder"](photos, path="all.zip")) == "all lists image 'a/1.png' twice"
    assert repeated_image(READERS["digits"](photos)) is None

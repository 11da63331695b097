"""What the doctor finds in a data set, and images listed twice: by rows, by members of an archive, by links."""

import warnings
import zipfile

import pytest
from testing.trees import array_manifest, pixels, write_tree

from aurank.data import READERS, ArraySource, FolderSource, Manifest, build_manifest
from aurank.data.checks.doctor import examine, repeated_image
from aurank.names import text_key


def _of_images(images: dict[str, int], labels: list[str], splits: list[str]) -> Manifest:
    """Returns a manifest in memory; images with the same number are the same."""
    source = ArraySource({path: pixels(number) for path, number in images.items()})
    return build_manifest("memory", source, paths=list(images), labels=labels, splits=splits)


def test_a_sound_data_set_has_no_findings():
    report = examine(array_manifest({"train": [2, 3], "test": [2, 2]}))
    assert report.findings == ()
    assert report.errors == report.warnings == []
    test, train = {"test images": 4, "test classes": 2}, {"train images": 5, "train classes": 2}
    assert report.counts == {"images": 9, "classes": 4, **test, **train}
    assert str(report).endswith("nothing wrong was found")
    gone = build_manifest("gone", ArraySource({}), paths=list("0123"), labels=["x"] * 4, splits=["test"] * 4)
    assert examine(gone).errors == ["missing files: 4 (0; 1; 2, and 1 more)"]


def test_everything_is_reported_together_with_counts(tmp_path):
    write_tree(tmp_path, ["a/1.png", "a/2.png", "b/1.png", "b/2.png", "c/1.png", "c/2.png", "d/1.png"])
    (tmp_path / "a/2.png").write_bytes(b"no image")
    (tmp_path / "c/1.png").write_bytes((tmp_path / "b/1.png").read_bytes())
    paths = ["a/1.png", "a/2.png", "a/3.png", "a/4.png", "b/1.png", "b/1.png", "c/1.png", "d/1.png", "a/5.png"]
    columns = {"labels": [path[0] for path in paths], "splits": ["train"] * 6 + ["test"] * 3}
    report = examine(build_manifest("sick", FolderSource(tmp_path), paths=paths, **columns))
    errors = ["missing files: 3", "duplicate paths: 1", "unreadable images: 1"]
    assert [text.split(" (")[0] for text in report.errors] == errors
    assert [text.split(" (")[0] for text in report.warnings] == [
        "classes with one image in their split: 3",
        "classes in both train and test: 1",
        "same image in train and test: 1",
        "same image under two classes: 1",
    ]
    assert "missing files: 3 (a/3.png; a/4.png; a/5.png)" in str(report)
    assert "'a/2.png'" in report.errors[2]
    assert "b/1.png = b/1.png = c/1.png" in str(report)


@pytest.mark.parametrize("pair", [("train", "val"), ("train", "test"), ("val", "test")])
def test_what_any_two_splits_share_is_found(pair):
    manifest = _of_images({"0": 0, "1": 1, "2": 2, "3": 0}, list("aaaa"), [pair[0]] * 2 + [pair[1]] * 2)
    warnings = examine(manifest).warnings
    assert f"classes in both {pair[0]} and {pair[1]}: 1 (a)" in warnings
    assert f"same image in {pair[0]} and {pair[1]}: 1 (0 = 3)" in warnings
    assert not [text for text in warnings if "more than once" in text]


def test_where_training_has_no_labels_its_classes_and_a_missing_test_split_are_no_findings():
    images, labels = {"0": 0, "1": 1, "2": 1, "3": 2, "4": 3}, list("abccd")
    manifest = _of_images(images, labels, ["train"] * 4 + ["val"])
    lone, twice = "classes with one image in their split: ", "same image more than once in a split: 1 (1 = 2)"
    assert examine(manifest, train_labels=False).warnings == [f"{lone}1 (d in val)", twice]
    counts = {"images": 5, "classes": 1, "train images": 4, "val images": 1, "val classes": 1}
    assert examine(manifest, train_labels=False).counts == counts
    missing = "empty splits: 1 (test)"
    assert examine(manifest).warnings[:2] == [missing, f"{lone}3 (a in train; b in train; d in val)"]
    unlabelled = _of_images(images, list(images), ["train"] * 5)
    assert examine(unlabelled).warnings == [missing, twice]


def test_classes_that_differ_by_case_or_by_the_form_of_a_letter_are_found():
    labels = ["Owl", "owl", "caf\u00e9", "cafe\u0301", "cat", "dog"]
    manifest = _of_images({f"{row}.png": row for row in range(12)}, labels * 2, ["train"] * 6 + ["test"] * 6)
    report = examine(manifest, contents=False)
    found = [finding for finding in report.findings if finding.check == "classes spelt alike"]
    assert [finding.rows for finding in found] == [((0, 1), (2, 3))]
    assert found[0].examples == ("Owl = owl", r"'caf\xe9' = 'cafe\u0301'")
    same_names = examine(_of_images({"0.png": 0, "1.png": 1}, ["Owl", "Owl"], ["test"] * 2), contents=False)
    assert "classes spelt alike" not in {finding.check for finding in same_names.findings}


def test_of_pairs_an_image_may_have_several_texts_but_one_split_and_each_pair_once():
    images = {path: pixels(number) for number, path in enumerate("abc")}
    paths, texts = list("aabccb"), ["a cat", "asleep", "an owl", "a cat", "A  Cat", "two owls"]
    columns = {"labels": [text_key(text) for text in texts], "splits": ["train"] * 5 + ["test"], "texts": texts}
    report = examine(build_manifest("pairs", ArraySource(images), paths=paths, **columns))
    assert report.errors == ["duplicate pairs: 1 (c: a cat)", "images in several splits: 1 (b)"]
    assert report.warnings == []  # one image of a class is found by its text
    test, train = {"test pairs": 1, "test classes": 1}, {"train pairs": 5, "train classes": 3}
    assert report.counts == {"pairs": 6, "images": 3, "texts": 4, "classes": 4, **test, **train}


NAMES = ["a/0.png", "a/1.png", "b/2.png", "b/3.png"]


@pytest.fixture
def photos(tmp_path):
    return write_tree(tmp_path / "photos", NAMES)


@pytest.mark.parametrize(
    ("link", "target"), [("self", "."), ("a/up", ".."), ("a/more", "../b"), ("z", "a"), ("c/d", "../a"), ("0", "b")]
)
def test_links_within_a_folder_add_nothing(photos, link, target):
    (photos / link).parent.mkdir(exist_ok=True)
    (photos / link).symlink_to(target)
    assert FolderSource(photos).names() == NAMES


def test_links_that_lead_elsewhere_are_followed_once(photos, tmp_path):
    (tmp_path / "linked").mkdir()
    for name in ("x", "y"):
        (tmp_path / "linked" / name).symlink_to(photos)
    (photos / "back").symlink_to(tmp_path / "linked")
    assert FolderSource(tmp_path / "linked").names() == [f"x/{name}" for name in NAMES]
    (tmp_path / "top").symlink_to(photos)
    assert FolderSource(tmp_path / "top").names()[:4] == NAMES


def test_rows_that_name_one_image_twice_are_found(photos):
    def table(*rows, header: str = "path,label,split") -> str | None:
        (photos / "rows.csv").write_text("\n".join([header, *rows]) + "\n")
        return repeated_image(READERS["table"](photos, file="rows.csv", outside=True))

    assert table("a/0.png,a,test", "a/1.png,a,test") is None
    assert table("a/0.png,a,test", "a/1.png,a,test", "a/0.png,a,train") == "rows lists image 'a/0.png' twice"
    found = table(*["a/0.png,a,test", "b/../a/0.png,a,test"] * 2, "b/2.png,b,test", "b/./2.png,b,test")
    assert found == "rows lists image 'a/0.png' twice, and 1 more"
    texts = ["a/0.png,a cat,train", "a/0.png,one cat,train", "b/2.png,a dog,train"]
    assert table(*texts, header="path,text,split") is None


def test_members_of_one_name_are_found(photos):
    with zipfile.ZipFile(photos / "all.zip", "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in [*NAMES, NAMES[1]]:
            archive.write(photos / name, name)
    assert repeated_image(READERS["folder"](photos, path="all.zip")) == "all lists image 'a/1.png' twice"
    assert repeated_image(READERS["digits"](photos)) is None

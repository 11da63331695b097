"""Tables and lists of images: what is read from them, boxes among it, and what is refused with its line."""

import dataclasses

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
from PIL import Image
from testing.refusals import refused
from testing.trees import pixels, write_tree, zip_tree

from aurank.data import ImageDataset
from aurank.data.checks.doctor import examine, repeated_image
from aurank.data.checks.findings import write_table
from aurank.data.decode import crop
from aurank.data.readers.listing import Row, class_folders, read_lists
from aurank.data.readers.table import read_table
from aurank.data.saved_embeddings import AsSaved
from aurank.errors import AurankWarning, UserError

IMAGES = ["a/1.png", "a/2.png", "b/with blank.png", "b/4.png"]
CSV = "path,label,split\na/1.png,cat,train\na/2.png,cat,train\nb/with blank.png,owl,test\nb/4.png,owl,test\n"
HEADER = "image_id class_id super_class_id path\n"
TRAIN = HEADER + "1 7 2 a/1.png\n2 7 2 a/2.png\n"
TEST = HEADER + "3 12 5 b/with blank.png\n4 12 5 b/4.png\n"


@pytest.fixture
def tree(tmp_path):
    return write_tree(tmp_path / "data", IMAGES)


def _names(manifest):
    return [manifest.classes[label] for label in manifest.labels]


def test_a_table_is_read_from_csv_and_parquet_alike(tree):
    (tree / "rows.csv").write_text(CSV)
    pyarrow.parquet.write_table(pyarrow.csv.read_csv(tree / "rows.csv"), tree / "rows.parquet")
    manifest = read_table(tree, file="rows.csv")
    assert manifest.paths == tuple(IMAGES)
    assert _names(manifest) == ["cat", "cat", "owl", "owl"]
    assert manifest.splits.tolist() == ["train", "train", "test", "test"]
    assert manifest.groups is None
    assert manifest.super_labels is None
    assert read_table(tree, file="rows.parquet").sha256 == manifest.sha256
    assert examine(manifest).findings == ()
    numbered = pyarrow.table({"path": IMAGES[:2], "label": [3, 3], "split": ["test"] * 2, "group": [40, None]})
    pyarrow.parquet.write_table(numbered, tree / "rows.parquet")
    assert read_table(tree, file="rows.parquet").groups.tolist() == [40, -1]


def test_a_table_may_have_flags_groups_and_columns_of_its_own(tree):
    (tree / "rows.csv").write_text(
        "split,group,label,is_query,is_gallery,note,path,super_label\n"
        "train,,cat,1,True,,a/1.png,animal\n"
        "train,west,cat,no,yes,,a/2.png,animal\n"
        'test,east,owl,0,,"said ""x, y""",b/with blank.png,bird\n'
        "test,west,owl,TRUE,false,,b/4.png,\n"
    )
    with pytest.warns(AurankWarning, match=r"rows\.csv: ignored columns: 'note'; those read are path, label, ") as told:
        manifest = read_table(tree, file="rows.csv")
    assert len(told) == 1
    assert manifest.is_query.tolist() == [True, False, False, True]
    assert manifest.is_gallery.tolist() == [True, True, True, False]
    assert manifest.groups.tolist() == [-1, 0, 1, 0]
    assert manifest.super_labels.tolist() == [0, 0, 1, -1]


def test_a_table_may_lie_in_the_archive_or_beside_it(tree, tmp_path):
    (tree / "rows.csv").write_text(CSV.replace("a/", "").replace("b/", "../b/"))
    (tree / "plain.csv").write_text("\ufeff" + CSV, encoding="utf-8")  # as a spreadsheet saves it
    zip_tree(tree, tmp_path / "data.zip", prefix="inside/")
    (tmp_path / "beside.csv").write_text(CSV.replace("\n", "\r\n"))
    inside = read_table(tmp_path, path="data.zip", file="inside/plain.csv", images="inside")
    beside = read_table(tmp_path, path="data.zip", file="beside.csv", images="inside")
    assert inside.sha256 == beside.sha256 == read_table(tree, file="plain.csv").sha256
    assert examine(inside).findings == ()


HEAD, BOX = "path,label,split\n", "path,label,split,x1,y1,x2,y2\na/1.png,cat,test,"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"column 'path' is missing; expected path,label,split"),
        (HEAD, "no images in"),
        ("path;label;split\na/1.png;cat;test\n", "column 'path' is missing; .* separated by ';': save it with commas"),
        (HEAD + "a/1.png,cat,test\na/2.png,NaN,test\na/3.png,,test\n", "line 3: label is empty or NaN, and in 1 more"),
        ("path,split\na/1.png,test\n", "columns 'label' and 'text' are both missing"),
        (
            "path,text,split\na/1.png,x,test\na/2.png, ,test\na/3.png,,test\n",
            r"rows\.csv, line 3: text is empty or NaN, and in 1 more; give",
        ),
        (CSV + "a/9.png,cat\n", r"rows\.csv, line 6: expected 3 columns"),
        (CSV + "a/9.png,cat,query\n", "rows: split 'query' is not known"),
        (CSV + ",cat,train\n", r"rows\.csv, line 6: path is empty"),
        (CSV + "a/1.png,dog,train\n", r"line 6: image 'a/1\.png' has label 'dog', but 'cat' at rows\.csv, line 2"),
        ("path,label,split,label\na/1.png,cat,test,dog\n", "a column occurs twice"),
        ("path,label,split,Query\na/1.png,cat,test,1\n", "column 'Query' is not known; did you mean 'is_query'"),
        ("path,label,split,is_query\na/1.png,cat,test,maybe\n", "line 2: is_query must be one of .* got 'maybe'"),
        (HEAD + "z/1.png,cat,test\n", r"none of the images listed is in .*'z/1\.png', rows\.csv, line 2"),
        (HEAD + "../secret.png,a,test\n", r"line 2: path .* leaves .*data\.params\.outside=true"),
        (HEAD + "a/../../secret.png,a,test\n", "line 2: path .* leaves"),
        (HEAD + "/etc/passwd,a,test\n", "line 2: path .* leaves"),
        ("path,label,split,x1,y1,x2\na/1.png,cat,test,0,0,3\n", "column 'y2' is missing"),
        (BOX + ",,,\na/1.png,dog,test,,,,\n", "line 3: image 'a/1.png' has label 'dog', but 'cat'"),
        (BOX + "0,0,,\n", "line 2: the box must be x1,y1,x2,y2"),
        (BOX + "3,0,3,2\n", "line 2: the box must be .* got 3,0,3,2"),
        (BOX + "0,0,nan,2\n", "line 2: the box must be .* got 0,0,nan,2"),
    ],
)
def test_a_table_that_is_wrong_is_refused_naming_the_line(tree, text, message):
    (tree / "rows.csv").write_text(text)
    refused(message, read_table, tree, file="rows.csv")


def test_equal_texts_are_one_class_that_the_text_names(tree):
    composed, decomposed = "caf\u00e9 au lait", "  cafe\u0301  au\tlait "
    rows = f'path,text,split\na/1.png,{composed},train\na/2.png,"{decomposed}",train\nb/4.png,Cafe au lait,test\n'
    (tree / "rows.csv").write_text(rows, encoding="utf-8")
    manifest = read_table(tree, file="rows.csv")
    assert manifest.texts == (composed, composed, "Cafe au lait")
    assert manifest.classes == (composed, "Cafe au lait")
    assert manifest.labels.tolist() == [0, 0, 1]


def test_an_image_may_have_several_texts_and_a_label_may_stand_beside_them(tree):
    rows = 'a/1.png,"a cat, asleep",train\na/1.png,"two\nlines",train\na/2.png,"a cat, asleep",train\n'
    (tree / "rows.csv").write_text("path,text,split\n" + rows)
    manifest = read_table(tree, file="rows.csv")
    assert manifest.paths == ("a/1.png", "a/1.png", "a/2.png")
    assert _names(manifest) == ["a cat, asleep", "two lines", "a cat, asleep"]
    rows = "a/1.png,a cat,train,cat\na/1.png,asleep,train,cat\nb/4.png,an owl,train,owl\n"
    (tree / "rows.csv").write_text("path,text,split,label\n" + rows)
    manifest = read_table(tree, file="rows.csv")
    assert manifest.texts == ("a cat", "asleep", "an owl")
    assert _names(manifest) == ["cat", "cat", "owl"]


def test_a_table_that_cannot_be_read_is_named(tree):
    refused(r"list file 'none\.csv' is not in ", read_table, tree, file="none.csv")
    refused(r"none\.parquet", read_table, tree, file="none.parquet")
    (tree / "bad.parquet").write_bytes(b"PAR1 and nothing else")
    refused(r"bad\.parquet: cannot be read as a parquet table", read_table, tree, file="bad.parquet")
    (tree / "bad.csv").write_bytes("path,label,split\né,cat,test".encode("latin-1"))
    refused(r"bad\.csv: cannot be read as UTF-8", read_table, tree, file="bad.csv")


def test_a_class_with_a_folder_of_its_own_is_named_by_it_and_the_digest_stays_that_of_the_ids(tmp_path):
    images = ["train/Apple/1.png", "train/Apple/2.png", "test/Pear/3.png", "more/Pear/4.png"]
    tree = write_tree(tmp_path / "products", images)
    ids = ["7 2", "7 2", "12 5", "12 5"]  # of the class and of the super-category
    lines = [f"{row} {ids[row]} {path}\n" for row, path in enumerate(images)]
    (tree / "train.txt").write_text(HEADER + "".join(lines[:2]))
    (tree / "test.txt").write_text(HEADER + "".join(lines[2:]) + "\n")
    manifest = read_lists(tmp_path, path="products", train="train.txt", test="test.txt", images="")
    assert (manifest.name, manifest.paths) == ("products", tuple(images))
    assert manifest.splits.tolist() == ["train", "train", "test", "test"]
    assert manifest.super_labels.tolist() == [2, 2, 5, 5]
    assert examine(manifest).findings == ()
    assert _names(manifest) == ["Apple", "Apple", "Pear", "Pear"]
    assert (manifest.classes, manifest.class_ids) == (("Apple", "Pear"), ("7", "12"))
    by_ids = dataclasses.replace(manifest, classes=("7", "12"), class_ids=None)
    assert manifest.sha256 == by_ids.sha256
    test = manifest.split("test")
    assert (test.classes, test.class_ids) == (("Pear",), ("12",))
    assert test.sha256 == by_ids.split("test").sha256


@pytest.mark.parametrize(
    ("paths", "named"),
    [
        ("x/1 x/2 y/3", {"a": "x", "b": "y"}),
        ("x/1 x/2 x/3", None),  # as Stanford Online Products itself
        ("x/1 y/2 z/3", None),
        ("1 2 y/3", None),
        ("../1 ../2 y/3", None),
    ],
)
def test_a_class_keeps_its_id_where_folders_hold_several_or_share_one(paths, named):
    rows = [Row("", path, label, "test") for path, label in zip(paths.split(), "aab", strict=True)]
    assert class_folders(rows) == named


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEST + "5 13 b/5.png\n", r"test\.txt, line 4: expected image_id .*, got '5 13 b/5\.png'"),
        (TEST + f"5 {'9' * 5000} 1 b/5.png\n", "at most 18 digits"),
        (TEST + "5 13 5 a/1.png\n", r"line 4: image 'a/1\.png' has label '13', but '7' at train\.txt, line 2"),
        (TEST + "5 13 5 ../secret.png\n", "line 4: path .* leaves"),
    ],
)
def test_a_list_that_is_wrong_is_refused_naming_the_line(tree, text, message):
    (tree / "train.txt").write_text(TRAIN)
    (tree / "test.txt").write_text(text)
    refused(message, read_lists, tree, train="train.txt", test="test.txt", images="")


def test_a_list_that_is_missing_or_starts_elsewhere_says_so(tree, tmp_path):
    (tree / "train.txt").write_text(TRAIN)
    for given, message in (
        ({"test": "test.txt", "images": ""}, r"list file 'test\.txt' is not in "),
        ({"test": "train.txt", "images": "images"}, r"none of the images listed is in .*data\.params\.images"),
        ({"test": "train.txt", "images": "", "path": "gone.zip"}, "does not exist; expected a folder or a zip archive"),
    ):
        refused(message, read_lists, tree, train="train.txt", **given)


BOXES, ROWS = "path,label,split,x1,y1,x2,y2\n", "a.png,cat,test,0,0,3,2\na.png,dog,test,2,1,5,6\nb.png,cat,test,,,,\n"


@pytest.fixture
def boxed(tmp_path):
    write_tree(tmp_path, ("a.png", "b.png"))
    (tmp_path / "rows.csv").write_text(BOXES + ROWS)
    return tmp_path


def test_a_row_is_the_part_of_the_image_in_its_box_as_pillow_cuts_it(boxed):
    manifest = read_table(boxed, file="rows.csv")
    assert manifest.boxes.tolist() == [[0, 0, 3, 2], [2, 1, 5, 6], [-1, -1, -1, -1]]
    dataset = ImageDataset(manifest, AsSaved(6, 3), channels=3, cache_bytes=0)
    for row, box in enumerate([(0, 0, 3, 2), (2, 1, 5, 6), None]):
        with Image.open(boxed / manifest.paths[row]) as file:
            expected = np.asarray(file if box is None else file.crop(box))
        np.testing.assert_array_equal(dataset._read(row), expected)


def test_rows_that_differ_in_their_box_alone_are_no_repeats_and_a_box_stays_with_its_row(boxed):
    manifest = read_table(boxed, file="rows.csv")
    assert repeated_image(manifest) is None
    assert examine(manifest, contents=False).errors == []
    (boxed / "rows.csv").write_text(BOXES + ROWS + "a.png,cat,test,0.2,0,3,1.9\n")
    again = read_table(boxed, file="rows.csv")
    assert "lists image 'a.png [0, 0, 3, 2]' twice" in str(repeated_image(again))
    assert "a.png [0, 0, 3, 2]" in str(examine(again, contents=False))
    (boxed / "whole.csv").write_text("path,label,split\nb.png,cat,test\n")
    whole = read_table(boxed, file="whole.csv")
    assert whole.boxes is None
    part = manifest.select([1, 2])
    assert part.boxes.tolist() == [[2, 1, 5, 6], [-1] * 4]
    (boxed / "rows.csv").write_text(BOXES + ROWS.replace("2,1,5,6", "2,1,5,5"))
    assert read_table(boxed, file="rows.csv").sha256 != manifest.sha256
    write_table(manifest, boxed / "kept.csv")
    assert read_table(boxed, file="kept.csv").sha256 == manifest.sha256


def test_a_box_reaches_no_further_than_its_image_and_one_beyond_it_is_named():
    image = pixels(1, height=4, width=5)
    np.testing.assert_array_equal(crop(image, (3, 2, 90, 90), "a.png"), image[2:, 3:])
    with pytest.raises(UserError, match=r"image 'a.png' has 5 × 4 pixels, of which none lies in the box 5,0,9,4"):
        crop(image, (5, 0, 9, 4), "a.png")

from collections import Counter
from pathlib import Path

import grocery_texts
import pytest
from grocery_texts import Product, read, table
from testing.trees import grocery_tree, zip_tree

from aurank.data.checks.doctor import examine
from aurank.data.readers.table import read_table
from aurank.embedding.image_text_pairs import groups_of

KINDS = {"Apple": ("Fruit", 4), "Juice": ("Packages", 4), "Leek": ("Vegetables", 1)}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An archive in the layout of the Grocery Store data set; the images are empty files."""
    folder = grocery_tree(tmp_path, KINDS, images=30, content=b"")
    return zip_tree(folder, tmp_path / "grocery.zip", prefix=f"{folder.name}/")


def test_the_reader_reads_the_table_and_its_test_rows_are_of_three_groups(archive: Path) -> None:
    (archive.parent / "texts.csv").write_text(table(read(archive), unseen=4, seed=0))
    images = "GroceryStoreDataset-master/dataset"
    whole = read_table(archive.parent, file="texts.csv", path="grocery.zip", images=images)
    assert len(whole) == 9 * 30
    assert examine(whole, contents=False).errors == []
    train, test = whole.split("train"), whole.split("test")
    groups = groups_of(train, test)
    assert set(groups) == {"seen_texts", "new_texts", "new_classes"}
    assert test.select(groups["new_classes"]).class_counts.tolist() == [30] * 4
    assert len(train.classes) == 5
    # Of each product that is in training one sentence is not, and others are.
    assert Counter(test.select(groups["new_texts"]).labels.tolist()).keys() == set(range(5))
    assert len(set(test.select(groups["new_texts"]).texts or ())) == 5
    assert len(set(train.texts)) == 5 * (len(grocery_texts.SENTENCES) - 1)


def test_one_kind_keeps_a_product_in_training(archive: Path) -> None:
    rows = read(archive)
    held_out = [line.split(",")[-2] for line in table(rows, unseen=6, seed=1).splitlines() if line.endswith("test")]
    full = {label for label, count in Counter(held_out).items() if count == 30}
    assert len(full) == 6
    assert "Leek" not in full
    with pytest.raises(SystemExit, match="--unseen 7: only 6 products can be held out"):
        table(rows, unseen=7, seed=1)


def test_the_table_follows_from_its_seed(archive: Path) -> None:
    rows = read(archive)
    assert rows == read(archive.parent / "GroceryStoreDataset-master")
    assert table(rows, unseen=3, seed=5) == table(rows, unseen=3, seed=5)
    assert table(rows, unseen=3, seed=5) != table(rows, unseen=3, seed=6)


def test_a_product_is_named_with_its_kind_unless_it_says_it() -> None:
    assert Product("Royal-Gala", "Apple", "fruit").name == "royal gala apple"
    assert Product("Arla-Sour-Milk", "Sour-Milk", "").name == "arla sour milk"
    assert Product("Leek", "Leek", "vegetables").name == "leek"

"""Writes a table of image-text pairs for the Grocery Store data set: one row an image, a sentence made of its names.

    python tools/grocery_texts.py $AURANK_DATA/GroceryStoreDataset-master.zip --out grocery_texts.csv [--unseen 24]
                                                                                [--seed 0]

The archive is as published, or unpacked. The reader `table` reads the table from the folder that holds both:

    data: {name: table, params: {file: grocery_texts.csv, path: GroceryStoreDataset-master.zip,
                                 images: GroceryStoreDataset-master/dataset}}

Columns: path, text, label (the product), split. Three groups of test rows can be told by what "train" holds:

- new products: their labels have no training row. `--unseen` of them are drawn, each of a kind of which another stays.
- new texts: the label has training rows, the text has none: one sentence of each other product is kept from training.
- seen texts: other images of texts in training.

The sentences name product and kind ("pink lady apple") and the aisle. One archive, seed and number give one table.
"""

import argparse
import csv
import io
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from aurank.data.readers.listing import read_text
from aurank.data.sources import open_source
from aurank.files import write_text

AISLES = {"Fruit": "fruit", "Packages": "dairy and juice", "Vegetables": "vegetables"}
SENTENCES = (
    "a photo of {name}",
    "{name} in a grocery store",
    "a phone picture of {name} on the shelf",
    "{name} from the aisle of {aisle}",
    "look, this is {name}",
)
FOLDER = "GroceryStoreDataset-master/dataset"
LISTS = ("train", "val", "test")  # the published split has all products in each; here it is drawn anew
TEST_FRACTION = 0.3  # of the images of a product that is in training; half of them with its sentence for testing
HEADER = ("path", "text", "label", "split")


@dataclass(frozen=True)
class Product:
    """A class of the archive and the words for it."""

    label: str
    kind: str  # the coarse class
    aisle: str

    @property
    def name(self) -> str:
        """The product in lower case, with its kind unless the product says it: "pink lady apple"."""
        words, kind = self.label.replace("-", " ").lower(), self.kind.replace("-", " ").lower()
        return words if set(kind.split()) <= set(words.split()) else f"{words} {kind}"


def read(archive: Path) -> list[tuple[str, Product]]:
    """Returns each image's path below `dataset` and its product, in the order of the published lists."""
    content = open_source(archive, prefix=FOLDER if archive.is_file() else "dataset")
    classes = csv.DictReader(io.StringIO(read_text(content, "classes.csv")))
    names = {row["Class ID (int)"]: (row["Class Name (str)"], row["Coarse Class Name (str)"]) for row in classes}
    lines = [line for part in LISTS for line in read_text(content, f"{part}.txt").splitlines() if line]
    rows = []
    for line in lines:
        path, number, _ = (field.strip() for field in line.split(","))
        rows.append((path, Product(*names[number], aisle=AISLES[path.split("/")[1]])))
    return rows


def draw_unseen(products: list[Product], count: int, generator: random.Random) -> set[str]:
    """Returns the labels of `count` products held out, each of a kind of which another stays."""
    left = Counter(product.kind for product in products)
    chosen: set[str] = set()
    for product in generator.sample(products, len(products)):
        if len(chosen) < count and left[product.kind] > 1:
            left[product.kind] -= 1
            chosen.add(product.label)
    if len(chosen) < count:
        raise SystemExit(f"--unseen {count}: only {len(chosen)} products can be held out, as one of each kind stays")
    return chosen


def table(rows: list[tuple[str, Product]], *, unseen: int, seed: int) -> str:
    generator = random.Random(seed)
    products = list(dict.fromkeys(product for _, product in rows))
    held_out = draw_unseen(products, unseen, generator)
    for_testing = {product: generator.choice(SENTENCES) for product in products}
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(HEADER)
    for path, product in rows:
        test = product.label in held_out or generator.random() < TEST_FRACTION
        new_text = test and generator.random() < 0.5
        others = [sentence for sentence in SENTENCES if sentence != for_testing[product]]
        sentence = for_testing[product] if new_text else generator.choice(others)
        text = sentence.format(name=product.name, aisle=product.aisle)
        writer.writerow((path, text, product.label, "test" if test else "train"))
    return written.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path, help="GroceryStoreDataset-master.zip, or its folder")
    parser.add_argument("--out", type=Path, required=True, help="the csv to write")
    parser.add_argument("--unseen", type=int, default=24, help="products that training never sees")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    write_text(given.out, table(read(given.archive), unseen=given.unseen, seed=given.seed))
    print(given.out)


if __name__ == "__main__":
    main()

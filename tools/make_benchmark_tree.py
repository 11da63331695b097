"""A tree in the official layout of a benchmark at its published size, with tiny JPEGs in place of its photos.

    python tools/make_benchmark_tree.py sop|inaturalist2018|vehicleid|million --root DIR [--pixels 32] [--share 1.0]

Counts of images and classes, list files, annotation files and names are those of the original; class sizes are drawn
around its mean, with a long tail for iNaturalist. Images of a class look a little alike: coarse patches, partly of it.
The tree appears under its name once it is whole. With --share a part of the classes, for a first look: readers
then need `data.params.complete=false`. No quality is measured on it. `million` is no benchmark: 1,000,000 images of
10,000 classes in 100 tar archives, as webdataset has them.
"""

import io
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from measuring import parser_of

from aurank.data import BENCHMARKS
from aurank.data.readers.published import Benchmark

CHANCE = np.random.Generator
# Super-categories of iNaturalist 2018 and their species (the competition's page).
KINGDOM_NAMES = (
    "Plantae Insecta Aves Actinopterygii Fungi Reptilia Mollusca Mammalia Animalia Amphibia Arachnida Chromista "
    "Protozoa Bacteria"
)
SPECIES = (2917, 2031, 1258, 369, 321, 284, 262, 234, 178, 144, 114, 25, 4, 1)
KINGDOMS = dict(zip(KINGDOM_NAMES.split(), SPECIES, strict=True))
PRODUCT_NAMES = "bicycle cabinet chair coffee_maker fan kettle lamp mug sofa stapler table toaster"
PRODUCTS = PRODUCT_NAMES.split()


@dataclass(frozen=True)
class Tree:
    """What is written: each image's path and class, and the text files by their paths."""

    folder: str
    images: list[tuple[str, int]]
    texts: dict[str, str]


def class_sizes(images: int, classes: int, chance: CHANCE, *, least: int, tail: float) -> np.ndarray:
    """Sizes [class] of at least `least` images, with this sum; the greater `tail`, the more unequal."""
    weights = chance.lognormal(0.0, tail, classes)
    return least + chance.multinomial(images - least * classes, weights / weights.sum())


def lines(rows: list[str]) -> str:
    return "\n".join(rows) + "\n"


def counts_of(about: Benchmark, file: str, share: float) -> tuple[int, int]:
    images, classes = about.sizes[file]
    return round(images * share), max(2, round(classes * share))


def sop(about: Benchmark, share: float, chance: CHANCE) -> Tree:
    header, images, texts, everything = "image_id class_id super_class_id path", [], {}, []
    first = 1
    for file in about.sizes:
        count, classes = counts_of(about, file, share)
        rows = []
        for label, size in enumerate(class_sizes(count, classes, chance, least=2, tail=0.5).tolist(), start=first):
            kind = label % len(PRODUCTS)
            for place in range(size):
                path = f"{PRODUCTS[kind]}_final/{110_000_000_000 + 7_919 * label}_{place}.JPG"
                images.append((path, label))
                rows.append(f"{len(images)} {label} {kind + 1} {path}")
        first += classes
        texts[file] = lines([header, *rows])
        everything += rows
    texts["Ebay_info.txt"] = lines([header, *everything])
    return Tree("Stanford_Online_Products", images, texts)


def inaturalist2018(about: Benchmark, share: float, chance: CHANCE) -> Tree:
    """iNaturalist 2018."""
    kingdoms = [name for name, species in KINGDOMS.items() for _ in range(species)]
    order = chance.permutation(len(kingdoms))
    images: list[tuple[str, int]] = []
    texts, first = {}, 0
    for file in about.sizes:
        count, classes = counts_of(about, file, share)
        rows = []
        sizes = class_sizes(count, classes, chance, least=5, tail=1.1)
        for label, size in zip(order[first : first + classes].tolist(), sizes.tolist(), strict=True):
            names = chance.bytes(16 * size).hex()
            for place in range(size):
                path = f"train_val2018/{kingdoms[label]}/{label}/{names[32 * place : 32 * place + 32]}.jpg"
                images.append((path, label))
                rows.append(path)
        first += classes
        texts[file] = lines(rows)
    return Tree("Inaturalist", images, texts)


_VEHICLEID_IMAGES = 221_567  # most of them are in no list


def vehicleid(about: Benchmark, share: float, chance: CHANCE) -> Tree:
    """PKU VehicleID; each test list holds the vehicles of the one before, and all others are in none."""
    train, *tests = about.sizes
    groups = [counts_of(about, train, share)]
    before = (0, 0)
    for file in tests:
        count, vehicles = counts_of(about, file, share)
        groups.append((count - before[0], vehicles - before[1]))
        before = (count, vehicles)
    entries = round(_VEHICLEID_IMAGES * share)
    groups.append((entries - groups[0][0] - before[0], max(2, round(10_764 * share))))
    numbers = iter(chance.permutation(np.arange(1, 2 * entries)).tolist())  # as in the original, with gaps
    images, rows, vehicle = [], [], 0
    ends = []
    for count, vehicles in groups:
        for size in class_sizes(count, vehicles, chance, least=2, tail=0.6).tolist():
            vehicle += 1
            for _ in range(size):
                name = f"{next(numbers):07d}"
                images.append((f"image/{name}.jpg", 3 * vehicle))
                rows.append(f"{name} {3 * vehicle}")
        ends.append(len(rows))
    texts = {train: lines(rows[: ends[0]])}
    for file, end in zip(tests, ends[1:], strict=False):
        texts[file] = lines(rows[ends[0] : end])
    for attribute, values in (("model", 250), ("color", 7)):
        known = chance.permutation(np.arange(1, vehicle + 1))[: vehicle // 3 + 1]
        pairs = [f"{3 * one} {chance.integers(values)}" for one in sorted(known.tolist())]
        texts[f"attribute/{attribute}_attr.txt"] = lines(pairs)
    return Tree("VehicleID_V1.0", images, texts)


Make = Callable[[Benchmark, float, CHANCE], Tree]
TREES: dict[str, Make] = {"sop": sop, "inaturalist2018": inaturalist2018, "vehicleid": vehicleid}


def pictures(tree: Tree, pixels: int, chance: CHANCE) -> Iterator[tuple[str, bytes]]:
    """Each image's path and its JPEG: patches of its class mixed with its own, and noise; no two show the same."""
    drawn = chance.integers(30, 226, (65_521, 4, 4, 3), dtype=np.uint8)
    noise = chance.integers(-24, 25, (64, pixels, pixels, 3), dtype=np.int16)
    seen = None
    for at, (path, label) in enumerate(tree.images):  # class by class
        if label != seen:
            seen, own = label, np.random.default_rng(label).integers(30, 226, (4, 4, 3), dtype=np.uint8)
        patches = (own // 5 * 2 + drawn[at % len(drawn)] // 5 * 3).astype(np.uint8)
        patches[at % 4, (at // 4) % 4] = noise[at % 64, 0, 0].astype(np.uint8)
        coarse = cv2.resize(patches, (pixels, pixels), interpolation=cv2.INTER_LINEAR).astype(np.int16)
        image = np.clip(np.roll(noise[at % 64], at // 64, axis=1) + coarse, 0, 255).astype(np.uint8)
        yield path, cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 60])[1].tobytes()


def write(tree: Tree, root: Path, pixels: int, chance: CHANCE) -> Path:
    whole = root / tree.folder
    if whole.exists():
        raise SystemExit(f"{whole} exists: remove it, or name another --root")
    part = whole.with_name(f"{whole.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    for folder in sorted({str(Path(path).parent) for path in [*tree.texts, *(path for path, _ in tree.images)]}):
        (part / folder).mkdir(parents=True, exist_ok=True)
    for path, text in tree.texts.items():
        (part / path).write_text(text, encoding="utf-8")
    for path, content in pictures(tree, pixels, chance):
        (part / path).write_bytes(content)
    part.rename(whole)
    return whole


def million(root: Path, share: float, pixels: int, chance: CHANCE) -> tuple[Path, Tree]:
    sizes = class_sizes(round(1_000_000 * share), max(2, round(10_000 * share)), chance, least=2, tail=0.5).tolist()
    labels = [label for label, size in enumerate(sizes) for _ in range(size)]
    tree = Tree("million", [(f"{at:07d}.jpg", label) for at, label in enumerate(labels)], {})
    folder = root / tree.folder
    folder.mkdir(parents=True)
    made = pictures(tree, pixels, chance)
    for start in range(0, len(labels), 10_000):
        with tarfile.open(folder / f"{start // 10_000:03d}.tar", "w") as archive:
            for label in labels[start : start + 10_000]:
                path, content = next(made)
                for name, held in ((path, content), (path.replace("jpg", "cls"), str(label).encode())):
                    member = tarfile.TarInfo(name)
                    member.size = len(held)
                    archive.addfile(member, io.BytesIO(held))
    return folder, tree


def main() -> None:
    parser = parser_of(__doc__, pixels=32, share=1.0, seed=0)
    parser.add_argument("benchmark", choices=[*TREES, "million"])
    parser.add_argument("--root", type=Path, required=True, help="where the tree is written, as $AURANK_DATA holds it")
    given = parser.parse_args()
    if not 0 < given.share <= 1:
        parser.error(f"--share must be above 0 and at most 1, got {given.share:g}")
    started, chance = time.perf_counter(), np.random.default_rng(given.seed)
    if given.benchmark == "million":
        folder, tree = million(given.root, given.share, given.pixels, chance)
    else:
        tree = TREES[given.benchmark](BENCHMARKS[given.benchmark], given.share, chance)
        folder = write(tree, given.root, given.pixels, chance)
    classes = len({label for _, label in tree.images})
    print(f"{folder}: {len(tree.images):,} images of {classes:,} classes, {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()

"""Precision and recall of the doctor's findings: 50 faults of each kind planted into Grocery and Omniglot.

python tools/experiments/doctor_table.py --weights tf_efficientnet_lite0.safetensors

It prints a Markdown table for each data set: what is found without faults, then for each kind of fault, planted alone,
how many findings are right and how many faults are found. Everything is drawn from a seed. $AURANK_DATA holds
omniglot_full.zip and grocery_128.zip. The thresholds were chosen on Grocery's training classes and Omniglot's
background alphabets; the table is of Grocery's test classes and of the evaluation alphabets.
"""

import argparse
import dataclasses
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

from aurank.commands.doctor import EmbeddingExamination
from aurank.data import READERS, ArraySource, ImageSource, Manifest, build_manifest
from aurank.data.checks.doctor import examine
from aurank.data.checks.findings import Finding
from aurank.data.decode import decode
from aurank.embedding.embed import Embedded, ModelImages, embed
from aurank.embedding.manifest_from_config import data_folder
from aurank.models.adapters.by_name import load_model

SIZE, CLASSES = 128, 100  # pixels that the network sees; classes of Omniglot
Change = Callable[[Image.Image, np.random.Generator], Image.Image]


def recompressed(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    file = io.BytesIO()
    image.convert("RGB" if image.mode == "RGB" else "L").save(file, "JPEG", quality=int(draw.integers(40, 90)))
    return Image.open(file)


def resized(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    factor = draw.uniform(0.5, 1.5)
    return image.resize((round(image.width * factor), round(image.height * factor)), Image.Resampling.BICUBIC)


def cropped(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    left, top, right, bottom = draw.uniform(0, 0.05, 4)
    box = (left * image.width, top * image.height, (1 - right) * image.width, (1 - bottom) * image.height)
    return image.crop(tuple(map(round, box)))


def any_copy(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    changes: list[Change] = [lambda same, _: same, recompressed, resized, cropped]
    return changes[int(draw.integers(len(changes)))](image, draw)


COPIES: dict[str, Change] = {
    "exact": lambda image, _: image, "re-encoded": recompressed, "resized": resized, "cropped": cropped,
}  # fmt: skip
POOR: dict[str, tuple[str, Change]] = {
    "blurred": ("blurred images", lambda image, draw: image.filter(ImageFilter.GaussianBlur(draw.uniform(3, 5)))),
    "dark": ("dark images", lambda image, draw: Image.eval(image, lambda value: int(value * 0.15))),
    "tiny": ("tiny images", lambda image, draw: image.resize((int(draw.integers(12, 32)),) * 2)),
    "odd shape": ("images of an odd shape", lambda image, _: image.crop((0, 0, image.width, image.height // 4))),
}


@dataclasses.dataclass
class Planted:
    """Images of a source with some more, or other ones in their place."""

    source: ImageSource
    changed: dict[str, np.ndarray]

    def __post_init__(self) -> None:
        self.memory, self.where = ArraySource(self.changed), self.source.where

    def read_bytes(self, path: str) -> bytes:
        return (self.memory if path in self.changed else self.source).read_bytes(path)

    def exists(self, path: str) -> bool:
        return path in self.changed or self.source.exists(path)

    def names(self) -> list[str]:
        return sorted({*self.source.names(), *self.changed})


def changed(manifest: Manifest, row: int, change: Change, draw: np.random.Generator) -> np.ndarray:
    pixels = decode(manifest.source, manifest.paths[row], None)
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    values = np.asarray(change(image, draw))
    return np.ascontiguousarray(values if values.ndim == 3 else values[..., None])


def with_copies(manifest: Manifest, rows: list[int], change: Change, draw: np.random.Generator, side: str) -> Manifest:
    """Return the data set with a changed copy of some rows behind the others, as a leak or in the same split."""
    copies = {f"planted/{row}.npy": changed(manifest, row, change, draw) for row in rows}
    labels = [manifest.classes[label] for label in manifest.labels.tolist()]
    splits, query = manifest.splits.tolist(), [side != "gallery" or row % 2 == 0 for row in range(len(labels))]
    gallery = [side != "gallery" or not one for one in query]
    return build_manifest(
        manifest.name,
        Planted(manifest.source, copies),
        paths=[*manifest.paths, *copies],
        labels=[*labels, *(labels[row] for row in rows)],
        splits=[*splits, *("train" if side == "train" else splits[row] for row in rows)],
        is_query=[*query, *(not query[row] if side == "gallery" else True for row in rows)],
        is_gallery=[*gallery, *(query[row] if side == "gallery" else True for row in rows)],
    )


def with_poor(manifest: Manifest, rows: list[int], change: Change, draw: np.random.Generator) -> Manifest:
    poor = {manifest.paths[row]: changed(manifest, row, change, draw) for row in rows}
    return dataclasses.replace(manifest, source=Planted(manifest.source, poor))


def pairs_of(findings: tuple[Finding, ...], ending: str) -> set[tuple[int, int]]:
    """Return the pairs of rows that findings of repeated images name, of whatever group each is."""
    groups = [rows for one in findings if "same image" in one.check and one.check.endswith(ending) for rows in one.rows]
    return {(a, b) for rows in groups for a in rows for b in rows if a < b}


class Table:
    """Lines of precision and recall, beside what the same data set has without faults."""

    def __init__(self, name: str) -> None:
        print(f"\n{name}\n\n| fault | found before | planted | found | right | precision | of what is new | recall |")
        print("|---|---|---|---|---|---|---|---|")

    def add(self, fault: str, planted: set[object], found: set[object], before: set[object]) -> None:
        right, new = len(planted & found), len(found - (before - planted))
        counts = f"{len(before)} | {len(planted)} | {len(found)} | {right}"
        parts = (right / max(1, len(found)), right / max(1, new), right / len(planted))
        print(f"| {fault} | {counts} | {' | '.join(f'{part:.2f}' for part in parts)} |", flush=True)


def plant_images(table: Table, manifest: Manifest, count: int, seed: int) -> None:
    """Plant repeated and poor images."""
    clean = examine(manifest).findings
    for side, ending in (("same", "in a split"), ("train", "train and test"), ("gallery", "query and gallery")):
        base = manifest
        if side == "train":  # one half of the classes is trained on
            half = np.where(manifest.labels % 2 == 0, "train", "test")
            base = dataclasses.replace(manifest, splits=half)
        empty = with_copies(base, [], any_copy, np.random.default_rng(seed), side)
        before = pairs_of(clean if side == "same" else examine(empty).findings, ending)
        for name, change in (COPIES if side == "same" else {"any of these": any_copy}).items():
            draw = np.random.default_rng(seed)
            eligible = np.flatnonzero(base.splits == "test")
            rows = np.sort(draw.choice(eligible, count, replace=False)).tolist()
            found = pairs_of(examine(with_copies(base, rows, change, draw, side)).findings, ending)
            planted = {(row, len(base) + place) for place, row in enumerate(rows)}
            table.add(f"copy {ending}, {name}", planted, found, before)
    for name, (check, change) in POOR.items():
        draw = np.random.default_rng(seed)
        rows = np.sort(draw.choice(len(manifest), count, replace=False)).tolist()
        found = _rows(examine(with_poor(manifest, rows, change, draw)).findings, check)
        table.add(name, set(rows), found, _rows(clean, check))


def _rows(findings: tuple[Finding, ...] | list[Finding], check: str) -> set[int]:
    return {row for one in findings if one.check == check for rows in one.rows for row in rows}


def plant_rows(table: Table, embedded: Embedded, count: int, seed: int) -> None:
    """Plant faults of embeddings, and wrong labels."""
    number = len(embedded.labels)

    def findings(**columns: np.ndarray) -> list[Finding]:
        changed_set = dataclasses.replace(embedded, **columns)
        return EmbeddingExamination(changed_set, None, np.ones(number, np.bool_)).findings()

    unit = embedded.embeddings / np.linalg.norm(embedded.embeddings, axis=1, keepdims=True)
    clean = findings(embeddings=unit)
    draw = np.random.default_rng(seed)
    rows = np.sort(draw.choice(number, count, replace=False))

    def add(fault: str, check: str, columns: dict[str, np.ndarray]) -> None:
        table.add(fault, set(rows.tolist()), _rows(findings(**columns), check), _rows(clean, check))

    for fault, check, value in (
        ("row with NaN", "embeddings with NaN or infinity", np.nan),
        ("row of zeros", "embeddings of zeros", 0.0),
        ("row not normalised", "embeddings of another length", 1.5),
    ):
        planted = unit.copy()
        planted[rows] *= value
        add(fault, check, {"embeddings": planted})
    planted = unit.copy()
    near = np.argsort(-(unit[rows] @ unit.T), axis=1)[:, :150]
    planted[rows] = unit[near].mean(axis=1)  # nearer to each of the 150 than most of them are to one another
    add("hub: mean of 150 neighbours", "hubs", {"embeddings": planted / np.linalg.norm(planted, axis=1, keepdims=True)})
    labels = embedded.labels.copy()
    kinds = len(np.unique(labels))
    labels[rows] = (labels[rows] + draw.integers(1, kinds, count)) % kinds
    add("wrong label", "doubtful labels", {"embeddings": unit, "labels": labels})
    silent = np.sort(draw.choice(unit.shape[1], count, replace=False))
    flat = unit.copy()
    flat[:, silent] = unit[:, silent].mean(axis=0)
    dims = {int(name) for one in (findings(embeddings=flat)) if one.check.startswith("dim") for name in _all(one, flat)}
    before = {int(name) for one in clean if one.check.startswith("dim") for name in _all(one, unit)}
    table.add("dimension of one value", set(silent.tolist()), dims, before)
    sets, collapsed = np.arange(2 * count), set()
    for one in sets.tolist():
        some = unit[draw.choice(number, min(number, 300), replace=False)]
        if one < count:  # pulled towards one direction, or pressed into a plane
            mean = some.mean(axis=0)
            plane = np.linalg.svd(some - mean, full_matrices=False)[2][:3]
            some = some + 5 * mean if one % 2 else mean + (some - mean) @ plane.T @ plane
        part = dataclasses.replace(
            embedded, **{name: values[: len(some)] for name, values in vars(embedded).items() if name != "classes"}
        )
        part = dataclasses.replace(part, embeddings=some)
        found = EmbeddingExamination(part, None, np.zeros(len(some), np.bool_)).findings()
        if any(finding.count for finding in found if finding.check == "collapsed embeddings"):
            collapsed.add(one)
    table.add("collapsed set of 300 rows", set(range(count)), collapsed, collapsed - set(range(count)))


def _all(finding: Finding, rows: np.ndarray) -> list[str]:
    """Return all dimensions of a finding, of which it keeps the first few."""
    from aurank.evaluation.checks import spread

    return [str(dimension) for dimension in spread(rows).silent.tolist()][: finding.count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True, help="of timm's tf_efficientnet_lite0")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--embeddings", type=Path, help="folder to keep embeddings in")
    parser.add_argument("--only", choices=["grocery", "omniglot"])
    given = parser.parse_args()
    root = data_folder(None)
    lists = {split: f"grocery/derived_disjoint_{split}.txt" for split in ("train", "test")}
    groceries = READERS["lists"](root, path="grocery_128.zip", **lists, images="grocery/images").split("test")
    drawings = READERS["omniglot"](root).split("test")
    chosen = np.random.default_rng(given.seed).choice(len(drawings.classes), CLASSES, replace=False)
    sets = {"grocery": groceries, "omniglot": drawings.select(np.isin(drawings.labels, chosen))}
    model = load_model(f"timm:tf_efficientnet_lite0,weights={given.weights},input_size={SIZE}")
    for name, manifest in sets.items():
        if given.only not in (None, name):
            continue
        kept = None if given.embeddings is None else given.embeddings / f"{name}.npz"
        if kept is not None and kept.is_file():
            embedded = Embedded.load(kept)
        else:
            embedded = embed(model.module, ModelImages(manifest, model), batch=64)
            if kept is not None:
                embedded.save(kept)
        table = Table(f"{name}: {len(manifest):,} images of {len(manifest.classes)} classes")
        plant_rows(table, embedded, given.count, given.seed)
        plant_images(table, manifest, given.count, given.seed)


if __name__ == "__main__":
    main()

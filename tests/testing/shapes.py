"""A drawn data set: pictures of two shapes each, whose labels are the names of both."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

SIDE = 48
# Corners around a centre: radius, and angle in turns. The others are round.
CORNERS = {
    "square": [(1, (2 * corner + 1) / 8) for corner in range(4)],
    "triangle": [(1, corner / 3) for corner in range(3)],
    "star": [(0.4 if corner % 2 else 1, corner / 10) for corner in range(10)],
    "cross": [
        corner for arm in range(4) for corner in ((1, arm / 4 - 0.05), (1, arm / 4 + 0.05), (0.35, arm / 4 + 0.125))
    ],
    "bar": [(1, angle) for angle in (-0.04, 0.04, 0.46, 0.54)],
}
SHAPES = (*CORNERS, "circle", "ring", "moon")


def draw_shape(draw: ImageDraw.ImageDraw, shape: str, x: float, y: float, random: np.random.Generator) -> None:
    size, turn = random.uniform(7, 11), random.uniform()
    colour, box = tuple(random.integers(110, 256, 3).tolist()), (x - size, y - size, x + size, y + size)
    if shape in CORNERS:
        ends = [(size * radius, 2 * math.pi * (angle + turn)) for radius, angle in CORNERS[shape]]
        draw.polygon([(x + far * math.cos(angle), y + far * math.sin(angle)) for far, angle in ends], fill=colour)
    elif shape == "ring":
        draw.ellipse(box, outline=colour, width=3)
    else:
        draw.pieslice(box, 360 * turn, 360 * turn + (180 if shape == "moon" else 360), fill=colour)


def draw_shapes(root: Path, *, train: int = 600, test: int = 300, seed: int = 0) -> None:
    """Write pictures, sets.csv with labels such as "circle|star", and first.csv with one of the two at random."""
    random = np.random.default_rng(seed)
    pairs = [*itertools.combinations(SHAPES, 2)]
    tables = {name: ["path,label,split"] for name in ("sets", "first")}
    for number in range(train + test):
        shapes = random.permutation(pairs[int(random.integers(len(pairs)))]).tolist()
        picture = Image.new("RGB", (SIDE, SIDE), tuple(random.integers(0, 60, 3).tolist()))
        upright = bool(random.integers(2))
        for index, shape in enumerate(shapes):
            along, across = 13 + 22 * index + random.uniform(-2, 2), random.uniform(14, SIDE - 14)
            draw_shape(ImageDraw.Draw(picture), shape, *((along, across) if upright else (across, along)), random)
        path, split = f"{number:04d}.png", "train" if number < train else "test"
        picture.save(root / path)
        labels = random.permutation(shapes).tolist()  # no place has the first
        tables["sets"].append(f"{path},{'|'.join(labels)},{split}")
        tables["first"].append(f"{path},{labels[0]},{split}")
    for name, rows in tables.items():
        (root / f"{name}.csv").write_text("\n".join(rows) + "\n")


def shapes_config(root: Path, positives: Any, *, seed: int = 0, steps: int = 400) -> dict[str, Any]:
    """SupCon from random weights on sets.csv, by `positives`; on first.csv where it is None."""
    params = {"file": "first.csv"} if positives is None else {"file": "sets.csv", "separator": "|"}
    data = {"name": "table", "root": str(root), "params": params, "image_size": 32, "validation_fraction": 0}
    data |= {"train_transform": {"name": "affine"}, "test_transform": {"name": "resize"}}
    return {
        "seed": seed,
        "data": data,
        "sampler": {"name": "pk", "batch": 64, "params": {"per_class": 8}},
        "model": {"backbone": "test_resnet", "pretrained": False, "dim": 32},
        "loss": {"name": "sup_con", "params": {} if positives is None else {"positives": positives}},
        "optim": {"name": "adamw", "lr": 3e-3, "schedule": {"name": "cosine"}, "warmup_steps": min(5, steps // 2)},
        "train": {"steps": steps, "validate_every": steps, "checkpoint_every": steps, "log_every": min(20, steps)},
    }

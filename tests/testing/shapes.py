"""A drawn data set: pictures of two shapes each, whose labels are the names of both."""

import itertools
import math
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

SHAPES = ("circle", "square", "triangle", "star", "cross", "ring", "bar", "moon")
SIDE = 48


def outline(corners: list[tuple[float, float]], turn: float) -> list[tuple[float, float]]:
    """Corners (radius, angle in turns) around 0, turned."""
    angles = [(radius, 2 * math.pi * (angle + turn)) for radius, angle in corners]
    return [(radius * math.cos(angle), radius * math.sin(angle)) for radius, angle in angles]


CORNERS = {
    "square": [(1, (2 * corner + 1) / 8) for corner in range(4)],
    "triangle": [(1, corner / 3) for corner in range(3)],
    "star": [(0.4 if corner % 2 else 1, corner / 10) for corner in range(10)],
    "cross": [(0.35 if corner % 3 == 2 else 1, (corner // 3 + (-0.05, 0.05, 0.125)[corner % 3] * 4) / 4) for corner in range(12)],
    "bar": [(1, angle) for angle in (-0.04, 0.04, 0.46, 0.54)],
}


def draw_shape(picture: Image.Image, shape: str, centre: tuple[float, float], random: np.random.Generator) -> None:
    draw, size, turn = ImageDraw.Draw(picture), random.uniform(7, 11), random.uniform()
    colour = tuple(random.integers(110, 256, 3).tolist())
    box = [centre[0] - size, centre[1] - size, centre[0] + size, centre[1] + size]
    if shape in CORNERS:
        draw.polygon([(centre[0] + size * x, centre[1] + size * y) for x, y in outline(CORNERS[shape], turn)], fill=colour)
    elif shape == "ring":
        draw.ellipse(box, outline=colour, width=3)
    else:
        draw.pieslice(box, 360 * turn, 360 * turn + (180 if shape == "moon" else 360), fill=colour)


def draw_shapes(root: Path, *, train: int = 600, test: int = 300, seed: int = 0) -> Path:
    """Write pictures and a table with `label` "circle|star", in any order, and `first`, one of the two alone."""
    random = np.random.default_rng(seed)
    pairs = [*itertools.permutations(SHAPES, 2)]
    lines = {"sets": ["path,label,split"], "first": ["path,label,split"]}
    for number in range(train + test):
        shapes = pairs[int(random.integers(len(pairs)))]
        picture = Image.new("RGB", (SIDE, SIDE), tuple(random.integers(0, 60, 3).tolist()))
        upright = bool(random.integers(2))
        for index, shape in enumerate(shapes):
            along, across = 13 + 22 * index + random.uniform(-2, 2), random.uniform(14, SIDE - 14)
            draw_shape(picture, shape, (along, across) if upright else (across, along), random)
        path, split = f"{number:04d}.png", "train" if number < train else "test"
        picture.save(root / path)
        labels = random.permutation(shapes).tolist()  # so that no place has the first
        lines["sets"].append(f"{path},{'|'.join(labels)},{split}")
        lines["first"].append(f"{path},{labels[0]},{split}")
    for name, rows in lines.items():
        (root / f"{name}.csv").write_text("\n".join(rows) + "\n")
    return root

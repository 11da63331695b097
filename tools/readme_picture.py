"""The picture of the README: what digits retrieve by their pixels, and after `make demo` has trained an embedding.

python tools/readme_picture.py runs/demo/run --out docs/pictures/digits.png
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import aurank
from aurank.evaluation import Report, neighbours

INK, MUTED, RIGHT, WRONG = "#1b1f24", "#8c959f", "#1a7f37", "#cf222e"
SHOWN = 10


def test_digits(run: Path) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Return images and labels of the test digits, their second half, and their rows in both spaces."""
    data = load_digits()
    images, labels = data.images[len(data.images) // 2 :], data.target[len(data.images) // 2 :]
    image_model = aurank.load(run / "best")
    model, transform = image_model.module, image_model.transform
    shown = torch.stack([transform(np.rint(image * (255 / 16)).astype(np.uint8)[..., None]) for image in images])
    with torch.inference_mode():
        trained = torch.cat([model(batch) for batch in shown.split(100)]).numpy()
    pixels = shown.flatten(1)
    return images, labels, {"pixels": (pixels - pixels.mean(1, keepdim=True)).numpy(), "trained": trained}


def draw_list(axes: Axes, images: np.ndarray, right: np.ndarray, note: str) -> None:
    """Draw a query and what it retrieves, the query apart; right and wrong differ by colour and by a cross."""
    axes.set(xlim=(-1.6, SHOWN), ylim=(0, 1), aspect="equal")
    axes.axis("off")
    for place, image in enumerate(images):
        left = place - 1 if place else -1.5
        axes.imshow(1 - image / 16, cmap="gray", vmin=0, vmax=1, extent=(left + 0.04, left + 0.9, 0.1, 0.96))
        if place:
            colour = RIGHT if right[place - 1] else WRONG
            axes.plot([left + 0.04, left + 0.9], [0.04, 0.04], color=colour, linewidth=3, solid_capstyle="butt")
            if not right[place - 1]:
                axes.text(left + 0.86, 0.9, "×", color=WRONG, ha="right", va="top", fontsize=11, fontweight="bold")
    axes.text(SHOWN + 0.05, 0.5, note, color=INK, va="center", fontsize=9)


def draw_curves(axes: Axes, reports: dict[str, Report]) -> None:
    for (name, report), colour in zip(reports.items(), (MUTED, RIGHT), strict=True):
        assert report.curve is not None
        axes.plot(report.curve.recall, report.curve.precision, color=colour, linewidth=2)
        beside = (0.1, float(np.interp(0.5, report.curve.recall, report.curve.precision)))
        below = -20 if beside[1] > 0.9 else -40
        axes.annotate(
            f"{name}: mAUPRC {report.mauprc:.3f}",
            beside,
            (0, below),
            textcoords="offset points",
            color=colour,
            fontsize=9,
        )
    axes.set(xlim=(0, 1), ylim=(0, 1.01), xlabel="recall", ylabel="precision")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def main() -> None:
    """Draw three queries that are hard by their pixels (AP at 0.5, 2 and 10 % of all), and the curves of both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    images, labels, spaces = test_digits(given.run)
    reports = {name: aurank.evaluate(space, labels) for name, space in spaces.items()}
    order = np.argsort(reports["pixels"].per_query["ap"], kind="stable")
    figure = Figure(figsize=(10, 3.6), dpi=130, layout="constrained")
    lists, curves = figure.subfigures(1, 2, width_ratios=(2.1, 1))
    chosen = order[[len(order) // 200, len(order) // 50, len(order) // 10]]
    grid = lists.subplots(len(chosen) * 2, 1)
    for place, query in enumerate(chosen):
        for offset, (name, space) in enumerate(spaces.items()):
            found = neighbours(space, SHOWN).row[query]
            ap = reports[name].per_query["ap"][query]
            shown = images[[query, *found]]
            draw_list(grid[2 * place + offset], shown, labels[found] == labels[query], f"{name}\nAP {ap:.2f}")
    draw_curves(curves.subplots(), reports)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(given.out)


if __name__ == "__main__":
    main()

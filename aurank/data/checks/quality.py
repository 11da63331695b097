"""Images that show little: blurred, dark, tiny, or of an odd shape, measured against the others of their data set."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from aurank.data.checks.findings import Advice, Finding, finding_of
from aurank.data.checks.looks import Look

# Chosen on training photos of Grocery and drawings of Omniglot, of which fewer than 1 in 2,000 are found.
BLURRED, DARK, TINY, LONG = 0.52, 0.3, 64, 2.5
_ADVICE = {
    "blurred": Advice(
        "An embedding of a blurred image says little of its class, and pulls others there in training.",
        "Look at them; replace them, or leave them out (--fix).",
    ),
    "dark": Advice("A network sees next to nothing in them.", "Brighten or replace them, or leave them out (--fix)."),
    "tiny": Advice(
        "They are enlarged to the size of the others and look blurred.",
        "Fetch them in full size, or leave them out (--fix).",
    ),
    "odd-shapes": Advice(
        "Resized or cropped to a square, most of such an image is squeezed or cut away.",
        "Crop them to what they show, or leave them out (--fix).",
    ),
}


def examine_quality(looks: Mapping[str, Look], rows: Mapping[str, Sequence[int]]) -> list[Finding]:
    """Return the blurred, dark, tiny and odd-aspect images.

    An image is found where it passes a limit and is far from the median of all, so that a data set which is all small,
    dark or long is left alone.

    Args:
        looks: by path.
        rows: of each path.

    Example:
        >>> bright = Look(b"", 128, 128, 1.0, 0.2, np.zeros(64, bool))
        >>> looks = {"a": bright, "b": bright, "c": bright._replace(brightness=0.1)}
        >>> print(examine_quality(looks, {"a": [0], "b": [1], "c": [2]})[1])
        dark images: 1 (c: brightest parts at 10 %)
    """
    if not looks:
        return []
    paths = list(looks)
    blur = np.array([look.blur for look in looks.values()])
    bright = np.array([look.brightness for look in looks.values()])
    sides = np.array([(look.height, look.width) for look in looks.values()])
    shorter, aspect = sides.min(axis=1), sides.max(axis=1) / sides.min(axis=1)
    usual_blur = float(np.median(blur[np.isfinite(blur)])) if np.isfinite(blur).any() else 0.0
    is_blurred = np.nan_to_num(blur) > max(BLURRED, usual_blur + 0.1)
    is_dark = bright < min(DARK, float(np.median(bright)) / 2)
    is_tiny = shorter < min(TINY, float(np.median(shorter)) / 2)
    is_long = aspect > max(LONG, 1.5 * float(np.median(aspect)))

    def found(kind: str, check: str, chosen: np.ndarray, words: Callable[[int], str]) -> Finding:
        places = np.flatnonzero(chosen).tolist()
        groups = [rows[paths[place]] for place in places]
        names = [f"{paths[place]}: {words(place)}" for place in places]
        drop = [row for group in groups for row in group]
        return finding_of(check, names, _ADVICE[kind], rows=groups, fix=kind, drop=drop)

    return [
        found("blurred", "blurred images", is_blurred, lambda at: f"blur {blur[at]:.2f}, usual {usual_blur:.2f}"),
        found("dark", "dark images", is_dark, lambda at: f"brightest parts at {100 * bright[at]:.0f} %"),
        found("tiny", "tiny images", is_tiny, lambda at: f"{sides[at, 1]} × {sides[at, 0]} pixels"),
        found("odd-shapes", "images of an odd shape", is_long, lambda at: f"{sides[at, 1]} × {sides[at, 0]} pixels"),
    ]

"""Omniglot: handwritten characters of 50 alphabets."""

from pathlib import Path

from aurank.data.manifest import Manifest, build_manifest, first_seen
from aurank.data.sources import ImageSource, open_source
from aurank.errors import UserError

_SPLITS = {"images_background": "train", "images_evaluation": "test"}
_FOLDERS = ("omniglot", "omniglot-py", ".")  # as unpacked, as torchvision keeps it, right here


def read_omniglot(root: Path, *, path: str = "omniglot_full.zip") -> Manifest:
    """Return Omniglot: background alphabets as "train", evaluation alphabets as "test"; class "Alphabet/characterNN".

    Args:
        path: of a folder or zip that holds `images_background/ALPHABET/characterNN/*.png` and
            `images_evaluation/…`, in a zip at any depth. Without it, the folders `omniglot` and `omniglot-py`
            (torchvision's) and `root` itself are tried.

    `super_labels` number the alphabets. Paths start at `images_background`, so zip and folder have the same sha256.

    Source: Lake, Salakhutdinov and Tenenbaum, Human-level concept learning, Science 350 (2015),
        https://doi.org/10.1126/science.aab3050.
    """
    places = [root / path, *(root / folder for folder in _FOLDERS)]
    sources = (_find_source(place) for place in places if place.is_file() or place.is_dir())
    source = next((source for source in sources if source is not None), None)
    if source is None:
        tried = ", ".join(dict.fromkeys(str(place) for place in places))
        raise UserError(
            f"Omniglot is not there: none of {tried} holds images_background and images_evaluation. Fetch "
            "images_background.zip and images_evaluation.zip from https://github.com/brendenlake/omniglot "
            f"(folder python), unpack both into {root / 'omniglot'}, so that the layout is omniglot/images_background/"
            "ALPHABET/characterNN/NNNN_NN.png; or set data.root (or AURANK_DATA) to the folder that holds it"
        )
    parts = [name.split("/") for name in source.names() if name.endswith(".png")]
    rows = [row for row in parts if len(row) == 4 and row[0] in _SPLITS]
    alphabets = first_seen(row[1] for row in rows)
    return build_manifest(
        "omniglot",
        source,
        paths=["/".join(row) for row in rows],
        labels=[f"{row[1]}/{row[2]}" for row in rows],
        splits=[_SPLITS[row[0]] for row in rows],
        super_labels=[alphabets[row[1]] for row in rows],
    )


def _find_source(place: Path) -> ImageSource | None:
    """Return the source that starts at the folder with both image folders, or None if `place` has no such folder."""
    if place.is_dir():
        # Looked for by name: listing everything below a data folder could take minutes.
        for folder in (place, *sorted(below for below in place.iterdir() if below.is_dir())):
            if all((folder / split).is_dir() for split in _SPLITS):
                return open_source(folder)
        return None
    heads: dict[str, set[str]] = {}
    for name in open_source(place).names():
        parts = name.split("/")
        for split in _SPLITS.keys() & set(parts):
            heads.setdefault("/".join(parts[: parts.index(split)]), set()).add(split)
    whole = sorted(head for head, found in heads.items() if found == set(_SPLITS))
    return open_source(place, prefix=whole[0]) if whole else None

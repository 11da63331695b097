"""A map from an old model's rows to a new model's space: what ``aurank align`` calls, and what uses the map."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aurank.commands.galleries.search import ImageIndex
from aurank.data.readers.embeddings import read_embeddings, rows_of_images
from aurank.data.saved_embeddings import EmbeddingSource
from aurank.embedding.locations import ABOUT
from aurank.errors import UserError
from aurank.evaluation.evaluate import evaluate
from aurank.evaluation.postprocessing.steps import unit
from aurank.files import read_bundle, reading, require_writable, write_bundle

_MAP = "a map of aurank align"


def align(old: Path, new: Path, *, out: Path) -> str:
    """Write a map from old to new embeddings of the same images; return what was tried.

    Orthogonal Procrustes and ridge regressions are tried on held-out classes: the best mAUPRC of new queries on mapped
    old rows, all of unit length, wins, and is fitted again on all.

    Args:
        old: embeddings of the old model, as ``aurank embed --split all`` writes them.
        new: those of the new one; of both the split train is used, or all rows where there is none.
        out: the .safetensors file to write.

    Example:
        >>> align(Path("old.npz"), Path("new.npz"), out=Path("m"))
        Traceback (most recent call last):
        aurank.errors.UserError: cannot write --out m: the file written is of type .safetensors; name it m.safetensors
    """
    require_writable(out, suffix=".safetensors")
    first, second = (read_embeddings(path.parent, file=path.name) for path in (old, new))
    shared = np.isin(first.paths, second.paths)
    if training := bool((first.splits[shared] == "train").any()):
        shared &= first.splits == "train"
    images, labels = np.array(first.paths)[shared].tolist(), first.labels[shared]
    if len(classes := np.unique(labels)) < 4:
        raise UserError(f"{old} and {new} share {len(images):,} images of {len(classes)} classes; a map needs four")
    x, y = (unit(rows_of_images(manifest.source, images)) for manifest in (first, second))
    held_out = np.isin(labels, np.random.default_rng(0).permutation(classes)[: max(2, len(classes) // 5)])
    scores = {}
    for strength in (None, 0.01, 0.1, 1.0):  # of ridge; None: Procrustes
        mapped = x[held_out] @ fit_map(x[~held_out], y[~held_out], strength).T
        scores[strength] = evaluate(y[held_out], labels[held_out], mapped, labels[held_out]).mauprc
    write_bundle(out, {"matrix": fit_map(x, y, max(scores, key=scores.__getitem__)), "images": images}, _MAP)
    tried = ", ".join(f"{f'ridge {name}' if name else 'Procrustes'} {score:.4f}" for name, score in scores.items())
    kind = " of split train" if training else ", none of split train, so these are not to measure the map on"
    return f"{len(x):,} images{kind}; mAUPRC of {held_out.sum():,} of them held out: {tried}"


def fit_map(old: np.ndarray, new: np.ndarray, strength: float | None) -> np.ndarray:
    if strength is None:
        left, _, right = np.linalg.svd(new.T @ old, full_matrices=False)
        return np.asarray(left @ right)
    gram = old.T @ old
    penalty = strength * np.trace(gram) / len(gram)  # the mean eigenvalue, so that it suits any number of rows
    return np.linalg.solve(gram + penalty * np.eye(len(gram)), old.T @ new).T


def mapped_rows(gallery: Path, map_file: Path | None, images: Sequence[str]) -> tuple[np.ndarray, np.ndarray, int]:
    """Return images' old rows, the same in the new model's space, and on how many of the images the map was fitted."""
    if (gallery / ABOUT).exists():
        index = ImageIndex.open(gallery)
        source: Any = EmbeddingSource(index.rows.embeddings[:], index.images["path"].tolist(), where=str(gallery))
    else:
        source = read_embeddings(gallery.parent, file=gallery.name).source
    rows = rows_of_images(source, images)
    mapped, fitted = rows, 0
    if map_file is not None:
        with reading(map_file, f"a map of the rows of {gallery}", remedy="fit it by these and those of the new model"):
            content = read_bundle(map_file, dict[str, Any], _MAP)
            mapped, fitted = unit(rows) @ content["matrix"].numpy().T, len({*images} & {*content["images"]})
    return rows, mapped.astype(np.float32), fitted

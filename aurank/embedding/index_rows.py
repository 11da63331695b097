"""The rows of an image index: what is kept of each image, what is searched, and how either changes."""

from dataclasses import dataclass

import numpy as np

from aurank.arrays import Rows
from aurank.evaluation.index.neighbours import Index
from aurank.evaluation.postprocessing import GallerySearch, PostProcessing, processed_gallery

EXACT = "Flat"
RECALL_AT = (1, 10)
RECALL_QUERIES = 1000  # images of the index that are searched to measure its recall

Table = dict[str, np.ndarray]
"""Columns of the images: "path" and "class" (text), "source" (place among the sources), "sha256" (of the file)."""


@dataclass(frozen=True, eq=False)
class IndexedRows:
    """The rows of an index: a table of the images, their embeddings, and what is searched.

    `vectors`: the embeddings behind the post-processing, None without any.
    """

    images: Table
    embeddings: Rows
    index: Index
    processing: PostProcessing | None = None
    vectors: np.ndarray | None = None

    @property
    def searched(self) -> Rows:
        """What queries are compared with."""
        return self.embeddings if self.vectors is None else self.vectors


def index_rows(
    images: Table, embeddings: Rows, steps: PostProcessing | None, factory: str, *, distance: str, seed: int
) -> IndexedRows:
    """Return images and their embeddings behind fitted steps of post-processing, in a faiss index."""
    vectors = None if steps is None else processed_gallery(steps, np.asarray(embeddings))
    searched = embeddings if vectors is None else vectors
    index = Index.build(searched, factory, distance=distance, device="cpu", seed=seed)
    return IndexedRows(images, embeddings, index, steps, vectors)


def change_rows(rows: IndexedRows, kept: np.ndarray, new: Table, embeddings: np.ndarray) -> IndexedRows:
    """Return some of the rows and new ones behind them; the faiss index, which is changed, keeps what it has learnt."""
    images = {name: np.concatenate([values[kept], new[name]]) for name, values in rows.images.items()}
    joined = np.concatenate([rows.embeddings[kept], embeddings])
    processing, added, vectors = rows.processing, embeddings, None
    if processing is not None and processing.is_of_rows:
        added = processed_gallery(processing, embeddings) if len(embeddings) else rows.searched[:0]
        vectors = np.concatenate([rows.searched[kept], added.astype(rows.searched.dtype)])
    elif processing is not None:  # an image may change its neighbours' vectors
        vectors = processed_gallery(processing, joined)
    if kept.all() and (processing is None or processing.is_of_rows):
        rows.index.add(added)
    else:
        rows.index.host.reset()
        rows.index.add(joined if vectors is None else vectors)
    return IndexedRows(images, joined, rows.index, processing, vectors)


def measured_recall(rows: IndexedRows, *, seed: int = 0) -> dict[str, float] | None:
    """Return which part of the true nearest images an approximate index lists, at 1 and 10; None for an exact one.

    Measured with at most 1000 random images of the index, which do not find themselves.
    """
    if rows.index.factory == EXACT or len(rows.embeddings) < 2:
        return None
    count = min(RECALL_QUERIES, len(rows.embeddings))
    own = np.sort(np.random.default_rng(seed).permutation(len(rows.embeddings))[:count])
    search = GallerySearch(rows.index, rows.searched, rows.searched)
    queries = np.asarray(rows.searched[own])
    k = min(max(RECALL_AT), len(rows.embeddings) - 1)
    listed, true = (search.nearest(queries, k, own=own, exact=exact)[0] for exact in (False, True))
    found = {"queries": float(count)}
    for at in sorted({min(at, k) for at in RECALL_AT}):
        shared = [
            len(set(one[:at]) & set(other[:at])) for one, other in zip(listed.tolist(), true.tolist(), strict=True)
        ]
        found[str(at)] = sum(shared) / (at * count)
    return found

"""Making an index of images and changing it: what ``aurank index`` calls."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from aurank.commands.postprocess import fitted_on_training, read_postprocessing
from aurank.commands.run_options import PreparedModel, RunOptions, prepare_model, split_name
from aurank.commands.search import ImageIndex
from aurank.data import ImageSource
from aurank.embedding.embed import Embedded, ModelImages
from aurank.embedding.index_folder import ABOUT, IndexedRows, Table, describe_source, write_index_folder, writing
from aurank.embedding.select_images import ALL, ImageSelection
from aurank.embedding.stored_model import StoredModel, store_model
from aurank.errors import UserError
from aurank.evaluation.index.neighbours import Index
from aurank.evaluation.postprocessing import GallerySearch, PostProcessing, processed_gallery

RECALL_AT = (1, 10)
RECALL_QUERIES = 1000  # images of the index that are searched to measure its recall
EXACT = "Flat"


def build_index(
    model: str,
    images: ImageSelection | None = None,
    *,
    out: Path,
    factory: str = EXACT,
    distance: str = "cosine",
    postprocess: str | None = None,
    fit_on: Path | None = None,
    overwrite: bool = False,
    seed: int = 0,
    running: RunOptions | None = None,
) -> ImageIndex:
    """Embed images, and write a folder in which they can be searched: embeddings, faiss index, paths and the model.

    Args:
        model, running: as for `evaluate_model`.
        images: by default all images of the data that the model was trained on; without a split, those of all splits.
        out: the folder, which must not hold anything else.
        factory: a faiss index such as "Flat" (exact), "IVF64,Flat" or "HNSW32"; what an approximate one finds of the
            true nearest images is measured.
        distance: "cosine", "dot" or "euclidean".
        postprocess, fit_on: as for `evaluate_model`; the steps are kept with the index and applied to each photo.
        overwrite: replace an index that is there.
        seed: of the faiss index's training, and of the images that its recall is measured with.

    Raises:
        UserError: for options that cannot be met, before anything is embedded where that can be known.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for colour in ("red", "green"):
        ...         Path(folder, "photos", colour).mkdir(parents=True)
        ...         Image.new("RGB", (8, 8), colour).save(f"{folder}/photos/{colour}/one.png")
        ...     photos = ImageSelection(f"folder:{folder}/photos")
        ...     index = build_index("timm:test_vit,pretrained=false", photos, out=Path(folder, "index"))
        ...     sorted(file.name.partition("-")[0] for file in Path(folder, "index").iterdir())
        ['.lock', 'index.json', 'model', 'rows']
    """
    running = running or RunOptions()
    images = images or ImageSelection()
    images = replace(images, split=images.split or ALL)
    if split_name(model)[0] == "embeddings":
        raise UserError(f"--model {model}: an index keeps the model that photos are embedded with; name a model")
    running.torch_device  # noqa: B018  # refused before anything is read
    steps = None if postprocess is None else read_postprocessing(postprocess, distance=distance, fit_on=fit_on)
    if steps is None and fit_on is not None:
        raise UserError(f"--fit-on {fit_on} goes with --postprocess, whose steps are fitted on it")
    _check_factory(factory, distance)
    _require_free(out, overwrite=overwrite)
    prepared = prepare_model(model, images, running)
    if steps is not None:
        steps = fitted_on_training(steps, prepared)
    embedded, notes = prepared.embed()
    running.tell(*prepared.remarks, *notes[1:])
    stored = stored_of(prepared)
    with writing(out):
        _require_free(out, overwrite=overwrite)
        record = store_model(out, stored)
        source = prepared.dataset.manifest.source
        about: dict[str, Any] = {"model": record, "distance": distance, "sources": [describe_source(source)]}
        table = _table(embedded, source, number=0)
        rows = _indexed(table, embedded.embeddings, steps, factory, distance, seed)
        about["recall"] = measured_recall(rows, seed=seed)
        about = write_index_folder(out, about, rows)
    return ImageIndex(out, about, rows, device=running.torch_device, allow_code=running.allow_code)


def stored_of(prepared: PreparedModel) -> StoredModel:
    """Return a prepared model as it is stored."""
    loaded = prepared.dataset.model if isinstance(prepared.dataset, ModelImages) else None
    return StoredModel(prepared.name, prepared.module, prepared.config, loaded)


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


def _indexed(
    table: Table, embeddings: np.ndarray, steps: PostProcessing | None, factory: str, distance: str, seed: int
) -> IndexedRows:
    vectors = None if steps is None else processed_gallery(steps, embeddings)
    index = Index.build(embeddings if vectors is None else vectors, factory, distance=distance, device="cpu", seed=seed)
    return IndexedRows(table, embeddings, index, steps, vectors)


def _table(embedded: Embedded, source: ImageSource, *, number: int) -> Table:
    """Return the table of images that were embedded; an image whose class is its own path has none."""
    names = np.array([""]) if embedded.classes is None else embedded.classes
    classes = names[embedded.labels]
    if (classes == embedded.paths).all():
        classes = np.full(len(classes), "")
    digests = [hashlib.sha256(source.read_bytes(path)).hexdigest() for path in embedded.paths.tolist()]
    places = np.full(len(classes), number, np.int64)
    return {"path": embedded.paths, "class": classes, "source": places, "sha256": np.array(digests, dtype=np.str_)}


def _check_factory(factory: str, distance: str) -> None:
    try:
        Index(256, factory, distance=distance, device="cpu")
    except UserError as error:
        if "should be a multiple" not in str(error):  # of the width, which only the first embedding tells
            raise


def _require_free(out: Path, *, overwrite: bool) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise UserError(f"--out {out} is a file; name a folder")
    if (out / ABOUT).exists():
        if not overwrite:
            remedy = "add images with aurank index add, or replace it with --overwrite"
            raise UserError(f"--out {out} holds an index already: {remedy}")
    elif any(not one.name.startswith((".", "rows-", "model-")) for one in out.iterdir()):
        raise UserError(f"--out {out} holds other files: name a new folder")

"""Embeddings of images: what ``aurank embed`` calls."""

import shutil
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import PositiveInt

from aurank.commands.evaluate import NEIGHBOURS, saved_embeddings
from aurank.commands.run_options import RunOptions, prepare_model
from aurank.data.shards import SHARD_ROWS, ShardWriter, require_out
from aurank.embedding.embed import choose_pace, embed_rows
from aurank.embedding.embedded import Embedded, described
from aurank.embedding.image_selection import ImageSelection
from aurank.errors import UserError
from aurank.evaluation.engine.nearest import nearest_rows
from aurank.evaluation.index.overview import plane
from aurank.evaluation.inputs import RetrievalProblem
from aurank.files import claimed, temporary_name


def embed_model(model: str, images: ImageSelection | None = None, *, running: RunOptions | None = None) -> Embedded:
    """Return the embeddings of the images chosen, under the model's own preprocessing; they remember what made them.

    Args:
        model, images, running: as for `evaluate_model`; saved embeddings are returned as they are.

    Example:
        >>> embedded = embed_model("timm:test_vit,pretrained=false,input_size=32", ImageSelection("digits:"))
        >>> embedded.embeddings.shape
        (899, 64)
    """
    images, running = images or ImageSelection(), running or RunOptions()
    if model.startswith("embeddings:"):
        embedded, notes = saved_embeddings(model, model.removeprefix("embeddings:"), None, images)
        running.tell(*notes[1:])
        return embedded
    prepared = prepare_model(model, images, running)
    embedded, notes = prepared.embed()
    prepared.run.tell(*prepared.remarks, *notes[1:])
    return replace(embedded, made_by=np.array(prepared.made_by.text))


def embed_to_folder(
    model: str,
    images: ImageSelection | None = None,
    *,
    out: Path,
    shard_rows: PositiveInt = SHARD_ROWS,
    map: Literal["2d"] | None = None,
    running: RunOptions | None = None,
) -> Embedded | None:
    """Write the embeddings of the images chosen into a folder of parts, or a file, and return them.

    With parts, or a table, no process holds more than one part in memory. Of several processes the first one writes
    and returns the embeddings; the others return None.

    Args:
        model, images, running: as for `evaluate_model`.
        out: .npz file of embeddings, labels, ids, paths; .parquet or .lance table; or new folder, for parts.
        shard_rows: images of each part of a folder; default: 262144.
        map: 2d: x, y by UMAP if umap-learn is installed, else PCA; AP; nearest rows; needs a table.

    Raises:
        UserError: a map is not of a table; the folder holds anything else, or another process embeds into it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model, digits = "timm:test_vit,pretrained=false,input_size=32", ImageSelection("digits:")
        ...     _ = embed_to_folder(model, digits, out=Path(folder, "rows"), shard_rows=500)
        ...     sorted(path.name for path in Path(folder, "rows").iterdir())
        ['index.parquet', 'part-00000.npy', 'part-00001.npy']
    """
    run, is_file = running or RunOptions(), bool(out.suffix)
    group = run.group
    with ExitStack() as stack:
        if group.rank == 0:
            require_out(out, mapped=map is not None)
            stack.enter_context(claimed(out, is_file=is_file))
        if out.suffix == ".npz" or (is_file and model.startswith("embeddings:")):
            embedded = embed_model(model, images, running=run)
            if group.rank == 0:
                embedded.save(out, **_map_columns(embedded, run) if map else {})
            return embedded if group.rank == 0 else None
        folder = temporary_name(out) if is_file else out  # its parts become a table
        if is_file:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        prepared = prepare_model(model, images or ImageSelection(), run)
        manifest, total = prepared.dataset.manifest, len(prepared.dataset)
        how, sizes = prepared.embedding(prepared.dataset), prepared.sizes
        writer = ShardWriter(folder) if group.rank == 0 else None
        if sizes["batch"] is None:
            sizes["batch"] = choose_pace(chosen=np.ones(total, np.bool_), **how)
        run.tell(*prepared.remarks)
        embedded_rows = []
        for start in range(0, total, shard_rows):
            chosen = np.zeros(total, dtype=np.bool_)
            chosen[start : start + shard_rows] = True
            progress = run.stage(f"embedding, part {start // shard_rows + 1} of {-(-total // shard_rows)}")
            rows, embeddings = embed_rows(chosen=chosen, progress=progress, **how, **sizes)
            embedded_rows.append(rows)
            if writer is not None:
                writer.write(embeddings)
            group.barrier()
        if writer is None:
            return None
        rows = np.concatenate(embedded_rows)
        if not len(rows):
            raise UserError(f"no image of {manifest.name} could be read, so there is nothing to embed")
        about = described(manifest, rows, np.empty((len(rows), 0), np.float32))
        arrays = vars(replace(about, made_by=np.array(prepared.made_by.text)))
        writer.finish({name: values for name, values in arrays.items() if values is not None})
        embedded = Embedded.load(folder)
        if is_file:
            embedded.save(out, **_map_columns(embedded, run) if map else {})
        run.tell(*prepared.notes(embedded, manifest)[1:])
        return embedded


def _map_columns(embedded: Embedded, run: RunOptions) -> dict[str, Any]:
    rows, ap = embedded.embeddings, np.full(len(embedded.labels), np.nan)
    every_row = RetrievalProblem(rows, np.zeros(len(ap), np.int64))  # of one class, so that each finds all others
    near = nearest_rows(every_row, min(NEIGHBOURS, len(ap) - 1), device=run.torch_device)
    lists = zip(near.row, np.maximum(1 - near.score, 0), strict=True)
    neighbours = [{"ids": ids, "distances": distances} for ids, distances in lists]  # as Embedding Atlas reads them
    with suppress(UserError):  # raised if no query has a positive
        report = embedded.evaluate(device=run.torch_device, distributed=False)
        ap[np.flatnonzero(embedded.is_query)[report.per_query["query"]]] = report.per_query["ap"]
    coordinates, method = plane(rows)
    run.tell(f"x, y: {method}")
    return {"x": coordinates[:, 0], "y": coordinates[:, 1], "ap": ap, "neighbors": neighbours}

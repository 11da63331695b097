"""Embeddings of images: what ``aurank embed`` calls."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
from pydantic import PositiveInt

from aurank.commands.run_options import RunOptions, prepare_model
from aurank.data.shards import SHARD_ROWS, ShardWriter, require_folder
from aurank.embedding.embed import choose_pace, embed_rows
from aurank.embedding.embedded import Embedded, described
from aurank.embedding.image_selection import ImageSelection
from aurank.errors import UserError
from aurank.files import claimed, require_writable


def embed_model(model: str, images: ImageSelection | None = None, *, running: RunOptions | None = None) -> Embedded:
    """Return the embeddings of the images chosen, under the model's own preprocessing; they remember what made them.

    Args:
        model, images, running: as for `evaluate_model`.

    Example:
        >>> embedded = embed_model("timm:test_vit,pretrained=false,input_size=32", ImageSelection("digits:"))
        >>> embedded.embeddings.shape
        (899, 64)
    """
    prepared = prepare_model(model, images or ImageSelection(), running or RunOptions())
    embedded, notes = prepared.embed()
    prepared.run.tell(*prepared.remarks, *notes[1:])
    return replace(embedded, made_by=np.array(prepared.made_by.text))


def embed_to_folder(
    model: str,
    images: ImageSelection | None = None,
    *,
    out: Path,
    shard_rows: PositiveInt = SHARD_ROWS,
    running: RunOptions | None = None,
) -> Embedded | None:
    """Write the embeddings of the images chosen into a folder of parts, or a file, and return them.

    With parts no process holds more than one in memory. Of several processes the first one writes and returns the
    embeddings; the others return None.

    Args:
        model, images, running: as for `evaluate_model`.
        out: the .npz file to write: embeddings, labels, ids, paths; or a new folder, for parts.
        shard_rows: images of each part of a folder; default: 262144.

    Raises:
        UserError: the folder holds anything else, or another process embeds into it.

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
    if is_file:
        require_writable(out, suffix=".npz")
    elif group.rank == 0:
        require_folder(out)
    with claimed(out, is_file=is_file) if group.rank == 0 else nullcontext():
        if is_file:
            embedded = embed_model(model, images, running=run)
            if group.rank == 0:
                embedded.save(out)
            return embedded if group.rank == 0 else None
        prepared = prepare_model(model, images or ImageSelection(), run)
        manifest, total = prepared.dataset.manifest, len(prepared.dataset)
        how, sizes = prepared.embedding(prepared.dataset), prepared.sizes
        writer = ShardWriter(out) if group.rank == 0 else None
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
        columns = vars(described(manifest, rows, np.empty((len(rows), 0), np.float32)))
        columns = {name: values for name, values in columns.items() if values is not None}
        writer.finish(columns, classes=manifest.classes, made_by=prepared.made_by.text)
        embedded = Embedded.load(out)
        run.tell(*prepared.notes(embedded, manifest)[1:])
        return embedded

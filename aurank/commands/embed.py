"""Embeddings of images: what ``aurank embed`` calls."""

from dataclasses import replace

import numpy as np

from aurank.commands.run_options import RunOptions, prepare_model, split_name
from aurank.embedding.embed import Embedded
from aurank.embedding.select_images import ImageSelection
from aurank.embedding.stored.trained_model import made_by
from aurank.errors import UserError


def embed_model(model: str, images: ImageSelection | None = None, *, running: RunOptions | None = None) -> Embedded:
    """Return the embeddings of the images chosen, under the model's own preprocessing; they remember what made them.

    Args:
        model, images, running: as for `evaluate_model`.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for colour in ("red", "green", "blue"):
        ...         Path(folder, colour).mkdir()
        ...         Image.new("RGB", (8, 8), colour).save(f"{folder}/{colour}/one.png")
        ...     embedded = embed_model("timm:test_vit,pretrained=false", ImageSelection(f"folder:{folder}"))
        >>> embedded.embeddings.shape, embedded.paths.tolist()
        ((3, 64), ['blue/one.png', 'green/one.png', 'red/one.png'])
    """
    images, running = images or ImageSelection(), running or RunOptions()
    if split_name(model)[0] == "embeddings":
        raise UserError(f"--model {model}: these are embeddings already; name a model")
    running.torch_device  # noqa: B018  # refused before anything is read
    prepared = prepare_model(model, images, running)
    embedded, notes = prepared.embed()
    running.tell(*prepared.remarks, *notes[1:])
    stored = prepared.stored()
    source = made_by(model, stored.module, stored.preprocessing)
    return replace(embedded, made_by=np.array(source.text))

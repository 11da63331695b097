"""Decoding and resizing the images of a configuration once: what ``aurank data prepare`` calls."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from aurank.config import Config
from aurank.config.schema import EMBEDDINGS
from aurank.data import FolderSource, ZipSource
from aurank.data.prepared import Preparation, PreparedResult, prepare_images
from aurank.embedding.build import build_transform, with_preprocessing
from aurank.embedding.image_selection import read_whole
from aurank.errors import UserError
from aurank.files import claimed


def prepare_data(
    config: Config | Path | str | dict[str, Any],
    out: Path | str,
    overrides: Sequence[str] = (),
    *,
    short_side: PositiveInt | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> PreparedResult:
    """Decode and resize every image of a configuration, of all its splits, into the folder `out` for ``data.prepared``.

    What is there already, and of the same originals, is verified and stays: a killed preparation goes on.

    Args:
        config, overrides: as for ``aurank.train``.
        out: folder to write, for data.prepared.
        short_side: shorter side of the images kept; smaller ones stay; default: what the transforms need.
        progress: called with a stage, how much of it is done and how much there is.

    Raises:
        UserError: the folder holds other things, or another process writes it; an image cannot be read (data.on_error).
        AurankError: a full disk.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = prepare_data("digits/soprc", f"{folder}/prepared")
        >>> result.images, result.how.short_side
        (1797, 128)
    """
    from aurank.training.components import read_config

    data = with_preprocessing(read_config(config, overrides)).data
    if data.name == EMBEDDINGS:
        raise UserError(f"data.name={EMBEDDINGS} has no images to prepare")
    assert data.interpolation is not None
    if short_side is None:
        needed = [build_transform(data, train=train).needed_side for train in (True, False)]
        short_side = max(side for side in needed if side is not None)
    how = Preparation(short_side, data.channels, data.interpolation)
    manifest, folder = read_whole(data), Path(out).expanduser()
    if isinstance(source := manifest.source, FolderSource | ZipSource):
        originals = source.root if isinstance(source, FolderSource) else source.file
        if folder.resolve().is_relative_to(originals.resolve()) or originals.resolve().is_relative_to(folder.resolve()):
            raise UserError(f"--out {folder}: the originals are in {originals}; name a folder apart from theirs")
    with claimed(folder):
        return prepare_images(
            manifest, folder, how, on_error=data.on_error, max_pixels=data.max_pixels, progress=progress
        )

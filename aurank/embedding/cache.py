"""Embeddings kept on disk in pieces that are each whole or not there: a broken run goes on, a second one reads."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor, nn

from aurank.data import Manifest
from aurank.errors import UserError
from aurank.files import ABANDONED, checked, read_bundle, remove_temporaries, write_bundle, write_text

FORMAT = 3  # raise it when pixels change, so that older pieces are not found
ABOUT, _PACE = "about.json", "pace.json"
_SUFFIX, _WHAT = ".safetensors", "a piece of a cache"
Say = Callable[[str], None]  # called with a line for the user


class Pace(NamedTuple):
    """Images embedded at once, and the memory format of the network; None leaves that as it is."""

    batch: int = 256
    channels_last: bool | None = None


Piece = tuple[Int64[np.ndarray, " _"], Float32[np.ndarray, "_ _"]]
"""Rows of a data set, and their embeddings [row, dim]."""


def default_cache() -> Path:
    """Return ``$AURANK_CACHE``, else ``~/.cache/aurank/embeddings`` (below ``$XDG_CACHE_HOME`` where that is set)."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "aurank" / "embeddings"
    return Path(os.environ.get("AURANK_CACHE") or usual).expanduser()


class EmbeddingCache:
    """Embeddings of one model on one data set, in a folder named by what decides them."""

    def __init__(
        self,
        root: Path,
        weights: str,
        transform: str,
        data: str,
        *,
        about: Mapping[str, object],
        say: Say | None = None,
    ) -> None:
        keys = {"format": FORMAT, "weights": weights, "transform": transform, "data": data}
        self.folder = root / hashlib.sha256(json.dumps(keys).encode()).hexdigest()[:32]
        self.say = say
        self._extents: dict[str, tuple[int, int]] = {}  # [first, last row] of the pieces read so far
        write_text(self.folder / ABOUT, json.dumps({**about, **keys}, indent=1) + "\n")
        remove_temporaries(self.folder, age=ABANDONED)

    @property
    def pace(self) -> Pace | None:
        """How the pieces were embedded, so that those to come are alike."""
        with suppress(OSError, ValueError):
            return checked(json.loads((self.folder / _PACE).read_text(encoding="utf-8")), Pace)
        return None

    @pace.setter
    def pace(self, pace: Pace) -> None:
        write_text(self.folder / _PACE, json.dumps(pace._asdict()) + "\n")

    def read(self, count: int, needed: Bool[np.ndarray, " row"] | None = None) -> list[Piece]:
        """Return the whole pieces, of a data set of ``count`` rows, no row twice; remove damaged ones."""
        needed = np.ones(count, dtype=np.bool_) if needed is None else needed
        missing = needed.copy()
        pieces: list[Piece] = []
        for path in sorted(self.folder.glob(f"*{_SUFFIX}")):
            if not needed[slice(*self._extents.get(path.name, (None, None)))].any():
                continue
            try:
                stored = read_bundle(path, dict[str, Any], _WHAT)
                rows, embeddings = stored["rows"].numpy(), stored["embeddings"].numpy()
            except UserError:
                path.unlink(missing_ok=True)
                continue
            self._extents[path.name] = int(rows[0]), int(rows[-1]) + 1
            new = missing[rows]
            if new.any():
                pieces.append((rows[new], embeddings[new]))
                missing[rows[new]] = False
        if self.say is not None and pieces:
            total, count_read = int(needed.sum()), int((needed & ~missing).sum())
            part = f"{total:,}" if count_read == total else f"{count_read:,} of {total:,}"
            self.say(f"read {part} embeddings from the cache {self.folder}")
        return pieces

    def write(self, piece: Piece) -> None:
        rows, embeddings = piece
        write_bundle(self.folder / f"{int(rows[0]):010d}{_SUFFIX}", {"rows": rows, "embeddings": embeddings}, _WHAT)


def weights_sha256(module: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        else:
            digest.update(f"{name} {value!r}\n".encode())
    return digest.hexdigest()


def data_sha256(manifest: Manifest) -> str:
    """Return the digest of a manifest and its files: a zip's checksums, or each file's length and time of change."""
    marks = manifest.source.marks(manifest.paths)
    plain = [mark and mark[::-1] for mark in marks]
    return hashlib.sha256(manifest.sha256.encode() + json.dumps(plain).encode()).hexdigest()

"""Embeddings kept on disk in pieces that are each whole or not there: a broken run goes on, a second one reads."""

import hashlib
import itertools
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int64, Shaped
from torch import Tensor, nn

from aurank.data import ImageDataset, Manifest
from aurank.data.sources import FileMark
from aurank.errors import AurankError, UserError
from aurank.files import read_bundle, write_bundle, write_text

FORMAT = 3  # raised when how pixels are made changes: older pieces are then not found
ABOUT = "about.json"
_SUFFIX, _WHAT = ".safetensors", "a piece of a cache"
_NAME_LENGTH = 32
_REMOVED = ".removed-"
Say = Callable[[str], None]
"""Given a line that people should read."""


class Piece(NamedTuple):
    """Embeddings of some rows of a manifest, in increasing order."""

    rows: Int64[np.ndarray, " row"]
    embeddings: Float32[np.ndarray, "row dim"]


def default_cache() -> Path:
    """Return ``$AURANK_CACHE``, else ``~/.cache/aurank/embeddings`` (below ``$XDG_CACHE_HOME`` where that is set)."""
    if given := os.environ.get("AURANK_CACHE"):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "aurank" / "embeddings"


class EmbeddingCache:
    """Embeddings of one model on one data set, in a folder named by a digest of weights, transform and data.

    Args:
        weights, data: digests from `weights_sha256` and `data_sha256`.
        transform: words for all else that decides an embedding: architecture, options, preprocessing.
    """

    def __init__(
        self,
        root: Path,
        *,
        about: Mapping[str, object],
        say: Say | None = None,
        weights: str,
        transform: str,
        data: str,
    ) -> None:
        keys = {"format": FORMAT, "weights": weights, "transform": transform, "data": data}
        self.folder = root / hashlib.sha256(json.dumps(keys).encode()).hexdigest()[:_NAME_LENGTH]
        self.say = say
        self.about = json.dumps({**about, **keys}, indent=1) + "\n"
        self._extents: dict[str, tuple[int, int]] = {}  # of the pieces that have been read
        try:
            write_text(self.folder / ABOUT, self.about)  # its time of change says when the folder was last used
        except AurankError as error:
            remedy = "name another folder with --cache, or do without by --no-cache"
            raise UserError(f"the embedding cache: {error}; {remedy}") from error

    def read(self, count: int, wanted: Bool[np.ndarray, " row"] | None = None) -> list[Piece]:
        """Return the whole pieces, of a data set of ``count`` rows, no row twice; remove damaged ones."""
        wanted = np.ones(count, dtype=np.bool_) if wanted is None else wanted
        done, damaged = np.zeros(count, dtype=np.bool_), 0
        pieces: list[Piece] = []
        for path in sorted(self.folder.glob(f"*{_SUFFIX}")):
            if not wanted[slice(*self._extents.get(path.name, (None, None)))].any():
                continue
            piece = _read_piece(path, count, dim=pieces[0].embeddings.shape[1] if pieces else None)
            if piece is not None:
                self._extents[path.name] = int(piece.rows[0]), int(piece.rows[-1]) + 1
                new = ~done[piece.rows] & wanted[piece.rows]
                if new.any():
                    pieces.append(Piece(piece.rows[new], piece.embeddings[new]))
                    done[piece.rows[new]] = True
            elif path.exists():  # else `prune` took it
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
                damaged += 1
        if self.say is not None and (pieces or damaged):
            total = int(wanted.sum())
            part = f"{total:,}" if done.sum() == total else f"{done.sum():,} of {total:,}"
            again = f"; removed {damaged} damaged {'piece' if damaged == 1 else 'pieces'}" if damaged else ""
            self.say(f"read {part} embeddings from the cache {self.folder}{again}")
        return pieces

    def write(self, piece: Piece) -> None:
        """Keep a piece that holds at least one row."""
        path = self.folder / f"{int(piece.rows[0]):010d}{_SUFFIX}"
        for is_last in (False, True):  # `prune` may take the folder meanwhile
            try:
                write_bundle(path, {"rows": piece.rows, "embeddings": piece.embeddings}, _WHAT)
                if not (self.folder / ABOUT).exists():
                    write_text(self.folder / ABOUT, self.about)
                return
            except AurankError as error:
                if is_last:
                    remedy = "free some space and give the same command again, or use --no-cache"
                    raise AurankError(f"the embedding cache: {error}; {remedy}") from error


@dataclass(frozen=True)
class CachedSet:
    """The embeddings of one model on one data set."""

    folder: Path
    num_bytes: int
    used: float  # seconds since 1970
    about: str


def cached_sets(root: Path) -> list[CachedSet]:
    """Return what a cache holds, the least recently used first."""
    held = []
    for folder in root.glob("[0-9a-f]" * _NAME_LENGTH):
        with suppress(FileNotFoundError):  # another process prunes, or replaces a file
            stats = [entry.stat() for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False)]
            about = "unknown"
            with suppress(ValueError, LookupError, TypeError):
                content = json.loads((folder / ABOUT).read_bytes())
                about = f"{content['model']}; {content['images']:,} images of {content['of']}"
            used, size = max(stat.st_mtime for stat in stats), sum(stat.st_size for stat in stats)
            held.append(CachedSet(folder, size, used, about))
    return sorted(held, key=lambda one: (one.used, one.folder))


def prune(root: Path, most: int, *, removed: Callable[[CachedSet], None], dry_run: bool = False) -> list[CachedSet]:
    """Remove the least recently used sets until at most so many bytes are left; return what stays."""
    held = cached_sets(root)
    total = sum(one.num_bytes for one in held)
    while held and total > most:
        oldest = held.pop(0)
        total -= oldest.num_bytes
        if not dry_run:
            # A run that uses the folder finds all of it or nothing.
            away = oldest.folder.with_name(f"{oldest.folder.name}{_REMOVED}{uuid.uuid4().hex[:12]}")
            try:
                with suppress(FileNotFoundError):  # another prune was first
                    oldest.folder.rename(away)
                    shutil.rmtree(away)
            except OSError as error:
                remedy = "remove it by hand, or name another --cache"
                raise UserError(f"cannot remove {oldest.folder}: {error.strerror}; {remedy}") from error
        removed(oldest)
    for left in () if dry_run else root.glob("[0-9a-f]" * _NAME_LENGTH + f"{_REMOVED}*"):  # of a prune that was killed
        shutil.rmtree(left, ignore_errors=True)
    return held


def _read_piece(path: Path, count: int, *, dim: int | None) -> Piece | None:
    """Return the piece in a file, or None where it is damaged."""
    with suppress(UserError, LookupError):
        kept: dict[str, Any] = read_bundle(path, dict[str, Any], _WHAT)
        piece = Piece(kept["rows"].numpy(), kept["embeddings"].numpy())
        if dim in (None, piece.embeddings.shape[1]) and piece.rows[-1] < count:
            return piece
    return None


def weights_sha256(module: nn.Module) -> str:
    """Return the hexadecimal digest of a module's state: names, types, shapes and bytes."""
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
    digest = hashlib.sha256(manifest.sha256.encode())
    digest.update(json.dumps(_plain(manifest.source.marks(manifest.paths))).encode())
    return digest.hexdigest()


def image_marks(dataset: ImageDataset) -> Int64[np.ndarray, " row"]:
    """Return a number for each row, another one where its file, its box in that or the prepared pixels are others."""
    boxes = dataset.manifest.boxes
    parts = itertools.repeat(None) if boxes is None else boxes.tolist()
    return _numbers(json.dumps(both).encode() for both in zip(_plain(dataset.marks()), parts, strict=False))


def row_sums(
    embeddings: Shaped[np.ndarray, "row dim"], paths: Shaped[np.ndarray, " row"], marks: Int64[np.ndarray, " row"]
) -> Int64[np.ndarray, " row"]:
    """Return a number for each row, which changes with its embedding, its path and the mark of its image."""
    described = zip(embeddings, paths.tolist(), marks.tolist(), strict=True)
    return _numbers(os.fsencode(f"{path}\n{mark}\n") + row.tobytes() for row, path, mark in described)


def _numbers(contents: Iterable[bytes]) -> Int64[np.ndarray, " content"]:
    digests = b"".join(hashlib.blake2b(content, digest_size=8).digest() for content in contents)
    return np.frombuffer(digests, dtype="<i8").astype(np.int64)


def _plain(marks: Sequence[FileMark | None]) -> list[tuple[int | None, int] | None]:
    return [mark and (mark.crc if mark.modified is None else mark.modified, mark.length) for mark in marks]

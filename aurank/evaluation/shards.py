"""Rows that several processes hold: parts of one side, or copies of it."""

import hashlib
import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aurank.arrays import MappedRows
from aurank.distributed import ProcessGroup
from aurank.errors import UserError
from aurank.evaluation.inputs import RetrievalProblem

HASHED = 2**25  # bytes of rows in files that are hashed at a time


def gather_shards(group: ProcessGroup, problem: RetrievalProblem, *, shards: bool, **settings: Any) -> RetrievalProblem:
    """Return the problem as if one process had all rows of both sides; UserError where settings differ.

    A side that all processes hold alike is taken as it is; else, and always with `shards`, its parts are put together
    in the order of ranks. The same labels with other embeddings are copies that differ, which must not pass for shards.
    """
    fields = {name: getattr(problem, name) for name in ("positives", "ignore", "junk")}
    require_equal(group, **settings, **fields)
    gathered: dict[str, Any] = {}
    for side, names in (
        ("query", ("embeddings", "labels", "ids", "groups")),
        ("gallery", ("gallery", "gallery_labels", "gallery_ids", "gallery_groups")),
    ):
        values = [getattr(problem, name) for name in names]
        arrays = [array if array is None or hasattr(array, "shape") else np.asarray(array) for array in values]
        kinds = tuple(None if array is None else f"{array.dtype} {tuple(array.shape[1:])}" for array in arrays)
        require_equal(group, **{f"the types and widths of the {side} side (embeddings, labels, ids, groups)": kinds})
        digests = group.all_gather([_digest(array) for array in arrays])
        are_copies = all(digest == digests[0] for digest in digests)
        if not shards and not are_copies and all(digest[1:] == digests[0][1:] for digest in digests):
            fault = f"all ranks gave the same {side} labels and ids, but other embeddings"
            raise UserError(f'{fault}: distributed="shards" says that these are different rows')
        for name, array in zip(names, arrays, strict=True):
            gathered[name] = array if array is None or (are_copies and not shards) else group.concatenate(array)
    return replace(problem, **gathered)


def require_equal(group: ProcessGroup, **settings: Any) -> None:
    """Raise UserError where processes were called with different settings."""
    for name, value in settings.items():
        plain = value if value is None or isinstance(value, str | int | float | tuple) else _digest(value)
        gathered = group.all_gather(plain)
        for rank, setting in enumerate(gathered):
            if setting != gathered[0]:
                difference = f"rank 0 has {gathered[0]}, rank {rank} has {setting}"
                raise UserError(f"{name} must be the same on all ranks: {difference}")


def _digest(array: Any) -> str | None:
    if array is None:
        return None
    plain = array if isinstance(array, Tensor | MappedRows) else np.asarray(array)
    digest = hashlib.sha256(repr((tuple(plain.shape), str(plain.dtype))).encode())
    if isinstance(plain, Tensor):
        plain = plain.detach().cpu().contiguous().view(torch.uint8).numpy()
    step = HASHED // max(1, math.prod(plain.shape[1:]) * plain.itemsize)
    for start in range(0, len(plain), max(1, step)):
        digest.update(np.ascontiguousarray(plain[start : start + max(1, step)]).data)
    return digest.hexdigest()

"""A problem whose rows several processes hold, as if one process had all of them."""

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from aurank.arrays import MappedRows
from aurank.distributed import SENT, ProcessGroup
from aurank.errors import UserError
from aurank.evaluation.engine.problem import RetrievalProblem


def gather_shards(group: ProcessGroup, problem: RetrievalProblem, *, shards: bool) -> RetrievalProblem:
    """Return the problem as if one process had all rows of both sides.

    A side that all processes hold alike is taken as it is; else it is in shards, which are put together in the order of
    ranks, as all sides are if `shards`. UserError where processes disagree on what is given, its type or its width, and
    where they hold the same labels for other embeddings: copies that differ, which must not pass for shards.
    """
    if group.size == 1:
        return problem
    whole: dict[str, Any] = {}
    for side, names in (
        ("query", ("embeddings", "labels", "ids", "groups")),
        ("gallery", ("gallery", "gallery_labels", "gallery_ids", "gallery_groups")),
    ):
        given = [getattr(problem, name) for name in names]
        arrays = [array if array is None or hasattr(array, "shape") else np.asarray(array) for array in given]
        kinds = [None if array is None else (str(array.dtype), tuple(array.shape[1:])) for array in arrays]
        _check_equal(group, kinds, f"the types and widths of the {side} side (embeddings, labels, ids, groups)")
        digests = group.all_gather([_digest(array) for array in arrays])
        copies = all(other == digests[0] for other in digests)
        if not shards and not copies and all(other[1:] == digests[0][1:] for other in digests):
            raise UserError(
                f"all ranks gave the same {side} labels and ids, but other embeddings: give every rank its own rows, "
                'or all the very same; distributed="shards" says that these are different rows'
            )
        for name, array in zip(names, arrays, strict=True):
            whole[name] = array if array is None or (copies and not shards) else group.concatenate(array)
    return replace(problem, **whole)


def require_equal(group: ProcessGroup, **settings: Any) -> None:
    """Raise UserError where processes were called with different settings."""
    for name, value in settings.items():
        plain = value if value is None or isinstance(value, str | int | float | tuple) else _digest(value)
        _check_equal(group, plain, name)


def _check_equal(group: ProcessGroup, value: Any, what: str) -> None:
    given = group.all_gather(value)
    for rank, other in enumerate(given):
        if other != given[0]:
            raise UserError(f"{what} must be the same on all ranks: rank 0 has {given[0]}, rank {rank} has {other}")


def _digest(array: Any) -> str | None:
    if array is None:
        return None
    if isinstance(array, MappedRows):
        return _digest_of_mapped(array)
    plain = array.detach().cpu() if isinstance(array, torch.Tensor) else np.asarray(array)
    bits = plain.contiguous().view(torch.uint8).numpy() if isinstance(plain, torch.Tensor) else plain
    digest = hashlib.sha256(repr((tuple(plain.shape), str(plain.dtype))).encode())
    digest.update(np.ascontiguousarray(bits).data)
    return digest.hexdigest()


def _digest_of_mapped(rows: MappedRows) -> str:
    """Return the digest that the rows have in memory, read a block at a time."""
    digest = hashlib.sha256(repr((tuple(rows.shape), str(rows.dtype))).encode())
    step = max(1, SENT // max(1, rows.shape[1] * rows.itemsize))
    for start in range(0, len(rows), step):
        digest.update(np.ascontiguousarray(rows[start : start + step]).data)
    return digest.hexdigest()

"""The border of the evaluation: what a caller may pass, checked once, and rows read from it in pieces."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from aurank.errors import UserError
from aurank.evaluation.scores import tree_sum
from aurank.sizes import size_in_bytes

Embeddings: TypeAlias = Tensor | np.ndarray[Any, np.dtype[Any]]
Integers: TypeAlias = Tensor | np.ndarray[Any, np.dtype[Any]] | Sequence[Any]

# Squares of lengths in this range, and products of two such lengths, stay far from overflow and underflow in float64.
SHORTEST, LONGEST = 1e-140, 1e140
ELEMENTS = 2**17  # read at a time while lengths are taken


def byte_count(max_memory: int | str) -> int:
    """A number of bytes from an integer or from text such as "512MiB", "1.5 GiB" or "200MB"."""
    try:
        size = size_in_bytes(str(max_memory))
    except ValueError:
        size = 0
    if size < 1:
        raise UserError(f'max_memory must be a positive number of bytes or text such as "512MiB", got {max_memory!r}')
    return size


def choose_device(device: torch.device | str | None, queries: Embeddings) -> torch.device:
    """Where to compute: `device`, else the CUDA device that holds the queries, else the CPU."""
    if device is None:
        return queries.device if isinstance(queries, Tensor) and queries.is_cuda else torch.device("cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise UserError(f'device must be such as "cpu" or "cuda:0", got {device!r}') from error
    if chosen.type not in ("cpu", "cuda"):  # float64 decides close calls, and not every accelerator has it
        raise UserError(f'device must be "cpu" or "cuda", got {str(device)!r}: leave it out to use the CPU')
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f'device is {str(device)!r}, but no CUDA device is available: use device="cpu"')
    return chosen


def check_embeddings(embeddings: Embeddings, *, side: str) -> None:
    """Nothing, or UserError unless `embeddings` is a non-empty matrix of real numbers."""
    shape = tuple(getattr(embeddings, "shape", ()))  # a list has none, and is told to be a matrix
    if len(shape) != 2:
        raise UserError(
            f"the {side} embeddings have shape {shape}: expected two dimensions, one row per item, "
            "in a tensor or NumPy array"
        )
    if 0 in shape:
        raise UserError(f"the {side} embeddings are empty, shape {shape}: give at least one row and one column")
    if isinstance(embeddings, Tensor):
        real = not embeddings.is_complex() and embeddings.layout == torch.strided
    else:  # bfloat16 and its kin come from the ml_dtypes package, under a kind of their own
        real = embeddings.dtype.kind in "fiub" or embeddings.dtype.name.startswith(("bfloat", "float"))
    if not real:
        raise UserError(f"the {side} embeddings have type {embeddings.dtype}: give a dense array of real numbers")


def integer_array(values: Integers, *, name: str, rows: int, side: str) -> Int64[np.ndarray, " row"]:
    """`values` as int64, never by way of a float; UserError unless it is one integer for each of the side's rows."""
    kind = str(values.dtype) if isinstance(values, Tensor) else ""
    if isinstance(values, Tensor):  # NumPy knows no bfloat16; what is floating is refused below under its own name
        values = (values.float() if values.dtype == torch.bfloat16 else values).detach().cpu().numpy()
    try:
        array = np.asarray(values)
    except ValueError as error:  # nested lists of unequal length
        raise UserError(f"the {side} {name}s are not a list of integers: {error}") from error
    if array.ndim != 1 or len(array) != rows:
        given = f"{len(array)} entries" if array.ndim == 1 else f"shape {array.shape}"
        raise UserError(f"the {side} {name}s have {given} for {rows} {side} embeddings: give one {name} per row")
    if array.dtype.kind not in "iu":
        raise UserError(
            f"the {side} {name}s are {kind or array.dtype}: give integers, for example {name}s.astype('int64')"
        )
    if array.dtype.kind == "u" and int(array.max()) > np.iinfo(np.int64).max:
        raise UserError(f"the {side} {name}s reach {int(array.max())}: give integers that fit in int64")
    return array.astype(np.int64)


def unique_ids(values: Integers, *, rows: int, side: str) -> Int64[np.ndarray, " row"]:
    """`values` as int64; UserError when two rows of one side claim to be the same item."""
    ids = integer_array(values, name="id", rows=rows, side=side)
    order = np.argsort(ids, kind="stable")
    again = np.flatnonzero(ids[order][1:] == ids[order][:-1])
    if len(again):
        first, second = order[again[0]], order[again[0] + 1]
        raise UserError(
            f"the {side} ids name an item twice: {ids[first]} at rows {first} and {second}; give each item its own id"
        )
    return ids


def read(embeddings: Embeddings, index: Int64[Tensor, " row"]) -> Float64[Tensor, "row dim"]:
    """The rows at `index`, in float64, where the index lives; nothing else of `embeddings` is read."""
    if isinstance(embeddings, Tensor):
        return embeddings.detach().index_select(0, index).to(torch.float64)
    return torch.from_numpy(np.asarray(embeddings[index.numpy()], dtype=np.float64))


def row_lengths(embeddings: Embeddings, *, side: str, device: torch.device) -> Float64[Tensor, " row"]:
    """Euclidean length of every row, in the caller's order.

    Raises UserError naming the first row that is not finite, all zeros, or too short or long for float64.
    """
    pieces = [_lengths(embeddings, index, device) for index in _runs(embeddings)]
    lengths = torch.cat(pieces)
    usable = (lengths >= SHORTEST) & (lengths <= LONGEST)  # False for NaN as well
    if not bool(usable.all()):
        row = int(torch.argmin(usable.to(torch.int8)))
        raise UserError(_complaint(embeddings, row, float(lengths[row]), side))
    return lengths


def _runs(embeddings: Embeddings) -> Iterator[Int64[Tensor, " row"]]:
    where = embeddings.device if isinstance(embeddings, Tensor) else torch.device("cpu")
    rows, step = embeddings.shape[0], max(1, ELEMENTS // embeddings.shape[1])
    for start in range(0, rows, step):
        yield torch.arange(start, min(start + step, rows), device=where)


def _lengths(embeddings: Embeddings, index: Tensor, device: torch.device) -> Float64[Tensor, " row"]:
    rows = read(embeddings, index).to(device)
    return tree_sum(rows * rows).sqrt()


def _complaint(embeddings: Embeddings, row: int, length: float, side: str) -> str:
    where = embeddings.device if isinstance(embeddings, Tensor) else torch.device("cpu")
    values = read(embeddings, torch.tensor([row], device=where))
    if not bool(values.isfinite().all()):
        return f"row {row} of the {side} embeddings holds NaN or infinity: remove it or find out how it was made"
    if not bool(values.any()):
        return f"row {row} of the {side} embeddings is all zeros, and has no cosine with anything: remove it"
    return (
        f"row {row} of the {side} embeddings has length {length:.3g}: expected {SHORTEST} to {LONGEST}; "
        "scale the embeddings, which changes no cosine"
    )


class Vectors:
    """Rows of one side in a chosen order, given out in pieces as float64 or as unit vectors."""

    def __init__(
        self,
        embeddings: Embeddings,
        lengths: Float64[Tensor, " row"],
        *,
        order: Int64[np.ndarray, " position"],
    ) -> None:
        self.embeddings = embeddings
        where = embeddings.device if isinstance(embeddings, Tensor) else torch.device("cpu")
        self.order = torch.from_numpy(order).to(where)
        self.device = lengths.device
        self.lengths = lengths[torch.from_numpy(order).to(lengths.device)]
        self.dim = int(embeddings.shape[1])
        self.ready: Tensor | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    def raw(self, positions: slice | Int64[Tensor, " position"]) -> Float64[Tensor, "position dim"]:
        """The rows at these positions as they came, in float64."""
        index = positions if isinstance(positions, slice) else positions.to(self.order.device)
        return read(self.embeddings, self.order[index]).to(self.device)

    def unit(self, positions: slice, dtype: torch.dtype) -> Tensor:
        """The rows at these positions divided by their length in float64, then rounded to `dtype`."""
        if self.ready is not None and dtype == self.ready.dtype:
            return self.ready[positions]
        return self.raw(positions).div_(self.lengths[positions, None]).to(dtype)

    def prepare(self, step: int) -> None:
        """Keeps all unit vectors in float32, made `step` rows at a time, so that no block makes them again."""
        pieces = [self.unit(slice(start, start + step), torch.float32) for start in range(0, len(self), step)]
        self.ready = torch.cat(pieces)

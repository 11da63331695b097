"""What a caller may pass, checked once; and rows of embeddings, read in pieces."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from aurank.arrays import MappedRows
from aurank.errors import UserError
from aurank.sizes import size_in_bytes

Device: TypeAlias = torch.device | str
Devices: TypeAlias = Device | Sequence[Device] | None
Embeddings: TypeAlias = Tensor | np.ndarray[Any, np.dtype[Any]] | MappedRows
Integers: TypeAlias = Tensor | np.ndarray[Any, np.dtype[Any]] | Sequence[Any]
Places: TypeAlias = Int64[np.ndarray, " place"]
ProgressCallback: TypeAlias = Callable[[int, int], object]  # called with what is done and the total


def byte_count(max_memory: int | str) -> int:
    """Return the number of bytes of an integer or of text such as "512MiB", "1.5 GiB" or "200MB"."""
    try:
        size = size_in_bytes(str(max_memory))
    except ValueError:
        size = 0
    if size < 1:
        raise UserError(f'max_memory must be a positive number of bytes or text such as "512MiB", got {max_memory!r}')
    return size


def choose_devices(device: Devices, queries: Embeddings) -> list[torch.device]:
    """Return where to compute: on each `device`, else on the CUDA device that holds the queries, else on the CPU."""
    if device is None:
        return [device_of(queries) if device_of(queries).type == "cuda" else torch.device("cpu")]
    try:
        devices = [torch.device(one) for one in ([device] if isinstance(device, str | torch.device) else device)]
    except RuntimeError as error:
        raise UserError(f'device must be such as "cpu" or "cuda:0", got {device!r}') from error
    kinds = {one.type for one in devices}
    if kinds != {"cpu"} and kinds != {"cuda"}:  # float64 decides close calls, and not every accelerator has it
        raise UserError(f"device must name the CPU or CUDA devices, not both or others; got {device!r}")
    if kinds == {"cuda"} and not torch.cuda.is_available():
        raise UserError(f'device is {device!r}, but no CUDA device is available: use device="cpu"')
    return devices


def refuse_masked(values: Any, name: str) -> None:
    """Raise UserError for a masked array that hides entries, which np.asarray would bring back."""
    if isinstance(values, np.ma.MaskedArray) and values.mask.any():
        hidden = int(np.count_nonzero(values.mask))
        raise UserError(f"the {name} are a masked array with {hidden} entries hidden: leave those rows out")


def check_matrix(embeddings: Embeddings, *, side: str) -> None:
    """Raise UserError unless `embeddings` is a non-empty matrix of real numbers."""
    refuse_masked(embeddings, f"{side} embeddings")
    what = f"the {side} embeddings"
    if not hasattr(embeddings, "shape"):
        raise UserError(f"{what} are a {type(embeddings).__name__}: give a tensor or NumPy array, numpy.asarray(…)")
    shape = tuple(embeddings.shape)
    if len(shape) != 2:
        raise UserError(f"{what} have shape {shape}: expected two dimensions, one row per item, in a tensor or array")
    if 0 in shape:
        raise UserError(f"{what} are empty, shape {shape}: give at least one row and one column")
    if isinstance(embeddings, Tensor):
        real = not embeddings.is_complex() and embeddings.layout == torch.strided
    else:  # bfloat16 and its kin come from the ml_dtypes package, under a kind of their own
        real = embeddings.dtype.kind in "fiub" or embeddings.dtype.name.startswith(("bfloat", "float"))
    if not real:
        raise UserError(f"{what} have type {embeddings.dtype}: give a dense array of real numbers")


def numbered(
    first: Integers | None,
    second: Integers | None,
    *,
    name: str,
    gather: Callable[..., list[Any]] = lambda own: [own],
) -> tuple[Integers | None, Integers | None, Shaped[np.ndarray, " name"] | None]:
    """Return labels or ids of both sides with text as integers, and the names in the order of their numbers.

    What is no text comes back as it came, without names. With `gather`, a process group's `all_gather`, the numbers are
    the same in all processes.
    """
    sides = [_as_text(values, name) for values in (first, second)]
    given = sum(values is not None for values in (first, second))
    members = gather((given, [np.unique(values) for values in sides if values is not None]))
    texts = [text for _, some in members for text in some]
    if not texts:
        return first, second, None
    if len(texts) < sum(given for given, _ in members):
        raise UserError(f"some {name}s are text and some are not: give the {name}s of both sides alike")
    names = np.unique(np.concatenate(texts))
    left, right = (None if values is None else np.searchsorted(names, values) for values in sides)
    return left, right, names


def as_array(values: Integers) -> np.ndarray:
    """Return a tensor or a list of numbers as an array."""
    if isinstance(values, Tensor):  # NumPy has no bfloat16
        return (values.float() if values.dtype == torch.bfloat16 else values).detach().cpu().numpy()
    return np.asarray(values)


def _as_text(values: Integers | None, name: str) -> Shaped[np.ndarray, "..."] | None:
    """Return an array of text, or None where the values are something else."""
    if values is None or isinstance(values, Tensor) or (isinstance(values, np.ndarray) and values.ndim != 1):
        return None
    if not len(values) or not all(isinstance(one, str) for one in values):
        return None
    refuse_masked(values, f"{name}s")
    return np.asarray(values, dtype=np.str_)


def _integers(values: Integers, name: str) -> np.ndarray:
    """Return `values` as int64, never by way of a float; UserError unless they are integers that fit."""
    refuse_masked(values, name)
    try:
        array = as_array(values)
    except ValueError as error:  # nested lists of unequal length
        raise UserError(f"the {name} are not a list of integers: {error}") from error
    if array.size and (array.dtype.kind not in "iu" or int(array.max()) > np.iinfo(np.int64).max):
        raise UserError(
            f"the {name} are {array.dtype}: give integers that fit in int64, for example by "
            "np.unique(…, return_inverse=True)[1], over both sides together where there are two"
        )
    return array.astype(np.int64)


def integer_array(values: Integers, *, name: str, rows: int, side: str) -> Int64[np.ndarray, " row"]:
    """Return `values` as int64; UserError unless it is one integer for each row."""
    array = _integers(values, f"{side} {name}s")
    if array.shape != (rows,):
        shape = f"{len(array)} entries" if array.ndim == 1 else f"shape {array.shape}"
        raise UserError(f"the {side} {name}s have {shape} for {rows} {side} embeddings: give one {name} per row")
    return array


def unique_ids(values: Integers, *, rows: int, side: str) -> Int64[np.ndarray, " row"]:
    """Return `values` as int64; UserError when two rows of one side claim to be the same item."""
    ids = integer_array(values, name="id", rows=rows, side=side)
    names, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        raise UserError(f"the {side} ids name an item twice: {names[counts > 1][0]}; give each item its own id")
    return ids


def pair_array(values: Integers, name: str, queries: int, gallery: int) -> Int64[np.ndarray, "pair 2"]:
    """Return `values` as index pairs (query row, gallery row); UserError unless all are within both sides."""
    array = _integers(values, f"pairs in {name}")
    if not array.size:
        return np.empty((0, 2), np.int64)
    if array.ndim != 2 or array.shape[1] != 2:
        raise UserError(f"{name} must be pairs (query row, gallery row), shape [pair, 2]; got shape {array.shape}")
    for indices, side, rows in ((array[:, 0], "query", queries), (array[:, 1], "gallery", gallery)):
        _check_rows(indices, name, side, rows)
    return array


def row_array(values: Integers, name: str, rows: int) -> Int64[np.ndarray, " chosen"]:
    """Return gallery rows, given as such or as a truth value for each."""
    refuse_masked(values, name)
    given = np.asarray(values)
    array = (
        np.flatnonzero(given)
        if given.dtype == np.bool_ and given.shape == (rows,)
        else _integers(values, f"rows in {name}")
    )
    if array.ndim != 1:
        raise UserError(f"{name} must be gallery rows or one truth value per row, got shape {array.shape}")
    _check_rows(array, name, "gallery", rows)
    return array


def _check_rows(indices: Int64[np.ndarray, " index"], name: str, side: str, rows: int) -> None:
    """Raise UserError where an index is beyond the rows of a side."""
    wrong = indices[(indices < 0) | (indices >= rows)]
    if len(wrong):
        raise UserError(f"{name} names {side} row {wrong[0]}: there are rows 0 to {rows - 1}")


def device_of(embeddings: Embeddings) -> torch.device:
    """Return where the embeddings live; NumPy's on the CPU."""
    return embeddings.device if isinstance(embeddings, Tensor) else torch.device("cpu")

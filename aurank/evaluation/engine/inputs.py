"""What a caller may pass, checked once; and rows of embeddings, read in pieces."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float64, Int64, Shaped
from torch import Tensor

from aurank.arrays import MappedRows
from aurank.errors import UserError
from aurank.evaluation.engine.scores import Distance, tree_sum
from aurank.sizes import size_in_bytes

Device: TypeAlias = torch.device | str
Devices: TypeAlias = Device | Sequence[Device] | None
Embeddings: TypeAlias = Tensor | np.ndarray[Any, np.dtype[Any]] | MappedRows
Integers: TypeAlias = Tensor | np.ndarray[Any, np.dtype[Any]] | Sequence[Any]
Places: TypeAlias = Int64[np.ndarray, " place"]
ProgressCallback: TypeAlias = Callable[[int, int], object]  # called with what is done and the total

# Squares of lengths in this range, and products of two such lengths, stay far from overflow and underflow in float64.
SHORTEST, LONGEST = 1e-140, 1e140
ELEMENTS = 2**17  # read at a time while lengths are taken


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


def read(embeddings: Embeddings, index: Int64[Tensor, " row"]) -> Float64[Tensor, "row dim"]:
    """Return the rows at `index`, in float64, where the index lives; nothing else of `embeddings` is read."""
    if isinstance(embeddings, Tensor):
        return embeddings.detach().index_select(0, index).to(torch.float64)
    return torch.from_numpy(np.asarray(embeddings[index.numpy()], dtype=np.float64))


def plain_array(embeddings: Embeddings) -> np.ndarray[Any, np.dtype[Any]] | None:
    """Return the embeddings as compiled code reads them, C-ordered float32 or float64; None if they are not."""
    if isinstance(embeddings, Tensor):
        if embeddings.is_cuda or embeddings.dtype not in (torch.float32, torch.float64):
            return None
        embeddings = embeddings.detach().numpy()
    if isinstance(embeddings, MappedRows):
        return None
    native = embeddings.dtype in (np.float32, np.float64) and embeddings.dtype.isnative
    return np.asarray(embeddings) if native and embeddings.flags.c_contiguous else None


def row_lengths(embeddings: Embeddings, *, side: str, distance: str, compiled: bool) -> Float64[Tensor, " row"]:
    """Return the Euclidean length of every row, in the caller's order, where the embeddings live.

    UserError names the first row that is not finite, too long for float64, or under cosine zero or too short.
    """
    array = plain_array(embeddings) if compiled else None
    if array is not None:
        from aurank.evaluation.engine.kernels.pairs import exact_lengths

        lengths = torch.empty(len(array), dtype=torch.float64)
        exact_lengths(array, lengths.numpy())
    else:
        index = torch.arange(len(embeddings), device=device_of(embeddings))
        pieces = torch.split(index, max(1, ELEMENTS // embeddings.shape[1]))
        squares = torch.cat([tree_sum(torch.square(read(embeddings, piece))) for piece in pieces])
        # torch's square root on the CPU is a vector routine that may err in the last digit; NumPy's never does.
        lengths = squares.sqrt() if squares.is_cuda else torch.from_numpy(np.sqrt(squares.numpy()))
    usable = lengths <= LONGEST  # False for NaN as well
    if distance == "cosine":
        usable &= lengths >= SHORTEST
    if bool(usable.all()):
        return lengths
    row = int(torch.argmin(usable.to(torch.int8)))
    values, length = read(embeddings, torch.tensor([row], device=device_of(embeddings))), float(lengths[row])
    what = f"has length {length:.3g}: scale the embeddings"
    if not bool(values.isfinite().all()):
        what = "holds NaN or infinity: remove it or find out how it was made"
    elif not bool(values.any()):
        what = "is all zeros, and has no cosine with anything: remove it"
    raise UserError(f"row {row} of the {side} embeddings {what}")


def greatest_whole(embeddings: Embeddings) -> float | None:
    """Return the greatest absolute value of embeddings of whole numbers, None for other ones."""
    greatest = 0.0
    index = torch.arange(len(embeddings), device=device_of(embeddings))
    for piece in torch.split(index, max(1, ELEMENTS // embeddings.shape[1])):
        rows = read(embeddings, piece)
        if bool((rows != rows.round()).any()):
            return None
        greatest = max(greatest, float(rows.abs().max()))
    return greatest


class Vectors:
    """Rows of one side after sorting, given out in pieces: as they came, or as features for products."""

    def __init__(
        self, embeddings: Embeddings, lengths: Float64[Tensor, " row"], *, order: Places, distance: Distance
    ) -> None:
        self.embeddings, self.distance = embeddings, distance
        self.order = torch.from_numpy(order).to(lengths.device)
        self.lengths = lengths[self.order]
        self.units = distance.units(self.lengths)
        self.dim, self.device = int(embeddings.shape[1]), lengths.device

    def raw(self, places: slice | Int64[Tensor, " place"]) -> Float64[Tensor, "place dim"]:
        """Return the rows at these places as they came, in float64."""
        return read(self.embeddings, self.order[places])

    def features(
        self, places: slice, dtype: torch.dtype, *, gallery: bool, out: Shaped[Tensor, "place width"] | None = None
    ) -> Shaped[Tensor, "place width"]:
        """Return features of these rows, computed in float64 and rounded to `dtype`; in `out` if given."""
        if out is None:
            shape = places.stop - places.start, self.distance.width(self.dim)
            out = torch.empty(shape, dtype=dtype, device=self.device)
        step = max(1, ELEMENTS // out.shape[1])
        for start in range(places.start, places.stop, step):
            here = slice(start, min(start + step, places.stop))
            piece = self.distance.features(self.raw(here), self.lengths[here], gallery=gallery)
            out[start - places.start : here.stop - places.start] = piece
        return out

"""Arrays in files, whose headers are compared with the bytes that are there, and arrays of other libraries."""

import io
import math
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
from jaxtyping import Int64, Shaped

from aurank.errors import UserError, first_line
from aurank.files import reading, require_ordinary

if TYPE_CHECKING:
    from torch import Tensor

_LARGE, _DENSE = 2**26, 100
_BLOCK = 2**24  # bytes written at a time
_CPU = 1  # a kind of device of DLPack
NPY_MAGIC = b"\x93NUMPY"


def claims_too_much(claimed: int, size: int) -> bool:
    """Whether so many bytes, packed in `size`, are a bomb: more than 64 MiB, and more than a hundred times as many."""
    return claimed > max(_LARGE, _DENSE * size)


def is_bomb(member: zipfile.ZipInfo, size: int) -> bool:
    return member.compress_size > size or claims_too_much(member.file_size, member.compress_size)


def read_header(file: io.BufferedIOBase, size: int) -> tuple[tuple[int, ...], np.dtype]:
    """Return shape and type of the .npy array that `file`, of `size` bytes, begins with; refuse objects and bombs."""
    form = np.lib.format
    read = form.read_array_header_1_0 if form.read_magic(file) == (1, 0) else form.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise UserError("it holds pickled objects, which are refused because reading them can run code")
    claimed = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or claimed > size:
        raise UserError(f"its header claims an array of shape {shape}, {claimed:,} bytes, and there are {size:,}")
    return shape, dtype


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file by name; of an .npy file the one there is, mapped, not read, named ""."""
    require_ordinary(path)
    with reading(path, "plain arrays, .npz or .npy", remedy="name a file of numpy.savez or numpy.save"):
        with path.open("rb") as file:
            start = file.read(len(NPY_MAGIC))
            file.seek(0)
            if start.startswith(b"PK"):
                return _load_archive(file, path)
            read_header(file, path.stat().st_size)
        return {"": np.load(path, mmap_mode="r", allow_pickle=False)}


def _load_archive(file: io.BufferedReader, path: Path) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(file) as archive:
        size, claimed = path.stat().st_size, sum(member.file_size for member in archive.infolist())
        if claims_too_much(claimed, size):
            raise UserError(f"{path} claims {claimed:,} bytes in {size:,}; save the arrays with numpy.savez")
        for member in archive.infolist():
            with archive.open(member) as entry:
                read_header(cast(io.BufferedIOBase, entry), member.file_size)
    file.seek(0)
    with np.load(file, allow_pickle=False) as content:
        return dict(content)


class MappedRows:
    """Rows of several matrices in files, one after another, or some of them; `rows[index]` reads what it returns."""

    ndim = 2

    def __init__(self, parts: Sequence[np.ndarray], places: Int64[np.ndarray, " row"] | None = None) -> None:
        self.parts, self.places = parts, places  # matrices of one type and width; rows of all together, None: all
        self.edges = np.cumsum([0, *(len(part) for part in parts)])
        self.dtype: np.dtype[Any] = parts[0].dtype
        self.itemsize = self.dtype.itemsize
        self.shape = (int(self.edges[-1]) if places is None else len(places), int(parts[0].shape[1]))
        self.size = self.shape[0] * self.shape[1]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice) and self.places is None:
            start, stop, step = index.indices(len(self))
            number = int(np.searchsorted(self.edges, start, side="right")) - 1
            if step == 1 and start < stop <= self.edges[number + 1]:  # within one part
                return np.array(self.parts[number][start - self.edges[number] : stop - self.edges[number]])
        chosen = self._chosen(index)
        return self._read(chosen.reshape(-1)).reshape(*chosen.shape, self.shape[1])

    def select(self, index: Any) -> "MappedRows":
        """Return the rows at an index, as one such matrix; none is read."""
        return MappedRows(self.parts, np.asarray(self._chosen(index), dtype=np.int64))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        whole = self[:]
        return np.asarray(whole if dtype is None else whole.astype(dtype, copy=False))

    def _chosen(self, index: Any) -> np.ndarray:
        if self.places is not None:
            return np.asarray(self.places[index])
        if isinstance(index, slice):
            return np.arange(*index.indices(len(self)))
        given = np.asarray(index)
        if given.dtype == np.bool_ and given.shape == (len(self),):
            return np.flatnonzero(given)
        if given.dtype.kind not in "iu" or isinstance(index, tuple):  # nothing at all, or what NumPy refuses
            return np.asarray(np.arange(len(self))[index])
        if given.size and not (-len(self) <= given.min() and given.max() < len(self)):
            raise IndexError(f"rows {given.min()} to {given.max()} are asked for, and there are {len(self)}")
        wide = given.astype(np.int64, copy=False)
        return np.where(wide < 0, wide + len(self), wide)

    def _read(self, places: Int64[np.ndarray, " row"]) -> Shaped[np.ndarray, "row dim"]:
        found = np.empty((len(places), self.shape[1]), self.dtype)
        number = np.searchsorted(self.edges, places, side="right") - 1
        for part in np.unique(number).tolist():
            here = number == part
            found[here] = self.parts[part][places[here] - self.edges[part]]
        return found


Rows: TypeAlias = np.ndarray | MappedRows


def save_rows(file: BinaryIO, rows: Rows) -> None:
    """Write rows as an .npy file, those that lie in files a block at a time."""
    if not isinstance(rows, MappedRows):
        np.save(file, rows, allow_pickle=False)
        return
    described = {"descr": np.lib.format.dtype_to_descr(rows.dtype), "fortran_order": False, "shape": rows.shape}
    np.lib.format.write_array_header_1_0(file, described)
    step = max(1, _BLOCK // (rows.shape[1] * rows.itemsize))
    for start in range(0, len(rows), step):
        file.write(rows[start : start + step].tobytes())


def select_rows(rows: Rows, index: Any) -> Rows:
    if isinstance(rows, np.memmap):
        rows = MappedRows([rows])
    return rows.select(index) if isinstance(rows, MappedRows) else rows[index]


# -- arrays of other libraries -----------------------------------------------------------------------------------------


@runtime_checkable
class HasArray(Protocol):
    """What NumPy can read: arrays of NumPy and torch, data frames and series of pandas and polars."""

    def __len__(self) -> int: ...
    def __array__(self) -> Any: ...


@runtime_checkable
class HasDLPack(Protocol):
    """What gives its memory, on a GPU too: arrays of CuPy, JAX and others."""

    def __len__(self) -> int: ...
    def __dlpack__(self) -> Any: ...
    def __dlpack_device__(self) -> Any: ...


Arrays: TypeAlias = HasArray | HasDLPack | Sequence[Any]


def as_plain(values: Any, name: str) -> "Tensor | np.ndarray | MappedRows":
    """Return a list, or an array of any library, as a tensor or an array; copied only where its memory is not given.

    A column of lists, and a list of tensors, become a matrix. `name` is what a UserError calls the values.
    """
    import torch

    if isinstance(values, torch.Tensor | np.ndarray | MappedRows):
        return values
    try:
        if isinstance(values, Sequence) and len(values) and all(isinstance(row, torch.Tensor) for row in values):
            return torch.stack(list(values))
        # NumPy would copy from a GPU, or refuse to.
        device = None
        with suppress(TypeError):  # lists of older pyarrow lie on none
            device = values.__dlpack_device__()[0] if isinstance(values, HasDLPack) else None
        if device is not None and (device != _CPU or not isinstance(values, HasArray)):
            return torch.utils.dlpack.from_dlpack(values)
        array = np.asarray(values)
        rows = array if array.dtype == np.object_ and array.ndim == 1 else ()
        is_nested = len(rows) > 0 and all(isinstance(row, HasArray | list) for row in rows)
        return np.stack([np.asarray(row) for row in rows]) if is_nested else array
    # Rows of several lengths; whatever else a library refuses to give.
    except Exception as error:
        kind = f"a {type(values).__name__} that makes no array ({first_line(error)[:100]})"
        raise UserError(f"the {name} are {kind}: give numbers, as many in each row") from error

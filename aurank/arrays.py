"""Arrays in files, those of several files as one matrix, and arrays of other libraries."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from jaxtyping import Int64

from aurank.errors import UserError, first_line
from aurank.files import reading, require_ordinary

if TYPE_CHECKING:
    from torch import Tensor

_CPU = 1  # a kind of device of DLPack


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file by name; of an .npy file the one there is, mapped, not read, named ""."""
    require_ordinary(path)
    with reading(path, "plain arrays, .npz or .npy", remedy="name a file of numpy.savez or numpy.save"):
        with path.open("rb") as file:  # which numpy leaves open where an archive is cut short
            if (start := file.read(6)) != b"\x93NUMPY":
                if not start.startswith(b"PK"):
                    raise ValueError("it is neither an archive nor an array of NumPy")
                file.seek(0)
                return dict(np.load(file, allow_pickle=False))
        return {"": np.load(path, mmap_mode="r", allow_pickle=False)}


class MappedRows:
    """Rows of several matrices of one type and width as one matrix; indexing reads the rows that it returns."""

    ndim = 2

    def __init__(self, parts: Sequence[np.ndarray], positions: Int64[np.ndarray, " row"] | None = None) -> None:
        self.parts = parts
        self.edges = np.cumsum([0, *(len(part) for part in parts)])
        self.positions = np.arange(self.edges[-1]) if positions is None else positions
        self.dtype: np.dtype[Any] = parts[0].dtype
        self.itemsize = self.dtype.itemsize
        self.shape = (len(self.positions), int(parts[0].shape[1]))
        self.size = self.shape[0] * self.shape[1]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        positions = np.asarray(self.positions[index])
        flat = positions.reshape(-1)
        rows = np.empty((len(flat), self.shape[1]), self.dtype)
        part_of_row = np.searchsorted(self.edges, flat, side="right") - 1
        for number in np.unique(part_of_row).tolist():
            chosen = part_of_row == number
            rows[chosen] = self.parts[number][flat[chosen] - self.edges[number]]
        return rows.reshape(*positions.shape, self.shape[1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype=dtype)


Rows: TypeAlias = np.ndarray | MappedRows


def select_rows(rows: Rows, index: Any) -> Rows:
    """Return the rows at an index; of rows in files none is read."""
    if isinstance(rows, np.memmap):
        rows = MappedRows([rows])
    return MappedRows(rows.parts, rows.positions[index]) if isinstance(rows, MappedRows) else rows[index]


# -- arrays of other libraries -----------------------------------------------------------------------------------------

Arrays: TypeAlias = Any
"""An array of NumPy, torch, CuPy, JAX, …, a data frame or series of pandas and polars, or lists of numbers."""


def as_plain(values: Any, name: str) -> "Tensor | np.ndarray | MappedRows":
    """Return a list, or an array of any library, as a tensor or an array; a column of lists becomes a matrix."""
    import torch

    if isinstance(values, torch.Tensor | np.ndarray | MappedRows):
        return values
    try:
        if isinstance(values, Sequence) and len(values) and all(isinstance(row, torch.Tensor) for row in values):
            return torch.stack(list(values))
        device = None
        with suppress(AttributeError, TypeError):  # most have none, and lists of older pyarrow lie on none
            device = values.__dlpack_device__()[0]
        # NumPy would copy from a GPU, or refuse to.
        if device is not None and (device != _CPU or not hasattr(values, "__array__")):
            return torch.utils.dlpack.from_dlpack(values)
        array = np.asarray(values)
        is_nested = array.dtype == np.object_ and array.ndim == 1 and len(array) > 0
        if is_nested and all(hasattr(row, "__array__") or isinstance(row, list) for row in array):
            return np.stack([np.asarray(row) for row in array])
        return array
    except MemoryError:
        raise
    # Rows of several lengths; whatever else a library refuses to give.
    except Exception as error:
        kind = f"a {type(values).__name__} that makes no array ({first_line(error)[:100]})"
        raise UserError(f"the {name} are {kind}: give numbers, as many in each row") from error

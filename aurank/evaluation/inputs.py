"""What a caller may pass: arrays of any library, labels as text, sizes, devices; inside there is one kind of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from aurank.arrays import Arrays, MappedRows, as_plain, select_rows
from aurank.distributed import ProcessGroup
from aurank.errors import UserError
from aurank.names import NAN, NO_GROUP_NAMES, plain_name, require_choice
from aurank.sizes import size_in_bytes

Devices: TypeAlias = torch.device | str | Sequence[torch.device | str] | None
Embeddings: TypeAlias = Tensor | np.ndarray[Any, np.dtype[Any]] | MappedRows
Integers: TypeAlias = Arrays
ProgressCallback: TypeAlias = Callable[[int, int], object]  # called with what is done and the total

NO_GROUP = -1
COMPARED = 2**22  # numbers of rows compared at a time
BACKENDS = ("auto", "numba", "torch")
GPU_WORKERS = 2  # while a GPU computes one tile, the next is made ready


def importable(name: str) -> bool:
    """Return whether an optional package is there and whole."""
    try:
        __import__(name)
    except ImportError:
        return False
    return True


@cache
def byte_count(max_memory: int | str) -> int:
    """Return the number of bytes of an integer or of text such as "512MiB", "1.5 GiB" or "200MB"."""
    try:
        size = size_in_bytes(str(max_memory))
    except ValueError:
        size = 0
    if size < 1:
        raise UserError(f'max_memory must be a positive number of bytes or text such as "512MiB", got {max_memory!r}')
    return size


def device_of(embeddings: Embeddings) -> torch.device:
    return embeddings.device if isinstance(embeddings, Tensor) else torch.device("cpu")


def choose_devices(device: Devices, queries: Embeddings) -> list[torch.device]:
    """Return where to compute: on each `device`, else on the CUDA device that holds the queries, else on the CPU."""
    if device is None:
        return [device_of(queries) if device_of(queries).type == "cuda" else torch.device("cpu")]
    try:
        devices = [torch.device(each) for each in ([device] if isinstance(device, str | torch.device) else device)]
    except RuntimeError:
        devices = []
    kinds = {each.type for each in devices}
    # float64 decides close calls, and not every accelerator has it.
    if kinds != {"cpu"} and not (kinds == {"cuda"} and torch.cuda.is_available()):
        raise UserError(f'device must name the CPU or available CUDA devices, as "cpu" or "cuda:0"; got {device!r}')
    return devices


@dataclass(frozen=True, eq=False)
class Work:
    """Backend, devices, workers and memory limit, agreed by all ranks."""

    backend: str
    devices: list[torch.device]
    workers: int
    size: int
    group: ProcessGroup

    @classmethod
    def of(
        cls,
        embeddings: Embeddings,
        *,
        backend: str = "auto",
        device: Devices = None,
        max_memory: int | str = "1GiB",
        distributed: bool | str | None = None,
    ) -> "Work":
        """Check the settings, and agree on them with the other ranks; UserError for one that cannot be had."""
        devices = choose_devices(device, embeddings)
        require_choice("backend", backend, BACKENDS)
        compiles = devices[0].type == "cpu" and importable("numba")
        if backend == "numba" and not compiles:
            fault = f"needs the package numba and does not run on {devices[0]}"
            raise UserError(f"backend 'numba' {fault}: use backend=\"auto\"")
        group = ProcessGroup(distributed)
        limits = byte_count(max_memory), torch.get_num_threads(), len(devices)
        size, threads, count = map(min, zip(*group.all_gather(limits), strict=True))
        if backend != "torch" and compiles:
            return cls("numba", devices[:count], threads, size, group)
        return cls("torch", devices[:count], GPU_WORKERS * count if devices[0].type == "cuda" else 1, size, group)

    def loops(self) -> Any:
        """Return the module of compiled loops; None where plain torch counts."""
        return import_module("aurank.evaluation.engine.compiled") if self.backend == "numba" else None


def require_at_least(least: int, **values: int) -> None:
    """Raise UserError for a named value below the least."""
    for name, value in values.items():
        if value < least:
            raise UserError(f"{name} must be {least} or more, got {value}")


def refuse_masked(values: Any, name: str) -> None:
    """Raise UserError for a masked array that hides entries, which np.asarray would bring back."""
    if isinstance(values, np.ma.MaskedArray) and values.mask.any():
        hidden = int(np.count_nonzero(values.mask))
        raise UserError(f"the {name} are a masked array with {hidden} entries hidden: leave those rows out")


def as_matrix(values: Arrays, *, side: str) -> Embeddings:
    """Return embeddings as a tensor or an array; UserError unless they are a non-empty matrix of real numbers."""
    embeddings = as_plain(values, f"{side} embeddings")
    refuse_masked(embeddings, f"{side} embeddings")
    shape = tuple(getattr(embeddings, "shape", ()))
    kind = getattr(embeddings, "dtype", type(embeddings).__name__)
    if isinstance(embeddings, Tensor):
        is_real = not embeddings.is_complex() and embeddings.layout == torch.strided
    else:  # bfloat16 and its kin come from the ml_dtypes package, under a kind of their own
        is_real = getattr(kind, "kind", "O") in "fiub" or str(kind).startswith(("bfloat", "float"))
    if len(shape) == 2 and 0 in shape:
        raise UserError(f"the {side} embeddings have no {'rows' if shape[0] == 0 else 'columns'} (shape {shape})")
    if len(shape) != 2 or not is_real:
        content = f"the {side} embeddings have type {kind} and shape {shape}"
        raise UserError(f"{content}: give a dense matrix of real numbers, a row for each item")
    return embeddings


def require_same_width(side: str, width: int, other_side: str, other_width: int) -> None:
    if width != other_width:
        columns = f"the {side} embeddings have {width} columns and the {other_side} has {other_width}"
        raise UserError(f"{columns}: both must come from the same model")


def as_array(values: Integers, name: str = "values") -> np.ndarray:
    """Return numbers, however they are held, as an array of NumPy; UserError for a masked array that hides entries."""
    array = as_plain(values, name)
    refuse_masked(array, name)
    if isinstance(array, Tensor):  # NumPy has no bfloat16
        return (array.float() if array.dtype == torch.bfloat16 else array).detach().cpu().numpy()
    return np.asarray(array)


def integers_of(values: Integers, name: str, *shape: int | None, remedy: str) -> np.ndarray:
    """Return `values` as int64, never by way of a float; UserError unless they are integers in this shape."""
    try:
        array = as_array(values, name)
    except ValueError:  # nested lists of unequal length
        array = np.asarray(values, dtype=np.object_)
    is_integer = not array.size or (array.dtype.kind in "iu" and int(array.max()) <= np.iinfo(np.int64).max)
    fits = array.ndim == len(shape) and all(
        size in (None, length) for size, length in zip(shape, array.shape, strict=True)
    )
    if not is_integer or not fits:
        integers = "give integers, as by np.unique(…, return_inverse=True)[1], and leave out rows that lack one"
        fault = f"have shape {array.shape}: {remedy}" if is_integer else f"are {array.dtype}: {integers}"
        raise UserError(f"the {name} {fault}")
    return array.astype(np.int64)


def integer_array(values: Integers, *, name: str, rows: int, side: str) -> Int64[np.ndarray, " row"]:
    remedy = f"give one {name} per row, for {rows} {side} embeddings"
    return integers_of(values, f"{side} {name}s", rows, remedy=remedy)


def numbered(
    first: Integers | None,
    second: Integers | None,
    *,
    name: str,
    gather: Callable[..., list[Any]] = lambda value: [value],
    may_lack: bool = False,
) -> tuple[Integers | None, Integers | None, Shaped[np.ndarray, " name"] | None]:
    """Return labels or ids of both sides with text as integers, and their names in order; others as they came.

    With `may_lack` a missing value (None, NaN, empty) is −1. UserError where only some are text, or one is missing.
    """

    def text(values: Integers | None) -> Shaped[np.ndarray, "..."] | None:
        values = values if values is None or isinstance(values, Sequence) else as_plain(values, f"{name}s")
        if values is None or isinstance(values, Tensor | MappedRows) or getattr(values, "ndim", 1) != 1:
            return None
        if not len(values) or not all(isinstance(value, str) for value in values):
            return None
        refuse_masked(values, f"{name}s")
        return np.asarray(values, dtype=np.str_)

    arrays = [as_array(side, f"{name}s") for side in (first, second) if side is not None and may_lack]
    if any(array.ndim == 1 and array.dtype.kind not in "iub" for array in arrays):  # "" where a value is missing
        lists = (
            side if side is None or isinstance(side, Sequence) else as_array(side).tolist() for side in (first, second)
        )
        first, second = (
            None if values is None else [plain_name(value, NO_GROUP_NAMES) for value in values] for values in lists
        )
    sides = [text(values) for values in (first, second)]
    count = sum(values is not None for values in (first, second))
    members = gather((count, [np.unique(values) for values in sides if values is not None]))
    texts = [side for _, of_rank in members for side in of_rank]
    if not texts:
        return first, second, None
    if len(texts) < sum(number for number, _ in members):
        raise UserError(f"some {name}s are text and some are not: give the {name}s of both sides alike")
    names = np.unique(np.concatenate(texts))
    if not may_lack and (lacking := np.flatnonzero(np.isin(names, ("", *NAN)))).size:
        raise UserError(f"some {name}s are missing ({str(names[lacking[0]])!r}): leave those rows out")
    numbers = np.where(may_lack & (names == ""), NO_GROUP, np.arange(len(names)))
    left, right = (None if values is None else numbers[np.searchsorted(names, values)] for values in sides)
    return left, right, names


def group_texts(groups: Integers, names: Shaped[np.ndarray, " name"] | None = None) -> Shaped[np.ndarray, " row"]:
    """Return groups by name, "" for none."""
    numbers = as_array(groups)
    if (numbers == NO_GROUP).all():
        return np.full(len(numbers), "")
    return np.where(numbers == NO_GROUP, "", numbers.astype(np.str_) if names is None else names[numbers])


# -- the problem -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RetrievalProblem:
    """Hold both sides of a search and all that says which gallery rows are positives of which query.

    A gallery row is a *positive* of a query if both have one label or, where `positives` are given, if the pair is
    listed there. Left out, as neither positive nor negative, are

    - the query itself: its own row without a gallery, else the gallery row with the query's id;
    - what would be a positive but has the query's own group, if groups are given;
    - the pairs in `ignore`, and for all queries the gallery rows in `junk`.

    Every other gallery row is a *negative*.

    Example:
        >>> problem = RetrievalProblem(np.eye(3), labels=[0, 0, 1], junk=[2])
        >>> problem.target is problem.embeddings
        True
    """

    embeddings: Embeddings | Any  # [query, dim]; they are the gallery as well where none is given
    labels: Integers | None = None  # an integer for each query; not needed with `positives`
    gallery: Embeddings | Any = None  # [gallery, dim]
    gallery_labels: Integers | None = None
    ids: Integers | None = None  # integers that name the items, so that a query does not find itself in the gallery
    gallery_ids: Integers | None = None
    groups: Integers | None = None  # an integer for each row, such as its camera; -1 for none
    gallery_groups: Integers | None = None
    positives: Integers | None = None  # index pairs (query row, gallery row)
    ignore: Integers | None = None  # index pairs
    junk: Integers | None = None  # gallery rows, or a truth value for each

    def __post_init__(self) -> None:
        object.__setattr__(self, "embeddings", as_plain(self.embeddings, "query embeddings"))
        if self.gallery is not None:
            object.__setattr__(self, "gallery", as_plain(self.gallery, "gallery embeddings"))

    @property
    def target(self) -> Embeddings:
        """The embeddings that are searched: the gallery's, or the queries' own."""
        return self.embeddings if self.gallery is None else self.gallery

    def own_rows(self) -> Int64[np.ndarray, " query"] | None:
        """Return the gallery row that is each query's own item, -1 for none; None if no query has one."""
        if self.gallery is None:
            return np.arange(len(self.embeddings))
        if self.ids is None or self.gallery_ids is None:
            return None
        sides = []
        for side, values, rows in (("query", self.ids, self.embeddings), ("gallery", self.gallery_ids, self.gallery)):
            ids = integer_array(values, name="id", rows=len(rows), side=side)
            names, counts = np.unique(ids, return_counts=True)
            if (counts > 1).any():
                item = names[counts > 1][0]
                raise UserError(f"the {side} ids name an item twice: {item}; give each item its own id")
            sides.append(ids)
        order = np.argsort(sides[1], kind="stable")
        ordered = sides[1][order]
        index = np.minimum(np.searchsorted(ordered, sides[0]), len(ordered) - 1)
        return np.where(ordered[index] == sides[0], order[index], -1)


def check_sides(problem: RetrievalProblem) -> tuple[Any, Any, Any, Any]:
    """Return labels and groups of both sides as arrays, groups None without; without labels a row is its own class."""
    sides = {"query": (problem.embeddings, problem.labels, problem.groups)}
    if problem.labels is None and problem.positives is None:
        raise UserError("labels are missing: give one label per query row, or the positives as a list of pairs")
    for name in ("labels", "ids", "groups"):
        of_queries, of_gallery = (getattr(problem, field) is not None for field in (name, f"gallery_{name}"))
        differs = of_queries != of_gallery and (name != "labels" or problem.positives is None)
        if of_gallery if problem.gallery is None else differs:
            raise UserError(f"{name} and gallery_{name} belong together, beside a gallery: give both or neither")
    if problem.gallery is not None:
        sides["gallery"] = problem.gallery, problem.gallery_labels, problem.gallery_groups
    checked, widths = [], []
    for side, (embeddings, labels, groups) in sides.items():
        rows, width = as_matrix(embeddings, side=side).shape
        widths.append(width)
        checked.append(
            (
                np.arange(rows) if labels is None else integer_array(labels, name="label", rows=rows, side=side),
                None if groups is None else integer_array(groups, name="group", rows=rows, side=side),
            )
        )
    require_same_width("query", widths[0], "gallery", widths[-1])
    (labels, groups), (gallery_labels, gallery_groups) = checked[0], checked[-1]
    return labels, gallery_labels, groups, gallery_groups


def pair_array(values: Integers | None, name: str, queries: int, gallery: int) -> Int64[np.ndarray, "pair 2"]:
    """Return `values` as index pairs (query row, gallery row), none for None."""
    if values is None or not len(values):
        return np.empty((0, 2), np.int64)
    array = integers_of(values, f"pairs in {name}", None, 2, remedy="give pairs (query row, gallery row)")
    _check_rows(array[:, 0], name, "query", queries)
    _check_rows(array[:, 1], name, "gallery", gallery)
    return array


def rows_without_junk(junk: Integers | None, rows: int) -> Int64[np.ndarray, " kept"]:
    """Return the gallery rows that are not junk, which is given as rows or as a truth value for each."""
    if junk is None:
        return np.arange(rows)
    array = as_array(junk, "junk")
    chosen = np.flatnonzero(array) if array.dtype == np.bool_ and array.shape == (rows,) else array
    left_out = integers_of(chosen, "rows in junk", None, remedy="give gallery rows, or a truth value for each")
    _check_rows(left_out, "junk", "gallery", rows)
    searched = np.setdiff1d(np.arange(rows), left_out)
    if not len(searched):
        raise UserError(f"all {rows} gallery rows are junk: nothing is left to retrieve")
    return searched


def _check_rows(indices: Int64[np.ndarray, " index"], name: str, side: str, rows: int) -> None:
    wrong = indices[(indices < 0) | (indices >= rows)]
    if len(wrong):
        raise UserError(f"{name} names {side} row {wrong[0]}: there are rows 0 to {rows - 1}")


def note_of_equal_rows(
    problem: RetrievalProblem, query: Int64[np.ndarray, " pair"], row: Int64[np.ndarray, " pair"]
) -> list[str]:
    """Return a note where queries and the gallery rows that they find are equal, and no ids say what is what."""
    if problem.gallery is None or (problem.ids is not None and problem.gallery_ids is not None):
        return []
    count, step = 0, max(1, COMPARED // problem.embeddings.shape[1])
    for start in range(0, len(query), step):
        part = slice(start, start + step)
        sides = (problem.embeddings, query[part]), (problem.gallery, row[part])
        left, right = (
            as_array(side[rows] if isinstance(side, Tensor) else select_rows(side, rows)) for side, rows in sides
        )
        count += int((left == right).all(axis=1).sum())
    text = f"{count:,} of {len(query):,} queries find a gallery row equal to their own; if it is the same item, "
    return [f"{text}leave the gallery out (gallery=None), or give ids and gallery_ids"] if count else []

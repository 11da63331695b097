"""The question of an evaluation: which rows search which, what counts as found, and both sides sorted by label."""

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Int64, Integer, Shaped
from torch import Tensor

from aurank.allocator import available_memory
from aurank.arrays import Arrays, MappedRows, as_plain, select_rows
from aurank.distributed import ProcessGroup
from aurank.errors import UserError
from aurank.names import NAN, NO_GROUP_NAMES, meant, nearest, plain_name
from aurank.sizes import as_text, size_in_bytes

Device: TypeAlias = torch.device | str
Devices: TypeAlias = Device | Sequence[Device] | None
Embeddings: TypeAlias = Tensor | np.ndarray[Any, np.dtype[Any]] | MappedRows
Integers: TypeAlias = Arrays
ProgressCallback: TypeAlias = Callable[[int, int], object]  # called with what is done and the total
Pairs: TypeAlias = tuple[Int64[np.ndarray, " pair"], Int64[np.ndarray, " pair"]]  # sorted queries and places

NO_GROUP = -1
_HASHED = 2**25  # bytes of rows in files that are hashed at a time
COMPARED = 2**22  # numbers of rows compared at a time
POSITIVE_BYTES = 110  # that a positive takes at most at once: its place, score, counts, and terms of the metrics


# -- what a caller may pass --------------------------------------------------------------------------------------------


def importable(name: str) -> bool:
    """Return whether an optional package is there and whole."""
    try:
        __import__(name)
    except ImportError:
        return False
    return True


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


def require_one_of(known: Collection[str], **values: str) -> None:
    """Raise UserError for a named value that is not known."""
    for name, value in values.items():
        if value not in known:
            hint = meant(nearest(value, known)) if isinstance(value, str) else ""
            raise UserError(f"{name} must be one of {', '.join(known)}; got {value!r}{hint}")


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
        real = not embeddings.is_complex() and embeddings.layout == torch.strided
    else:  # bfloat16 and its kin come from the ml_dtypes package, under a kind of their own
        real = getattr(kind, "kind", "O") in "fiub" or str(kind).startswith(("bfloat", "float"))
    if len(shape) == 2 and 0 in shape:
        raise UserError(f"the {side} embeddings have no {'rows' if shape[0] == 0 else 'columns'} (shape {shape})")
    if len(shape) != 2 or not real:
        what = f"the {side} embeddings have type {kind} and shape {shape}"
        raise UserError(f"{what}: give a dense matrix of real numbers, a row for each item")
    return embeddings


def as_array(values: Integers) -> np.ndarray:
    """Return numbers, however they are held, as an array of NumPy."""
    array = as_plain(values, "values")
    if isinstance(array, Tensor):  # NumPy has no bfloat16
        return (array.float() if array.dtype == torch.bfloat16 else array).detach().cpu().numpy()
    return np.asarray(array)


def numbered(
    first: Integers | None,
    second: Integers | None,
    *,
    name: str,
    gather: Callable[..., list[Any]] = lambda own: [own],
    may_lack: bool = False,
) -> tuple[Integers | None, Integers | None, Shaped[np.ndarray, " name"] | None]:
    """Return labels or ids of both sides with text as integers, and the names in the order of their numbers.

    What is no text comes back as it came. `gather` is a process group's `all_gather`. With `may_lack` a value that is
    missing (None, NaN, empty) is −1, as "-1" is.

    Raises:
        UserError: where only some are text, one is missing ("", "nan"), or ends in a zero byte, which NumPy drops.
    """

    def text(values: Integers | None) -> Shaped[np.ndarray, "..."] | None:
        values = values if values is None or isinstance(values, Sequence) else as_plain(values, f"{name}s")
        if values is None or isinstance(values, Tensor | MappedRows) or getattr(values, "ndim", 1) != 1:
            return None
        if not len(values) or not all(isinstance(value, str) for value in values):
            return None
        refuse_masked(values, f"{name}s")
        if odd := next((value for value in values if value.endswith("\0")), None):
            raise UserError(f"the {name} {odd!r} ends in a zero byte, which an array of text loses: rename it")
        return np.asarray(values, dtype=np.str_)

    if may_lack:
        first, second = _with_gaps(first, second, name=f"{name}s")
    sides = [text(values) for values in (first, second)]
    given = sum(values is not None for values in (first, second))
    members = gather((given, [np.unique(values) for values in sides if values is not None]))
    texts = [each for _, some in members for each in some]
    if not texts:
        return first, second, None
    if len(texts) < sum(given for given, _ in members):
        raise UserError(f"some {name}s are text and some are not: give the {name}s of both sides alike")
    names = np.unique(np.concatenate(texts))
    if not may_lack and (lacking := np.flatnonzero(np.isin(names, ("", *NAN)))).size:
        raise UserError(f"some {name}s are missing ({str(names[lacking[0]])!r}): leave those rows out")
    numbers = np.where(may_lack & (names == ""), NO_GROUP, np.arange(len(names)))
    left, right = (None if values is None else numbers[np.searchsorted(names, values)] for values in sides)
    return left, right, names


def _with_gaps(*sides: Integers | None, name: str) -> list[Integers | None]:
    """Return both sides as text, "" where a value is missing; as they came where all are whole numbers."""
    for side in sides:
        refuse_masked(side, name)
    arrays = [None if side is None else as_array(side) for side in sides]
    if all(array is None or array.ndim != 1 or array.dtype.kind in "iub" for array in arrays):
        return list(sides)
    lists = [side if side is None or isinstance(side, Sequence) else as_array(side).tolist() for side in sides]
    return [None if values is None else [plain_name(value, NO_GROUP_NAMES) for value in values] for values in lists]


def group_texts(groups: Integers, names: Shaped[np.ndarray, " name"] | None = None) -> Shaped[np.ndarray, " row"]:
    """Return groups by name, "" for none."""
    numbers = as_array(groups)
    if (numbers == NO_GROUP).all():
        return np.full(len(numbers), "")
    return np.where(numbers == NO_GROUP, "", numbers.astype(np.str_) if names is None else names[numbers])


def _integers(values: Integers, name: str, *shape: int | None, remedy: str) -> np.ndarray:
    """Return `values` as int64, never by way of a float; UserError unless they are integers in this shape."""
    refuse_masked(values, name)
    try:
        array = as_array(values)
    except ValueError:  # nested lists of unequal length
        array = np.asarray(values, dtype=np.object_)
    if array.size and (array.dtype.kind not in "iu" or int(array.max()) > np.iinfo(np.int64).max):
        remedy = "give integers, as by np.unique(…, return_inverse=True)[1], and leave out rows that lack one"
        raise UserError(f"the {name} are {array.dtype}: {remedy}")
    if array.ndim != len(shape) or any(
        size not in (None, given) for size, given in zip(shape, array.shape, strict=True)
    ):
        raise UserError(f"the {name} have shape {array.shape}: {remedy}")
    return array.astype(np.int64)


def integer_array(values: Integers, *, name: str, rows: int, side: str) -> Int64[np.ndarray, " row"]:
    remedy = f"give one {name} per row, for {rows} {side} embeddings"
    return _integers(values, f"{side} {name}s", rows, remedy=remedy)


def unique_ids(values: Integers, *, rows: int, side: str) -> Int64[np.ndarray, " row"]:
    """Return `values` as int64; UserError when two rows of one side claim to be the same item."""
    ids = integer_array(values, name="id", rows=rows, side=side)
    names, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        raise UserError(f"the {side} ids name an item twice: {names[counts > 1][0]}; give each item its own id")
    return ids


def pair_array(values: Integers | None, name: str, queries: int, gallery: int) -> Int64[np.ndarray, "pair 2"]:
    """Return `values` as index pairs (query row, gallery row), none for None."""
    if values is None or not len(values):
        return np.empty((0, 2), np.int64)
    array = _integers(values, f"pairs in {name}", None, 2, remedy="give pairs (query row, gallery row)")
    _check_rows(array[:, 0], name, "query", queries)
    _check_rows(array[:, 1], name, "gallery", gallery)
    return array


def _check_rows(indices: Int64[np.ndarray, " index"], name: str, side: str, rows: int) -> None:
    wrong = indices[(indices < 0) | (indices >= rows)]
    if len(wrong):
        raise UserError(f"{name} names {side} row {wrong[0]}: there are rows 0 to {rows - 1}")


def rows_without_junk(junk: Integers | None, rows: int) -> Int64[np.ndarray, " kept"]:
    """Return the gallery rows that are not junk, which is given as rows or as a truth value for each."""
    refuse_masked(junk, "junk")
    given = as_array(() if junk is None else junk)
    chosen = np.flatnonzero(given) if given.dtype == np.bool_ and given.shape == (rows,) else given
    left_out = _integers(chosen, "rows in junk", None, remedy="give gallery rows, or a truth value for each")
    _check_rows(left_out, "junk", "gallery", rows)
    kept = np.setdiff1d(np.arange(rows), left_out)
    if not len(kept):
        raise UserError(f"all {rows} gallery rows are junk: nothing is left to retrieve")
    return kept


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
        ids = unique_ids(self.ids, rows=len(self.embeddings), side="query")
        others = unique_ids(self.gallery_ids, rows=len(self.gallery), side="gallery")
        order = np.argsort(others, kind="stable")
        place = np.minimum(np.searchsorted(others[order], ids), len(others) - 1)
        return np.where(others[order][place] == ids, order[place], -1)


Side: TypeAlias = tuple[Int64[np.ndarray, " _"], Int64[np.ndarray, " _"] | None]  # labels and groups


def check_sides(problem: RetrievalProblem) -> tuple[Side, Side]:
    """Return the labels and groups of both sides; UserError where the fields do not fit each other.

    Without labels each row is a class of its own.
    """

    def side(labels: Integers | None, groups: Integers | None, rows: int, name: str) -> Side:
        given = np.arange(rows) if labels is None else integer_array(labels, name="label", rows=rows, side=name)
        return given, None if groups is None else integer_array(groups, name="group", rows=rows, side=name)

    queries, gallery = problem.embeddings, problem.gallery
    queries = as_matrix(queries, side="query")
    if problem.labels is None and problem.positives is None:
        raise UserError("labels are missing: give one label per query row, or the positives as a list of pairs")
    query = side(problem.labels, problem.groups, len(queries), "query")
    for name in ("labels", "ids", "groups"):
        here, there = (getattr(problem, field) is not None for field in (name, f"gallery_{name}"))
        differs = here != there and (name != "labels" or problem.positives is None)
        if there if gallery is None else differs:
            raise UserError(f"{name} and gallery_{name} belong together, beside a gallery: give both or neither")
    if gallery is None:
        return query, query
    gallery = as_matrix(gallery, side="gallery")
    if gallery.shape[1] != queries.shape[1]:
        widths = f"width {queries.shape[1]} and the gallery's {gallery.shape[1]}"
        raise UserError(f"the query embeddings have {widths}: embed both with the same model")
    return query, side(problem.gallery_labels, problem.gallery_groups, len(gallery), "gallery")


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
        own, other = (
            as_array(side[rows] if isinstance(side, Tensor) else select_rows(side, rows)) for side, rows in sides
        )
        count += int((own == other).all(axis=1).sum())
    text = f"{count:,} of {len(query):,} queries find a gallery row equal to their own; if it is the same item, "
    return [f"{text}leave the gallery out (gallery=None), or give ids and gallery_ids"] if count else []


# -- rows that several processes hold ----------------------------------------------------------------------------------


def gather_shards(group: ProcessGroup, problem: RetrievalProblem, *, shards: bool) -> RetrievalProblem:
    """Return the problem as if one process had all rows of both sides.

    A side that all processes hold alike is taken as it is; else, and always with `shards`, its parts are put together
    in the order of ranks. The same labels with other embeddings are copies that differ, which must not pass for shards.
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
            what = f"all ranks gave the same {side} labels and ids, but other embeddings"
            raise UserError(f'{what}: distributed="shards" says that these are different rows')
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
    plain = array if isinstance(array, Tensor | MappedRows) else np.asarray(array)
    digest = hashlib.sha256(repr((tuple(plain.shape), str(plain.dtype))).encode())
    if isinstance(plain, MappedRows):
        step = max(1, _HASHED // max(1, plain.shape[1] * plain.itemsize))
        for start in range(0, len(plain), step):
            digest.update(np.ascontiguousarray(plain[start : start + step]).data)
        return digest.hexdigest()
    bits = plain.detach().cpu().contiguous().view(torch.uint8).numpy() if isinstance(plain, Tensor) else plain
    digest.update(np.ascontiguousarray(bits).data)
    return digest.hexdigest()


# -- both sides sorted by label, so that a class is one range of the gallery -------------------------------------------


Groups: TypeAlias = tuple[np.ndarray, np.ndarray]  # of each sorted query and of each place of the sorted gallery


@dataclass(frozen=True, eq=False)
class SortedProblem:
    """A `RetrievalProblem` with both sides sorted by label; positives are listed for a range of queries at a time.

    The negatives of sorted query i are the gallery without the places `class_start[i]` to `class_stop[i]`, and without
    `extra[extra_offset[i] : extra_offset[i + 1]]`. Pairs in `left_out` and `listed` are numbers, query times places
    plus place, increasing.
    """

    query_index: Int64[np.ndarray, " sorted_query"]  # row of the caller's queries
    gallery_index: Int64[np.ndarray, " sorted_gallery"]
    class_start: Int64[np.ndarray, " sorted_query"]
    class_stop: Int64[np.ndarray, " sorted_query"]
    offset: Int64[np.ndarray, " sorted_query_plus_one"]  # cumulated numbers of positives
    extra_offset: Int64[np.ndarray, " sorted_query_plus_one"]
    extra: Int64[np.ndarray, " extra"]
    left_out: Int64[np.ndarray, " left_out"]  # own rows and ignored pairs
    listed: Int64[np.ndarray, " listed"] | None  # where these are the positives, and no class
    groups: Groups | None
    labels: Int64[np.ndarray, " query"]  # of every query given, in the caller's order
    num_gallery: int  # rows given, junk included
    symmetric: bool  # both sides are the same rows in the same order, and `extra` is empty

    @property
    def num_positives(self) -> Int64[np.ndarray, " sorted_query"]:
        return np.asarray(np.diff(self.offset))

    @property
    def num_negatives(self) -> Int64[np.ndarray, " sorted_query"]:
        excluded = self.class_stop - self.class_start + np.diff(self.extra_offset)
        return np.asarray(len(self.gallery_index) - excluded)

    def positives(self, queries: slice) -> Pairs:
        """Return the positives of a range of sorted queries, query by query, and the places of each increasing."""
        query, place = self._candidates(queries)
        numbers, left_out = query * len(self.gallery_index) + place, self._within(self.left_out, queries)
        at = np.minimum(np.searchsorted(numbers, left_out), max(len(numbers) - 1, 0))
        keep = np.ones(len(numbers), bool)
        if len(numbers):
            keep[at[numbers[at] == left_out]] = False
        keep &= ~_same_group(self.groups, query, place)
        return query[keep], place[keep]

    def is_positive(
        self, query: Int64[np.ndarray, "*#shape"], place: Int64[np.ndarray, "*shape"]
    ) -> Bool[np.ndarray, "*shape"]:
        """Return which pairs of a sorted query and a place are positives."""
        numbers = query * len(self.gallery_index) + place
        found = (place >= self.class_start[query]) & (place < self.class_stop[query])
        if self.listed is not None:
            found = among(numbers, self.listed)
        return np.asarray(found & ~among(numbers, self.left_out) & ~_same_group(self.groups, query, place))

    def hidden(self, queries: slice, places: slice) -> Pairs:
        """Return the pairs of two ranges that are neither positive nor negative, each once."""
        size = len(self.gallery_index)
        query, place = np.divmod(self._within(self.left_out, queries), size)
        inside = (place >= places.start) & (place < places.stop)
        query, place = query[inside], place[inside]
        if self.groups is None:
            return query, place
        own, other = self._candidates(queries, places)
        same = _same_group(self.groups, own, other)
        query, place = np.divmod(np.union1d(query * size + place, own[same] * size + other[same]), size)
        return query, place

    def _candidates(self, queries: slice, places: slice | None = None) -> Pairs:
        """Return the pairs of a range that would be positives if none were left out."""
        if self.listed is not None:
            query, place = np.divmod(self._within(self.listed, queries), len(self.gallery_index))
            inside = slice(None) if places is None else (place >= places.start) & (place < places.stop)
            return query[inside], place[inside]
        start, stop = self.class_start[queries], self.class_stop[queries]
        if places is not None:
            start, stop = (np.clip(edge, places.start, places.stop) for edge in (start, stop))
        count = stop - start
        query = np.repeat(np.arange(queries.start, queries.stop), count)
        return query, np.arange(len(query)) - np.repeat(np.cumsum(count) - count - start, count)

    def _within(self, numbers: Int64[np.ndarray, " pair"], queries: slice) -> Int64[np.ndarray, " some"]:
        size = len(self.gallery_index)
        first, last = np.searchsorted(numbers, [queries.start * size, queries.stop * size])
        return numbers[first:last]


def sort_by_label(problem: RetrievalProblem) -> SortedProblem:
    """Return the problem sorted by label, positives counted; UserError where its fields do not fit each other."""
    (labels, groups), (gallery_labels, gallery_groups) = check_sides(problem)
    rows, there = len(labels), len(gallery_labels)
    own, kept = problem.own_rows(), rows_without_junk(problem.junk, there)
    ignore = pair_array(problem.ignore, "ignore", rows, there)
    if own is not None:
        ignore = np.concatenate([ignore, np.stack([np.arange(rows), own], axis=1)[own >= 0]])
    size = len(kept)
    if problem.positives is None:
        query_index = np.argsort(labels, kind="stable")
        gallery_index = kept[np.argsort(gallery_labels[kept], kind="stable")]
        ordered, wanted = gallery_labels[gallery_index], labels[query_index]
        start, stop = np.searchsorted(ordered, wanted), np.searchsorted(ordered, wanted, side="right")
    else:  # nobody is of the same class, and both sides stay as they are
        query_index, gallery_index = np.arange(rows), kept
        start = stop = np.zeros(rows, np.int64)
    query_place, gallery_place = places_of(query_index, rows), places_of(gallery_index, there)

    def numbers(pairs: Int64[np.ndarray, "pair 2"]) -> Int64[np.ndarray, " kept"]:
        place = gallery_place[pairs[:, 1]]
        return np.unique((query_place[pairs[:, 0]] * size + place)[place >= 0])

    left_out, listed, both = numbers(ignore), None, None
    if groups is not None and gallery_groups is not None:
        both = groups[query_index], gallery_groups[gallery_index]
    if problem.positives is not None:
        listed = numbers(pair_array(problem.positives, "positives", rows, there))
        at, place = np.divmod(listed[~among(listed, left_out)], size)
        counts = np.bincount(at[~_same_group(both, at, place)], minlength=rows)
    else:
        at, place = np.divmod(left_out, size)
        less, counts = (place >= start[at]) & (place < stop[at]), stop - start
        if both is not None:
            less &= ~_same_group(both, at, place)
            counts = counts - _count_same_group(both, start, stop)
        counts = np.asarray(counts - np.bincount(at[less], minlength=rows))
    # What the range of the class does not hide: listed positives, and pairs left out beyond the range.
    extra_query, extra = np.divmod(left_out if listed is None else np.union1d(left_out, listed), size)
    beyond = (extra < start[extra_query]) | (extra >= stop[extra_query])
    extra_query, extra = extra_query[beyond], extra[beyond]
    symmetric = problem.gallery is None and listed is None and size == there and not len(extra)
    # Where most queries have no positive, dropping them saves more than half of the tiles.
    symmetric = symmetric and 2 * int((counts > 0).sum()) >= rows
    chosen = np.ones(rows, bool) if symmetric else counts > 0

    def renumbered(numbers: Int64[np.ndarray, " pair"]) -> Int64[np.ndarray, " kept"]:
        at, place = np.divmod(numbers, size)
        return np.asarray(((np.cumsum(chosen) - 1)[at] * size + place)[chosen[at]])

    return SortedProblem(
        query_index=query_index[chosen],
        gallery_index=gallery_index,
        class_start=start[chosen],
        class_stop=stop[chosen],
        offset=np.concatenate([[0], np.cumsum(counts[chosen])]),
        extra_offset=np.concatenate([[0], np.cumsum(np.bincount(extra_query, minlength=rows)[chosen])]),
        extra=extra[chosen[extra_query]],
        left_out=renumbered(left_out),
        listed=None if listed is None else renumbered(listed),
        groups=None if both is None else (both[0][chosen], both[1]),
        labels=labels,
        num_gallery=there,
        symmetric=symmetric,
    )


def _same_group(
    groups: Groups | None, query: Int64[np.ndarray, "*#shape"], place: Int64[np.ndarray, "*shape"]
) -> Bool[np.ndarray, "*shape"]:
    if groups is None:
        return np.zeros(np.broadcast_shapes(query.shape, place.shape), bool)
    own = groups[0][query]
    return np.asarray((own != NO_GROUP) & (own == groups[1][place]))


def _count_same_group(
    groups: Groups, start: Int64[np.ndarray, " sorted_query"], stop: Int64[np.ndarray, " sorted_query"]
) -> Int64[np.ndarray, " sorted_query"]:
    """Return how many gallery rows each query shares both class and group with."""
    names, number = np.unique(groups[1], return_inverse=True)
    some = stop > start
    first, index = np.unique(start[some], return_index=True)
    if not len(first):
        return np.zeros(len(some), np.int64)
    # Queries of one class have one range, and ranges do not overlap: of a place's ranges the last that begins.
    places = np.arange(len(number))
    at = np.searchsorted(first, places, side="right") - 1
    held = (at >= 0) & (places < stop[some][index][at])
    keys = np.sort((first[at] * len(names) + number)[held])
    place = np.minimum(np.searchsorted(names, groups[0]), len(names) - 1)
    known = (names[place] == groups[0]) & (groups[0] != NO_GROUP) & some
    wanted = start * len(names) + place
    return np.where(known, np.searchsorted(keys, wanted, side="right") - np.searchsorted(keys, wanted), 0)


def places_of(index: Int64[np.ndarray, " place"], rows: int) -> Int64[np.ndarray, " row"]:
    """Return the place of each row in `index`, -1 where it has none."""
    places = np.full(rows, -1)
    places[index] = np.arange(len(index))
    return places


def among(values: Int64[np.ndarray, "*shape"], ordered: Int64[np.ndarray, " other"]) -> Bool[np.ndarray, "*shape"]:
    """Return which values are in a sorted list."""
    if not len(ordered):
        return np.zeros(values.shape, bool)
    place = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return np.asarray(ordered[place] == values)


def count_positives(queries: Integer[np.ndarray, " query"], gallery: Integer[np.ndarray, " gallery"]) -> int:
    """Return the number of pairs of a query and a gallery row of one label."""
    if not len(gallery):
        return 0
    names, sizes = np.unique(gallery, return_counts=True)
    place = np.minimum(np.searchsorted(names, queries), len(names) - 1)
    return int(sizes[place][names[place] == queries].sum())


def require_room(positives: int) -> None:
    """Raise UserError where so many positives do not fit into memory, before anything is computed."""
    free = available_memory()
    if free is not None and positives * POSITIVE_BYTES > free:
        what = f"{positives:,} positives, which take about {as_text(positives * POSITIVE_BYTES)} beside max_memory"
        remedy = "measure a sample of the queries against the whole gallery, or labels of smaller classes"
        raise UserError(f"the labels make {what}, and {as_text(free)} are available: {remedy}")

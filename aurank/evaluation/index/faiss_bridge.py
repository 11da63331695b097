"""What stands between aurank and faiss: rows as faiss takes them, devices, and its errors in plain words."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from aurank.errors import UserError
from aurank.evaluation.engine.inputs import Embeddings

BLOCK = 2**21  # numbers read and handed to faiss at a time
LONGEST_FACTORY, LARGEST_NUMBER, MOST_BITS = 200, 2**24, 16


def faiss_library() -> Any:
    """The module faiss, imported when it is first needed; its own type hints are incomplete."""
    import faiss

    return faiss


@contextmanager
def sizes_bounded(size: int) -> Iterator[None]:
    """A context in which faiss reads no array of more bytes: it sets memory aside before it misses what is not there.

    Older releases of faiss know no such bound.
    """
    faiss = faiss_library()
    if not hasattr(faiss, "set_deserialization_vector_byte_limit"):
        yield
        return
    before = faiss.get_deserialization_vector_byte_limit()
    faiss.set_deserialization_vector_byte_limit(size)
    try:
        yield
    finally:
        faiss.set_deserialization_vector_byte_limit(before)


def checked_factory(factory: str) -> str:
    """The factory string; UserError unless it is text, short, and of numbers that an index can be made for.

    faiss sets memory aside for what the string says, tables of 2 to the bits of a code among it.
    """
    if not isinstance(factory, str) or not 0 < len(factory) <= LONGEST_FACTORY:
        shown = factory if len(str(factory)) <= LONGEST_FACTORY else f"{str(factory)[:20]}…"
        raise UserError(f'an index is a text such as "Flat" or "IVF1024,Flat", got {shown!r}')
    for number in re.findall(r"\d+", factory):
        if int(number) > LARGEST_NUMBER:
            raise UserError(f"the index {factory!r} has the number {number}: at most {LARGEST_NUMBER:,} can be made")
    for bits in re.findall(r"x(\d+)", factory):
        if int(bits) > MOST_BITS:
            raise UserError(f"the index {factory!r} has codes of {bits} bits: at most {MOST_BITS} can be trained")
    return factory


def choose_gpus(device: torch.device | str | None, index: Any, factory: str) -> list[int]:
    """The GPUs for an index, none for the CPU; UserError if a GPU is demanded that is not there or cannot hold it."""
    faiss = faiss_library()
    there = int(faiss.get_num_gpus())
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", "cuda" if device is None else str(device))
    if match is None:
        raise UserError(f'device must be such as "cpu", "cuda" or "cuda:0", got {str(device)!r}')
    if match[0] == "cpu" or (device is None and not (there and _has_gpu_kind(index))):
        return []
    chosen = list(range(there)) if match[1] is None else [int(match[1])]
    if not chosen or chosen[-1] >= there:
        raise UserError(f'device is {str(device)!r}, but faiss sees {there} GPUs: use device="cpu"')
    if not _has_gpu_kind(index):
        raise UserError(f'faiss has no index {factory!r} on the GPU: use device="cpu", or a Flat or IVF index')
    return chosen


def _has_gpu_kind(index: Any) -> bool:
    faiss = faiss_library()
    inner = faiss.downcast_index(index.index) if isinstance(index, faiss.IndexPreTransform) else index
    return bool(faiss.isGpuIndexImplemented(inner))


def set_parameters(index: Any, parameters: str) -> None:
    faiss = faiss_library()
    for item in parameters.split(","):
        match = re.fullmatch(r"\s*(\w+)\s*=\s*(\d+(?:\.\d+)?)\s*", item)
        if match is None or float(match[2]) <= 0:
            raise UserError(f'a search parameter must be such as "nprobe=16", got {item.strip()!r}')
        faiss.ParameterSpace().set_index_parameter(index, match[1], float(match[2]))


def blocks(total: int, step: int) -> Iterator[slice]:
    """Consecutive slices of `step` rows, the last one shorter."""
    return (slice(start, min(start + step, total)) for start in range(0, total, step))


def load(
    embeddings: Embeddings, rows: slice | Int64[np.ndarray, " row"], distance: str
) -> Float32[np.ndarray, "row dim"]:
    """These rows as faiss takes them: float32 in main memory, of length 1 under cosine, not finite if none fits."""
    if isinstance(embeddings, Tensor):
        index = rows if isinstance(rows, slice) else torch.from_numpy(rows).to(embeddings.device)
        values = embeddings[index].detach().to("cpu", torch.float64).numpy()
    else:
        values = np.asarray(embeddings[rows], dtype=np.float64)
    with np.errstate(all="ignore"):  # what is not finite in the end is refused by name
        if distance == "cosine":
            largest = np.abs(values).max(axis=1, keepdims=True)
            values = values / largest  # squares neither overflow nor vanish
            values = values / np.sqrt((values * values).sum(axis=1, keepdims=True))
        return np.ascontiguousarray(values, dtype=np.float32)


def check_rows(values: Float32[np.ndarray, "row dim"], start: int, *, side: str, distance: str) -> None:
    """Nothing, or UserError naming the first row that is not finite."""
    wrong = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(wrong):
        reason = "holds NaN or infinity, or is all zeros, and has no cosine with anything"
        if distance != "cosine":
            reason = "holds NaN, infinity or a number beyond float32"
        raise UserError(f"row {start + wrong[0]} of the {side} embeddings {reason}: remove it")


@contextmanager
def faiss_says(trouble: str) -> Iterator[None]:
    """Turns an error of faiss into a UserError: the trouble, and in brackets what faiss says of it."""
    try:
        yield
    except RuntimeError as error:
        reason = re.sub(r"^.*? at \S+:\d+: ", "", str(error).strip(), flags=re.DOTALL)
        raise UserError(f"{trouble} ({' '.join(reason.split())})") from error

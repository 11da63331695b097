"""What lies between aurank and faiss: rows as faiss takes them, devices, and its errors in plain words."""

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
    """Return the module faiss, imported when it is first needed; its own type hints are incomplete."""
    import faiss

    return faiss


@contextmanager
def faiss_says(trouble: str) -> Iterator[None]:
    """Turn an error of faiss into a UserError: the trouble, and in brackets what faiss says about it."""
    try:
        yield
    except RuntimeError as error:
        reason = re.sub(r"^.*? at \S+:\d+: ", "", str(error).strip(), flags=re.DOTALL)
        raise UserError(f"{trouble} ({' '.join(reason.split())})") from error


def check_factory(factory: str) -> None:
    """Raise UserError unless the factory string is short text with numbers that an index can be made for.

    faiss allocates what the string says, tables of 2 to the bits of a code among it.
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


def set_parameters(index: Any, parameters: str) -> None:
    """Set search parameters such as "nprobe=16, efSearch=64"."""
    for item in parameters.split(","):
        match = re.fullmatch(r"\s*(\w+)\s*=\s*(\d+(?:\.\d+)?)\s*", item)
        if match is None or float(match[2]) <= 0:
            raise UserError(f'a search parameter must be such as "nprobe=16", got {item.strip()!r}')
        faiss_library().ParameterSpace().set_index_parameter(index, match[1], float(match[2]))


def transforms(index: Any) -> list[Any]:
    """Return the steps that change rows before an index takes them."""
    faiss = faiss_library()
    chain = index.chain if isinstance(index, faiss.IndexPreTransform) else None
    return [] if chain is None else [faiss.downcast_VectorTransform(chain.at(place)) for place in range(chain.size())]


def choose_gpus(device: torch.device | str | None, index: Any, factory: str) -> list[int]:
    """Return the GPUs for an index, none for the CPU; UserError for a GPU that is missing or cannot hold the index."""
    faiss = faiss_library()
    available = int(faiss.get_num_gpus())
    inner = faiss.downcast_index(index.index) if isinstance(index, faiss.IndexPreTransform) else index
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", "cuda" if device is None else str(device))
    if match is None:
        raise UserError(f'device must be such as "cpu", "cuda" or "cuda:0", got {str(device)!r}')
    if match[0] == "cpu" or (device is None and not (available and faiss.isGpuIndexImplemented(inner))):
        return []
    chosen = list(range(available)) if match[1] is None else [int(match[1])]
    if not chosen or chosen[-1] >= available:
        raise UserError(f'device is {str(device)!r}, but faiss sees {available} GPUs: use device="cpu"')
    if not faiss.isGpuIndexImplemented(inner):
        raise UserError(f'faiss has no index {factory!r} on the GPU: use device="cpu", or a Flat or IVF index')
    return chosen


def blocks(total: int, step: int) -> Iterator[slice]:
    """Yield consecutive slices of `step` rows, the last one shorter."""
    return (slice(start, min(start + step, total)) for start in range(0, total, step))


def row_blocks(embeddings: Embeddings) -> Iterator[slice]:
    """Yield slices of rows that together are one block."""
    return blocks(len(embeddings), max(1, BLOCK // embeddings.shape[1]))


def take(embeddings: Embeddings, rows: Int64[np.ndarray, " row"]) -> Embeddings:
    """Return the embeddings of these rows, in memory."""
    index = torch.from_numpy(rows).to(embeddings.device) if isinstance(embeddings, Tensor) else rows
    return embeddings[index]


def load_rows(
    embeddings: Embeddings, rows: slice | Int64[np.ndarray, " row"], distance: str
) -> Float32[np.ndarray, "row dim"]:
    """Return rows as faiss takes them: float32 in main memory, of length 1 under cosine, not finite if none fits."""
    part = embeddings[rows] if isinstance(rows, slice) else take(embeddings, rows)
    if isinstance(part, Tensor):
        part = part.detach().to("cpu", torch.float64).numpy()
    values = np.asarray(part, dtype=np.float64)
    with np.errstate(all="ignore"):  # check_rows names what is not finite in the end
        if distance == "cosine":
            values = values / np.abs(values).max(axis=1, keepdims=True)  # squares neither overflow nor vanish
            values = values / np.sqrt((values * values).sum(axis=1, keepdims=True))
        return np.ascontiguousarray(values, dtype=np.float32)


def check_rows(embeddings: Embeddings, *, side: str, distance: str) -> None:
    """Raise UserError naming the first row that faiss cannot take."""
    for rows in row_blocks(embeddings):
        wrong = np.flatnonzero(~np.isfinite(load_rows(embeddings, rows, distance)).all(axis=1))
        if len(wrong):
            reason = "holds NaN or infinity, or is all zeros, and has no cosine with anything"
            if distance != "cosine":
                reason = "holds NaN, infinity or a number beyond float32"
            raise UserError(f"row {rows.start + wrong[0]} of the {side} embeddings {reason}: remove it")

"""Embeddings of a manifest's images: in batches found by a trial, by several processes, from a cache."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor, nn

from aurank.data import Batch, BatchLoader, ImageDataset
from aurank.distributed import ProcessGroup
from aurank.embedding.cache import EmbeddingCache, Pace, Piece
from aurank.embedding.embedded import Embedded, described
from aurank.errors import UserError
from aurank.evaluation.inputs import ProgressCallback
from aurank.models.encoder import is_channels_last, lay_out
from aurank.models.image_model import as_embeddings

LEAST, TRIED = 1024, 8  # fewest images for which a trial pays; images of the trial
_FIRST, _LARGEST = 16, 256
_FORMATS = {False: torch.contiguous_format, True: torch.channels_last}
_SECONDS, _SHARE = 3.0, 0.05  # longest trial: seconds, and share of all the work


@contextmanager
def kept_to(pace: Pace, model: nn.Module) -> Iterator[Callable[[Tensor], Tensor]]:
    """A context in which the network has the pace's memory format; gives what lays out images so."""
    if pace.channels_last is None:
        yield lambda images: images
        return
    memory_format, before = _FORMATS[pace.channels_last], is_channels_last(model)
    with torch.inference_mode(False):  # weights moved in inference mode could not be trained later
        lay_out(model, pace.channels_last)
    try:
        yield lambda images: images.contiguous(memory_format=memory_format)
    finally:
        with torch.inference_mode(False):
            lay_out(model, before)


def find_pace(model: nn.Module, images: Tensor, count: int) -> Pace:
    """Return the fastest pace for so many images like those given, by trying batches of them with the model.

    Batches grow while that is faster and the trial takes at most three seconds of the processor, or a twentieth of the
    work. Memory formats are tried for networks of several convolutions.
    """
    start, costs = time.process_time(), dict[Pace, float]()
    layers = sum(isinstance(module, nn.Conv2d) for module in model.modules())
    formats: list[bool | None] = [is_channels_last(model), not is_channels_last(model)] if layers > 1 else [None]
    for channels_last in formats:
        with suppress(RuntimeError):  # some layers need a contiguous view
            pace = Pace(_FIRST, channels_last)
            costs[pace] = _cost(pace, model, images)
    if not costs:
        return Pace(_LARGEST)
    best = min(costs, key=costs.__getitem__)
    for batches in ((32, 64, 128, _LARGEST), (8,)):
        for batch in batches if best.batch == _FIRST else ():  # try smaller batches only if larger ones were slower
            spent, estimate = time.process_time() - start, 2 * batch * costs[best]
            if spent + estimate > min(_SECONDS * torch.get_num_threads(), _SHARE * costs[best] * count):
                return best
            pace = best._replace(batch=batch)
            costs[pace] = _cost(pace, model, images)
            if costs[pace] >= costs[best]:
                break
            best = pace
    return best


def _cost(pace: Pace, model: nn.Module, images: Tensor) -> float:
    """Return the processor time that an image takes, the first batch of its size left out."""
    with kept_to(pace, model) as laid_out:
        batch = laid_out(images[torch.arange(pace.batch) % len(images)])
        model(batch)
        start = time.process_time()
        model(batch)
        return (time.process_time() - start) / pace.batch


def embed(
    model: nn.Module, dataset: ImageDataset, *, rows: Int64[np.ndarray, " chosen"] | None = None, **how: Any
) -> Embedded:
    """Return embeddings of the images of the data set, or of some rows, in row order; images it skips are left out."""
    chosen = np.zeros(len(dataset), dtype=np.bool_)
    chosen[slice(None) if rows is None else rows] = True
    read, embeddings = embed_rows(model, dataset, chosen, **how)
    if not len(read):
        raise UserError(f"no image of {dataset.manifest.name} could be read, so there is nothing to embed")
    return described(dataset.manifest, read, embeddings)


def embed_rows(
    model: nn.Module,
    dataset: ImageDataset,
    chosen: Bool[np.ndarray, " row"],
    *,
    batch: int | Pace | None = 256,
    workers: int = 0,
    device: torch.device | None = None,
    bf16: bool = False,
    progress: ProgressCallback | None = None,
    cache: EmbeddingCache | None = None,
    group: ProcessGroup | None = None,
) -> Piece:
    """Return the embeddings of the chosen rows of a data set; row i of the chosen is in batch i // `batch`.

    Without `batch` it is what `choose_pace` finds. All processes of the `group` call this, and get all rows.
    """
    group = group or ProcessGroup(False)
    device = device or next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    pieces = [] if cache is None or group.rank > 0 else cache.read(len(chosen), chosen)
    cached = np.zeros_like(chosen)
    for rows, _ in pieces:
        cached[rows] = True
    missing = chosen & ~group.all_gather(cached)[0]
    if batch is None:
        batch = choose_pace(model, dataset, missing, device=device, bf16=bf16, cache=cache, group=group)
    pace = batch if isinstance(batch, Pace) else Pace(batch)
    least = Pace().batch if isinstance(batch, Pace) else 1  # fewest rows of a cached piece
    total, done = int(chosen.sum()), int(chosen.sum()) - int(missing.sum())
    if done and progress is not None:
        progress(done, total)
    positions = np.flatnonzero(chosen)
    parts = (positions[start : start + pace.batch] for start in range(0, len(positions), pace.batch))
    batches = [part[missing[part]].tolist() for part in parts if missing[part].any()]
    loader, new = BatchLoader(dataset, group.shard(batches), workers=workers), list[Piece]()
    with _inference(model, device, bf16), kept_to(pace, model) as laid_out:
        for images, _, ids in loader if workers else _read_ahead(loader):
            if not len(ids):
                continue
            output = model(laid_out(dataset.to_input(images.to(device, non_blocking=True))))
            new.append((ids.numpy(), as_embeddings(output, len(ids))))
            if sum(len(rows) for rows, _ in new) >= least:
                pieces.append(_join(new, cache))
                new = []
            done = min(total, done + len(ids) * group.size)  # estimated: all processes are about as far
            if progress is not None:
                progress(done, total)
        if new:
            pieces.append(_join(new, cache))
    read, embeddings = gather_pieces(pieces, chosen, group)
    if group.size > 1:
        dataset.leave_out(np.setdiff1d(np.flatnonzero(chosen), read))  # unreadable in other processes
    return read, embeddings


def choose_pace(
    model: nn.Module,
    dataset: ImageDataset,
    chosen: Bool[np.ndarray, " row"],
    *,
    device: torch.device,
    bf16: bool,
    cache: EmbeddingCache | None,
    group: ProcessGroup,
) -> Pace:
    """Return the pace for the chosen rows, alike in all processes: the cache's, a trial's, or the usual one."""
    if device.type != "cpu":
        return Pace()
    pace = None if cache is None else cache.pace
    if pace is None and group.rank == 0:
        pace, rows = Pace(), np.flatnonzero(chosen)
        if len(rows) >= LEAST and next(model.parameters(), None) is not None:
            images = dataset.__getitems__(rows[:TRIED].tolist()).image
            if isinstance(images, torch.Tensor) and images.ndim == 4 and len(images):
                with _inference(model, device, bf16):
                    model(images := dataset.to_input(images))  # the first call allocates; it is not timed
                    pace = find_pace(model, images, len(rows))
    pace = group.all_gather(pace)[0]
    assert pace is not None  # broadcast by the first process
    if cache is not None and group.rank == 0:
        cache.pace = pace
    return pace


@contextmanager
def _inference(model: nn.Module, device: torch.device, bf16: bool) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            yield
    finally:
        model.train(training)


def _read_ahead(loader: BatchLoader) -> Iterator[Batch]:
    batches: Iterator[Batch] = iter(loader)
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = thread.submit(next, batches, None)
            yield batch


def _join(pieces: Sequence[Piece], cache: EmbeddingCache | None) -> Piece:
    rows, embeddings = map(np.concatenate, zip(*pieces, strict=True))
    if cache is not None:
        cache.write((rows, embeddings))
    return rows, embeddings


def embed_pixels(dataset: ImageDataset, *, batch: int | None = None, workers: int = 0) -> Embedded:
    embedded = embed(nn.Flatten(), dataset, batch=batch, workers=workers)
    pixels = np.asarray(embedded.embeddings)
    constant = pixels.min(axis=1, keepdims=True) == pixels.max(axis=1, keepdims=True)
    centred = pixels - pixels.mean(axis=1, keepdims=True)
    return replace(embedded, embeddings=np.where(constant, np.float32(1), centred))


def gather_pieces(pieces: Sequence[Piece], chosen: np.ndarray, group: ProcessGroup) -> Piece:
    """Return the chosen rows of all pieces of all processes as one, by increasing row, copied once."""
    rows_here = np.concatenate([np.empty(0, np.int64), *(each for each, _ in pieces)])
    all_rows = group.concatenate(rows_here[chosen[rows_here]])
    rows = np.sort(all_rows)
    width = max(group.all_gather(pieces[0][1].shape[1] if pieces else 0))
    embeddings = np.empty((len(rows), width), dtype=np.float32)
    if group.size == 1:
        for each, of_each in pieces:
            mask = chosen[each]
            embeddings[np.searchsorted(rows, each[mask])] = of_each[mask]
        return rows, embeddings
    local = [np.empty((0, width), np.float32), *(of_each[chosen[each]] for each, of_each in pieces)]
    start = 0
    for part in group.parts(torch.from_numpy(np.concatenate(local))):
        embeddings[np.searchsorted(rows, all_rows[start : start + len(part)])] = part.numpy()
        start += len(part)
    return rows, embeddings

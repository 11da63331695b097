"""How many images a network is given at once, and in which memory format: on CPUs found by a trial."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import torch
from torch import Tensor, nn

from aurank.models.encoder import is_channels_last, lay_out

LEAST = 1024
"""Images from which on a trial pays."""
TRIED = 8
"""Images that a trial needs."""
_FIRST, _LARGEST, _SMALLEST = 16, 256, 8
_SECONDS, _SHARE = 3.0, 0.05  # of a trial: at most that long, and that share of the work


class Pace(NamedTuple):
    """Images embedded at once, and the memory format of the network; None leaves that as it is."""

    batch: int = 256
    channels_last: bool | None = None


@contextmanager
def kept_to(pace: Pace, model: nn.Module) -> Iterator[Callable[[Tensor], Tensor]]:
    if pace.channels_last is None:
        yield lambda images: images
        return
    wanted, before = torch.channels_last if pace.channels_last else torch.contiguous_format, is_channels_last(model)
    with torch.inference_mode(False):  # weights that are moved here would be of no use for training
        lay_out(model, pace.channels_last)
    try:
        yield lambda images: images.contiguous(memory_format=wanted)
    finally:
        with torch.inference_mode(False):
            lay_out(model, before)


def find_pace(model: nn.Module, images: Tensor, count: int) -> Pace:
    """Return the fastest pace for so many images like those given, by trying batches of them with the model.

    After batches of 16, batches grow while that is faster and the trial takes at most three seconds, or a twentieth of
    the work. Memory formats are tried for networks of several convolutions. All of it is processor time, so another
    load changes little.
    """
    layers = sum(isinstance(module, nn.Conv2d) for module in model.modules())
    formats: list[bool | None] = [is_channels_last(model), not is_channels_last(model)] if layers > 1 else [None]
    start, costs = time.process_time(), dict[Pace, float]()
    for channels_last in formats:
        with suppress(RuntimeError):  # a view of what another format lays out otherwise
            pace = Pace(_FIRST, channels_last)
            costs[pace] = _cost(pace, model, images)
    best, batch = min(costs, key=costs.__getitem__, default=Pace(_LARGEST)), 2 * _FIRST
    while _SMALLEST <= batch <= _LARGEST and best in costs:
        least = costs[best]
        if time.process_time() - start + 2 * batch * least > min(
            _SECONDS * torch.get_num_threads(), _SHARE * least * count
        ):
            break
        pace = Pace(batch, best.channels_last)
        costs[pace] = _cost(pace, model, images)
        if costs[pace] < least:
            best, batch = pace, 2 * batch if batch > _FIRST else 0
        else:
            batch = _SMALLEST if best.batch == _FIRST and batch > _FIRST else 0
    return best


def _cost(pace: Pace, model: nn.Module, images: Tensor) -> float:
    """Return the processor time that an image takes, the first batch of its size left out."""
    with kept_to(pace, model) as laid_out:
        given = laid_out(images[torch.arange(pace.batch) % len(images)])
        model(given)
        start = time.process_time()
        model(given)
        return (time.process_time() - start) / pace.batch

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
_BATCHES = (8, 16, 32, 64, 128, 256)
_SECONDS, _SHARE = 1.0, 0.04  # of a trial: at most that long, and that share of the work
_WORSE = 1.05


class Pace(NamedTuple):
    """Images embedded at once, and the memory format of the network; None leaves that as it is."""

    batch: int = 256
    channels_last: bool | None = None


@contextmanager
def kept_to(pace: Pace, model: nn.Module) -> Iterator[Callable[[Tensor], Tensor]]:
    """A context with the model in the memory format of a pace; it gives what brings images into it."""
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

    Batches grow as long as the trial takes no more than a second, or a twenty-fifth of the work. Memory formats are
    tried for networks of several convolutions.
    """
    layers = sum(isinstance(module, nn.Conv2d) for module in model.modules())
    formats: list[bool | None] = [is_channels_last(model), not is_channels_last(model)] if layers > 1 else [None]
    start, costs = time.perf_counter(), dict[Pace, float]()
    for batch in _BATCHES:
        if costs:
            least = min(costs.values())
            ahead = 3 * batch * least * len(formats)
            if time.perf_counter() - start + ahead > min(_SECONDS, _SHARE * least * count):
                break
        for pace in [Pace(batch, channels_last) for channels_last in formats]:
            with suppress(RuntimeError):  # a view of what another format lays out otherwise
                costs[pace] = _cost(pace, model, images)
        least = min(costs.values(), default=0.0)
        formats = [pace.channels_last for pace, cost in costs.items() if pace.batch == batch and cost <= _WORSE * least]
        if not formats:  # larger batches are slower
            break
    return min(costs, key=costs.__getitem__, default=Pace())


def _cost(pace: Pace, model: nn.Module, images: Tensor) -> float:
    """Return the seconds that an image takes, the first batch of its size left out."""
    with kept_to(pace, model) as laid_out:
        given = laid_out(images[torch.arange(pace.batch) % len(images)])
        times = []
        for _ in range(3):
            start = time.perf_counter()
            model(given)
            times.append(time.perf_counter() - start)
        return min(times[1:]) / pace.batch

"""The phases of a step: one at a time, so that they add up to the step, put around a trainer while it is profiled."""

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from aurank.training.trainer import Trainer

PHASES = {
    "data": "waiting for data",
    "sampler": "mining by the sampler",
    "copy": "copy to the device",
    "forward": "forward",
    "loss": "loss and miner",
    "backward": "backward",
    "collectives": "other processes",
    "optimiser": "optimiser",
    "rest": "the rest (Python, log)",
}
"""The names of the phases, and what they are called where they are shown, in the order of a step."""

# Of torch.distributed, what processes exchange values by; its own calls of each other do not go through these names.
_EXCHANGES: tuple[str, ...] = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "barrier",
    "broadcast",
)
_EXCHANGES += ("broadcast_object_list", "gather", "gather_object", "reduce", "reduce_scatter", "reduce_scatter_tensor")

Item = TypeVar("Item")


class Phases:
    """A clock that is in exactly one phase at any time.

    A phase within another takes its time away from it. On a GPU the marks between phases are events of its stream: a
    phase has the time that the device spent from one to the next, and nothing waits for the device before the end.

    Attributes:
        labelled: whether phases are written into a trace of torch.profiler as well.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.labelled = False
        self._current = "rest"
        self._marks: list[tuple[str, Any]] = []  # the phase that begins, and when
        self._ends: list[int] = []  # of each step, the mark that begins the next

    def now(self) -> Any:
        """Return a mark: seconds, or an event of the device."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def begin(self) -> None:
        """Forget everything; the first step begins."""
        self._ends = []
        self._marks = [(self._current, self.now())]

    def end_step(self) -> None:
        """End a step; the next one begins."""
        self._ends.append(len(self._marks))
        self._marks.append((self._current, self.now()))

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """A context whose time is the phase's, but for that of the phases within."""
        outer, self._current = self._current, name
        self._marks.append((name, self.now()))
        label = torch.profiler.record_function(f"aurank: {name}") if self.labelled else nullcontext()
        try:
            with label:
                yield
        finally:
            self._marks.append((outer, self.now()))
            self._current = outer

    def point(self) -> tuple[int, Any]:
        """Return a point in time, for `since`."""
        return len(self._marks), self.now()

    def since(self, point: tuple[int, Any], name: str) -> None:
        """Give to a phase all that has passed since a point, unless another phase began or ended meanwhile."""
        marks, mark = point
        if marks == len(self._marks):
            self._marks.append((name, mark))

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, its time a phase's."""

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            with self(name):
                return function(*args, **options)

        return call

    def awaited(self, items: Iterator[Item]) -> Iterator[Item]:
        """Yield the items, the time of waiting for each that of the data."""
        nothing = object()
        while True:
            with self("data"):
                item: Any = next(items, nothing)
            if item is nothing:
                return
            yield item

    def seconds(self) -> list[dict[str, float]]:
        """Return the seconds of each phase, for each step that has ended since `begin`; they add up to those of it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        found, start = [], 0
        for end in self._ends:
            step = dict.fromkeys(PHASES, 0.0)
            for (name, mark), (_, following) in zip(
                self._marks[start:end], self._marks[start + 1 : end + 1], strict=True
            ):
                step[name] += _between(mark, following)
            found.append(step)
            start = end
        return found


def _between(mark: Any, following: Any) -> float:
    if isinstance(mark, float):
        return float(following - mark)
    return float(mark.elapsed_time(following)) / 1000  # of milliseconds


@contextmanager
def watched(trainer: Trainer, phases: Phases) -> Iterator[None]:
    """Put the phases around the parts of a trainer while entered; ordinary training knows nothing of them."""
    with ExitStack() as undo:

        def watch(holder: Any, name: str, function: Callable[..., Any]) -> None:
            own = vars(holder).get(name)
            undo.callback(setattr, holder, name, own) if own is not None else undo.callback(delattr, holder, name)
            setattr(holder, name, function)

        copied = _copied_first(trainer, phases)
        watch(trainer, "embed", phases.timed("forward", copied))
        watch(trainer, "forward", phases.timed("loss", trainer.forward))  # what is left of it without `embed`
        watch(trainer, "backward", _exchange_at_the_end(trainer, phases, undo))
        for holder, name in (
            (trainer, "update"),
            (trainer.accelerator, "clip_grad_norm_"),
            (trainer.average, "update"),
        ):
            if holder is not None:
                watch(holder, name, phases.timed("optimiser", getattr(holder, name)))
        if trainer.accelerator.num_processes > 1:
            for name in _EXCHANGES:
                watch(distributed, name, phases.timed("collectives", getattr(distributed, name)))
            if hasattr(trainer.encoder, "_sync_buffers"):  # of DistributedDataParallel, before each forward pass
                watch(trainer.encoder, "_sync_buffers", phases.timed("collectives", trainer.encoder._sync_buffers))
        yield


def _copied_first(trainer: Trainer, phases: Phases) -> Callable[..., Any]:
    """Return `embed` with its inputs on the device already; a gradient cache copies chunks by itself."""
    embed, device = trainer.embed, trainer.accelerator.device
    if trainer.cache is not None or device.type == "cpu":
        return embed

    def copied(inputs: tuple[Tensor, ...]) -> Tensor:
        with phases("copy"):
            inputs = tuple(one.to(device, non_blocking=True) for one in inputs)
        return embed(inputs)

    return copied


def _exchange_at_the_end(trainer: Trainer, phases: Phases, undo: ExitStack) -> Callable[..., Any]:
    """Return `backward`, in which what follows the last gradient is the averaging over processes that is waited for."""
    backward: Callable[..., Any] = phases.timed("backward", trainer.backward)
    if trainer.accelerator.num_processes == 1:
        return backward
    last: list[Any] = []

    def arrived(_: Tensor) -> None:
        last[:] = [phases.point()]

    for parameter in trainer.encoder.parameters():
        if parameter.requires_grad:
            undo.callback(parameter.register_post_accumulate_grad_hook(arrived).remove)
    plain = trainer.backward

    def call(loss: Tensor) -> None:
        with phases("backward"):
            last.clear()
            plain(loss)
            if last:
                phases.since(last[0], "collectives")

    return call

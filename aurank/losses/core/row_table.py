"""State that a loss keeps per class or per sample: complete in `state_dict`, the same on every rank."""

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from aurank.errors import UserError
from aurank.losses.core.common import to_device_of
from aurank.losses.core.distributed import exchange, gather_rows, world_size

HALF = (torch.float16, torch.bfloat16)

# one entry for each row of a batch: the table's row, numbers for it, and a mark
EntryIndex = Int64[Tensor, " entry"]
EntryValues = Float[Tensor, "entry width"]
EntryMarks = Bool[Tensor, " entry"]


def writes(module: nn.Module) -> bool:
    """Return whether a call may change what the module keeps: in training mode, unless gradients are disabled."""
    return module.training and torch.is_grad_enabled()


def check_device(loss: nn.Module, embeddings: Tensor) -> None:
    for part in loss.modules():
        for state in part.buffers(recurse=False):
            if state.device != embeddings.device:
                raise UserError(
                    f"{type(loss).__name__} is on {state.device} and the embeddings are on {embeddings.device}: "
                    f"move it there, loss.to({str(embeddings.device)!r})"
                )


class FullPrecision(nn.Module):
    """A module whose own numbers stay float32 after `.half()` or `.bfloat16()`, which would swallow small steps."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "FullPrecision":
        # .half() and .bfloat16() come through here as well as .to(device): the move is kept, the rounding is not
        before = {name: value.detach().clone() for name, value in self.named_parameters(recurse=False)}
        before |= dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, value in (*self.named_parameters(recurse=False), *self.named_buffers(recurse=False)):
            if value.dtype in HALF:
                value.data = before[name].to(value.device)
        return self


class Counters:
    COUNTERS: ClassVar[tuple[str, ...]] = ()

    def get_extra_state(self) -> Int64[Tensor, " counter"]:
        return torch.tensor([getattr(self, name) for name in self.COUNTERS])

    def set_extra_state(self, state: Tensor) -> None:
        for name, number in zip(self.COUNTERS, state.flatten().tolist(), strict=True):
            setattr(self, name, int(number))


class RowTable(FullPrecision):
    """A table of moving averages, one row per class or sample; a row's first value is copied, not averaged.

    Buffers: `rows` [row, width] and `seen` [row], False until a row is first written. Rows are float32, also after
    `.half()` or `.bfloat16()`, and float64 after `.double()`.

    Args:
        num_rows: classes or samples.
        width: numbers per row.
        start: what every row holds from the beginning, as if seen; None: zeros, unseen.
        logarithms: rows and values are logarithms; what they are logarithms of is averaged.
        starts_at_zero: unseen rows count as 0, as in a published table of zeros, unless the whole batch is unseen:
            then its values are copied. For logarithms alone.

    Example:
        >>> table = RowTable(num_rows=3, width=1)
        >>> table.update(torch.tensor([2, 2]), torch.tensor([[1.0], [3.0]]), rate=0.5)
        >>> table.update(torch.tensor([2]), torch.tensor([[4.0]]), rate=0.5)
        >>> table.rows.flatten().tolist(), table.seen.tolist()
        ([0.0, 0.0, 3.0], [False, False, True])
    """

    rows: Tensor
    seen: Tensor

    def __init__(
        self,
        num_rows: int,
        width: int,
        *,
        start: Float[Tensor, " width"] | None = None,
        logarithms: bool = False,
        starts_at_zero: bool = False,
    ) -> None:
        super().__init__()
        self.logarithms, self.starts_at_zero = logarithms, starts_at_zero
        first = torch.zeros(width) if start is None else start
        self.register_buffer("rows", first.to(torch.float32).repeat(num_rows, 1))
        self.register_buffer("seen", torch.full((num_rows,), start is not None))

    def read(self, index: EntryIndex) -> tuple[EntryValues, EntryMarks]:
        """Return the rows asked for, and whether each has ever been written."""
        return self.rows[index], self.seen[index]

    @torch.no_grad()
    def blended(
        self, index: EntryIndex, values: EntryValues, *, rate: float, batch: Int64[Tensor, " batch_entry"] | None = None
    ) -> EntryValues:
        """Return (1 − rate)·row + rate·value for each entry by itself, its value where the row was never written."""
        old, seen = self.read(index)
        if self.logarithms:
            decay = math.log1p(-rate) if rate < 1 else -math.inf
            new = torch.logaddexp(old + decay, values + math.log(rate))
        else:
            new = old.lerp(values, rate)
        first = values
        if self.starts_at_zero:
            is_known = seen if batch is None else self.read(batch)[1]
            first = torch.where(is_known.any(), values + math.log(rate), values)
        return torch.where(seen[:, None], new, first)

    @torch.no_grad()
    def update(self, index: EntryIndex, values: EntryValues, *, rate: float, is_shared: bool = False) -> None:
        """Set row ← (1 − rate)·row + rate·value, or the value itself for a row not seen before."""
        values = values.detach().to(self.rows.dtype)
        index, values = self.gathered(index, values, is_shared=is_shared)
        if len(index) == 0:
            return
        mean, finite = self.mean(index, values)
        self.write(index, self.blended(index, mean, rate=rate), finite)

    def gathered(
        self, index: EntryIndex, values: EntryValues, *, is_shared: bool
    ) -> tuple[Int64[Tensor, " total"], Float[Tensor, "total width"]]:
        """Return the entries of all ranks, which must all call, or the rank's own with `is_shared`."""
        return (index, values) if is_shared else gather_entries(index, values)

    def mean(self, index: EntryIndex, values: EntryValues) -> tuple[EntryValues, EntryMarks]:
        """Return for each entry the mean over all finite entries of its row, and whether there is one."""
        return (log_mean_by_row if self.logarithms else mean_by_row)(index, values)

    @torch.no_grad()
    def write(self, index: EntryIndex, values: EntryValues, is_new: EntryMarks) -> None:
        """Put values into rows where wanted. Entries of one row must be equal."""
        old, seen = self.read(index)
        self.rows[index], self.seen[index] = torch.where(is_new[:, None], values, old), seen | is_new


def mean_by_row(index: EntryIndex, values: EntryValues) -> tuple[EntryValues, EntryMarks]:
    """Return for each entry the mean over all finite entries of its row, and whether there is one."""
    finite = values.isfinite().all(dim=1)
    exact = values.masked_fill(~finite[:, None], 0).to(torch.float64)
    group = group_entries(index)
    peak = torch.zeros_like(exact).scatter_reduce_(0, group[:, None].expand_as(exact), exact.abs(), "amax")[group]
    exponent = 62 - len(index).bit_length() - torch.frexp(peak).exponent
    # 2 to the exponent by its bits, exactly: pow and exp2 promise only to come close
    scale = (exponent.to(torch.int64).clamp(-1022, 1023) + 1023 << 52).view(torch.float64)
    total = torch.zeros_like(exact, dtype=torch.int64)
    total.index_add_(0, group, (exact * scale).round().to(torch.int64))
    count = torch.zeros_like(group).index_add_(0, group, finite.to(torch.int64))[group]
    mean = total[group].to(torch.float64) / scale / count.clamp(min=1)[:, None]
    return mean.to(values.dtype), count > 0


def log_mean_by_row(index: EntryIndex, values: EntryValues) -> tuple[EntryValues, EntryMarks]:
    """Do as `mean_by_row` for logarithms: log of the mean of exp, which neither overflows nor vanishes."""
    finite = values.isfinite().all(dim=1)
    finite_values = values.masked_fill(~finite[:, None], -torch.inf)
    group = group_entries(index)
    start = torch.full_like(values, -torch.inf)
    peak = start.scatter_reduce_(0, group[:, None].expand_as(values), finite_values, "amax")[group]
    peak = peak.masked_fill(peak.isneginf(), 0)  # a row without a finite entry
    mean, is_known = mean_by_row(index, (values - peak).exp().masked_fill(~finite[:, None], torch.nan))
    return mean.log() + peak, is_known


def group_entries(index: EntryIndex) -> EntryIndex:
    """Return a number below the number of entries for each entry, the same for entries of the same row."""
    ordered, order = index.sort()
    starts = torch.cat([torch.zeros_like(ordered[:1]), (ordered[1:] != ordered[:-1]).to(torch.int64)])
    return torch.empty_like(index).scatter_(0, order, starts.cumsum(0))


def gather_entries(
    index: EntryIndex, values: EntryValues
) -> tuple[Int64[Tensor, " total"], Float[Tensor, "total width"]]:
    if world_size() == 1:
        return index, values
    lengths = [length for (length,) in exchange([len(index)], index.device)]
    return gather_rows(index, lengths), gather_rows(values, lengths)


class SavedGenerator(nn.Module):
    def __init__(self, seed: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed) if generator is None else generator

    def draw(self, distribution: Callable[..., Tensor], shape: Sequence[int], *, like: Tensor) -> Tensor:
        """Return numbers of `torch.rand` or `torch.randn`, drawn in float32 on the host whatever they are like."""
        numbers = distribution(*shape, generator=self.generator, dtype=torch.float32, device="cpu")
        return to_device_of(like, numbers).to(like.dtype)

    def on_device(self, device: torch.device) -> torch.Generator | None:
        if device.type == "meta":
            return None
        ahead = torch.Generator()
        ahead.set_state(self.generator.get_state())
        return torch.Generator(device).manual_seed(int(torch.randint(2**62, (), generator=ahead)))

    def advance(self) -> None:
        torch.randint(2**62, (), generator=self.generator)

    def get_extra_state(self) -> Tensor:
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        self.generator.set_state(state.cpu())

"""State that a loss keeps per class or per sample: complete in `state_dict`, the same on every rank."""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor, distributed, nn

from aurank.errors import UserError
from aurank.losses.distributed import gather_rows, world_size


class FullPrecision(nn.Module):
    """A module whose buffers and parameters stay float32 after `.half()` or `.bfloat16()`, which would swallow small steps."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "FullPrecision":
        # .half() and .bfloat16() come through here as well as .to(device): the move is kept, the rounding is not
        before = {name: value.detach().clone() for name, value in self.named_parameters(recurse=False)}
        before |= dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, value in self.named_buffers(recurse=False):
            if value.dtype in (torch.float16, torch.bfloat16):
                setattr(self, name, before[name].to(value.device))
        for name, parameter in self.named_parameters(recurse=False):
            if parameter.dtype in (torch.float16, torch.bfloat16):
                parameter.data = before[name].to(parameter.device)
        return self


class RowTable(FullPrecision):
    """A table of moving averages, one row per class or sample; a row's first value is copied, not averaged.

    Buffers: `rows` [row, width] and `seen` [row], False until a row is first written. Rows are float32, also after
    `.half()` or `.bfloat16()`, which would swallow small steps, and float64 after `.double()`.
    """

    rows: Tensor
    seen: Tensor

    def __init__(
        self, num_rows: int, width: int, *, start: Float[Tensor, " width"] | None = None, logarithms: bool = False
    ) -> None:
        """`start`: what every row holds from the beginning, as if seen; else rows are zero and unseen.

        logarithms: rows and values are logarithms, and what is averaged is what they are logarithms of.
        """
        super().__init__()
        self.logarithms = logarithms
        self._before: list[tuple[Tensor, Tensor, Tensor]] | None = None
        rows = torch.zeros(num_rows, width) if start is None else start.to(torch.float32).repeat(num_rows, 1)
        self.register_buffer("rows", rows)
        self.register_buffer("seen", torch.full((num_rows,), start is not None))

    def read(self, index: Int64[Tensor, " entry"]) -> tuple[Float[Tensor, "entry width"], Bool[Tensor, " entry"]]:
        """The rows asked for, and whether each has ever been written."""
        return self.rows[index], self.seen[index]

    @torch.no_grad()
    def blended(
        self, index: Int64[Tensor, " entry"], values: Float[Tensor, "entry width"], *, rate: float
    ) -> Float[Tensor, "entry width"]:
        """(1 − rate)·row + rate·value for each entry by itself, or its value where the row was never written."""
        old, seen = self.read(index)
        if self.logarithms:
            kept = math.log1p(-rate) if rate < 1 else -math.inf
            new = torch.logaddexp(old + kept, values + math.log(rate))
        else:
            new = old.lerp(values, rate)
        return torch.where(seen[:, None], new, values)

    @torch.no_grad()
    def update(
        self,
        index: Int64[Tensor, " entry"],
        values: Float[Tensor, "entry width"],
        *,
        rate: float,
        is_shared: bool = False,
    ) -> None:
        """Nothing; row ← (1 − rate)·row + rate·value, or the value itself for a row not seen before.

        Several entries for one row are averaged first, to the same bits in any order. With torch.distributed, the
        entries of all ranks count, and every rank must call, if only with none; `is_shared` says that each rank has
        them all already. Values not finite are left out.
        """
        values = values.detach().to(self.rows.dtype)
        if not is_shared:
            index, values = gather_entries(index, values)
        if len(index) == 0:
            return
        mean, finite = self.mean(index, values)
        self.write(index, self.blended(index, mean, rate=rate), finite)

    def mean(
        self, index: Int64[Tensor, " entry"], values: Float[Tensor, "entry width"]
    ) -> tuple[Float[Tensor, "entry width"], Bool[Tensor, " entry"]]:
        """For each entry the mean over all finite entries of its row, and whether there is one."""
        return (log_mean_by_row if self.logarithms else mean_by_row)(index, values)

    @torch.no_grad()
    def write(
        self, index: Int64[Tensor, " entry"], values: Float[Tensor, "entry width"], wanted: Bool[Tensor, " entry"]
    ) -> None:
        """Nothing; puts values into rows where wanted. Entries of one row must be equal."""
        old, seen = self.read(index)
        if self._before is not None:
            self._before.append((index, old, seen))
        self.rows[index] = torch.where(wanted[:, None], values, old)
        self.seen[index] = seen | wanted

    def mark(self) -> None:
        """Nothing; from here on, what is overwritten is remembered for `take_back`, until the next mark."""
        self._before = []

    @torch.no_grad()
    def take_back(self) -> None:
        """Nothing; the table is again as it was at the mark."""
        while self._before:
            index, rows, seen = self._before.pop()
            self.rows[index], self.seen[index] = rows, seen

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        rows, seen = state_dict.get(f"{prefix}rows"), state_dict.get(f"{prefix}seen")
        if rows is not None and seen is not None and rows.shape[0] == seen.shape[0]:
            wrong = seen & ~rows.isfinite().all(dim=1)
            if wrong.any():
                row = int(wrong.nonzero()[0])
                raise UserError(
                    f"the saved state {prefix}rows is not finite in {int(wrong.sum())} rows, first in row {row}, "
                    f"{rows[row].tolist()}: take an earlier checkpoint"
                )
        super()._load_from_state_dict(state_dict, prefix, *others)


def mean_by_row(
    index: Int64[Tensor, " entry"], values: Float[Tensor, "entry width"]
) -> tuple[Float[Tensor, "entry width"], Bool[Tensor, " entry"]]:
    """For each entry the mean over all finite entries of its row, and whether there is one.

    Sums are taken in integers: those add up to the same bits in any order, so neither the order of a batch, nor a GPU's
    atomic additions, nor the order of the ranks shows, and the tables of all ranks stay equal.
    """
    finite = values.isfinite().all(dim=1)
    exact = values.masked_fill(~finite[:, None], 0).to(torch.float64)
    group = group_entries(index)
    peak = torch.zeros_like(exact).scatter_reduce_(0, group[:, None].expand_as(exact), exact.abs(), "amax")[group]
    scale = power_of_two(62 - len(index).bit_length() - torch.frexp(peak).exponent)
    total = torch.zeros_like(exact, dtype=torch.int64)
    total.index_add_(0, group, (exact * scale).round().to(torch.int64))
    count = torch.zeros_like(group).index_add_(0, group, finite.to(torch.int64))[group]
    mean = total[group].to(torch.float64) / scale / count.clamp(min=1)[:, None]
    return mean.to(values.dtype), count > 0


def log_mean_by_row(
    index: Int64[Tensor, " entry"], values: Float[Tensor, "entry width"]
) -> tuple[Float[Tensor, "entry width"], Bool[Tensor, " entry"]]:
    """As `mean_by_row` for logarithms: log of the mean of exp, which neither overflows nor vanishes."""
    finite = values.isfinite().all(dim=1)
    known = values.masked_fill(~finite[:, None], -torch.inf)
    group = group_entries(index)
    start = torch.full_like(values, -torch.inf)
    peak = start.scatter_reduce_(0, group[:, None].expand_as(values), known, "amax")[group]
    peak = peak.masked_fill(peak.isneginf(), 0)  # a row without a finite entry
    mean, found = mean_by_row(index, (values - peak).exp().masked_fill(~finite[:, None], torch.nan))
    return mean.log() + peak, found


def group_entries(index: Int64[Tensor, " entry"]) -> Int64[Tensor, " entry"]:
    """A number below the number of entries for each entry, the same for entries of the same row."""
    ordered, order = index.sort()
    starts = torch.cat([torch.zeros_like(ordered[:1]), (ordered[1:] != ordered[:-1]).to(torch.int64)])
    return torch.empty_like(index).scatter_(0, order, starts.cumsum(0))


def power_of_two(exponent: Int[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
    """2 to an integer power in float64, exactly: pow and exp2 promise only to come close."""
    biased = exponent.to(torch.int64).clamp(-1022, 1023) + 1023
    return (biased << 52).view(torch.float64)


def gather_entries(
    index: Int64[Tensor, " entry"], values: Float[Tensor, "entry width"]
) -> tuple[Int64[Tensor, " total"], Float[Tensor, "total width"]]:
    """The entries of all ranks, in the order of the ranks; one process's own where there is one.

    Ranks may bring different numbers of entries: the numbers are exchanged first, which the host waits for.
    """
    if world_size() == 1:
        return index, values
    own = torch.tensor([len(index)], device=index.device)
    sizes = [torch.zeros_like(own) for _ in range(world_size())]
    distributed.all_gather(sizes, own)
    lengths = torch.cat(sizes).tolist()
    return gather_rows(index, lengths), gather_rows(values, lengths)

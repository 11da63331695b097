"""The moving average that stands for a sample's normaliser: its table, its rate γ, and the loss that it weighs.

A global contrastive loss minimises −s⁺ + τ·log g, where g is the mean of exp(s⁻/τ) over all negatives of the data set.
A batch shows a few of them. Their mean ḡ gives the direction of the gradient, and the normaliser u, an estimate of g
from earlier batches, its length: the gradient is (τ/u)·∇ḡ.

While a network starts to learn, similarities fall, and g with them by orders of magnitude, for all samples together. An
average of ḡ remembers the first values for epochs. So what is averaged here is ḡ over the level of its batch, which
that fall leaves as it is. docs/results.md has what both come to.
"""

import math
import warnings
from typing import Literal, Unpack, get_args

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from aurank.errors import AurankWarning
from aurank.losses.core.checks import Number, refuse_unused, require_choice, require_flag, require_fraction
from aurank.losses.core.keyed_loss import KeyedLoss, KeyedLossOptions, query_ids
from aurank.losses.core.log_mean_exp import AnyTemperature
from aurank.losses.core.pairs import Pairs
from aurank.losses.core.row_table import (
    EntryIndex,
    EntryValues,
    RowTable,
    log_mean_by_row,
    mean_by_row,
    writes,
)

Schedule = Literal["constant", "cosine"]
Every = Literal["epoch", "step"]
Residence = Literal["device", "host"]
Average = Literal["relative", "plain"]
LARGEST_LOG_WEIGHT = 80.0
OFFICIAL = "official=True, LibAUC's loss of one modality"  # whose other options are not there


def surrogate_loss(
    log_mean: Float[Tensor, " query"], log_normalizer: Float[Tensor, " query"], temperature: AnyTemperature
) -> Float[Tensor, " query"]:
    """Return τ·log u of each query, with the gradient (τ/u)·∇ḡ, and in τ the one that τ·log g would have.

    Args:
        log_mean: log ḡ of the batch, with its graph.
        log_normalizer: log u, taken as a constant.
    """
    normalizer = log_normalizer.detach()
    # At most 1/γ, unless u is from before this batch. There it must not overflow, for the difference below is 0.
    weight = (log_mean.detach() - normalizer).clamp(max=LARGEST_LOG_WEIGHT).exp()
    constant = temperature.detach() if isinstance(temperature, Tensor) else temperature
    return temperature * normalizer + constant * weight * (log_mean - log_mean.detach())


class Gamma(nn.Module):
    """γ of u ← (1 − γ)·u + γ·ḡ, the share of the new value; at 1 nothing of the past is kept.

    A training loop calls `set_progress` before each step, as `aurank train` does.

    Args:
        gamma: γ; with "cosine" its last value.
        gamma_schedule: "constant", or "cosine": γ(t) = γ + ½(1 − γ)(1 + cos(π·t/T)) falls from 1 until T and stays.
        gamma_every: "epoch" counts t in whole epochs, as the authors do; "step" in steps.
        gamma_decay: T as a share of the training.

    Source:
        FastCLIP (Wei et al., 2024), https://arxiv.org/abs/2407.01445.
    """

    def __init__(
        self,
        gamma: Number,
        gamma_schedule: Schedule = "constant",
        *,
        gamma_every: Every = "epoch",
        gamma_decay: Number = 0.5,
    ) -> None:
        super().__init__()
        self.last = require_fraction("gamma", gamma, one=True)
        self.schedule = require_choice("gamma_schedule", gamma_schedule, get_args(Schedule))
        self.every = require_choice("gamma_every", gamma_every, get_args(Every))
        self.decay = require_fraction("gamma_decay", gamma_decay, one=True)
        constant = self.schedule == "constant"
        if constant:
            refuse_unused(Gamma, 'gamma_schedule="constant"', gamma_every=gamma_every, gamma_decay=gamma_decay)
        self.value = self.last if constant else 1.0
        self.progress_known = constant

    def set_progress(self, *, step: int, steps: int, epoch: int, epochs: float) -> None:
        """Set γ to that of this step (of `steps`) and epoch (of `epochs`), both counted from 0."""
        self.progress_known = True
        if self.schedule == "constant":
            return
        done = step / steps if self.every == "step" else epoch / epochs
        fall = 0.5 * (1 + math.cos(math.pi * min(1.0, done / self.decay)))
        self.value = self.last + (1 - self.last) * fall

    def forward(self) -> float:
        """Return γ now."""
        if not self.progress_known and self.training:
            self.progress_known = True  # warn once
            warnings.warn(
                "gamma_schedule='cosine' stays at 1, the loss of each batch alone, until the training loop calls "
                "set_progress(step=, steps=, epoch=, epochs=) of the loss's gamma",
                AurankWarning,
                stacklevel=2,
            )
        return self.value

    def get_extra_state(self) -> Float64[Tensor, ""]:
        """Return γ, for `state_dict`."""
        return torch.tensor(self.value, dtype=torch.float64)

    def set_extra_state(self, state: Tensor | float) -> None:
        """Continue from the saved γ; a constant one is what the constructor says."""
        if self.schedule != "constant":
            self.value = float(state)


class Levels(nn.Module):
    """The mean log ḡ of the last batch, for each direction, where that batch was; saved from the host."""

    def __init__(self, directions: int) -> None:
        super().__init__()
        self.values = [torch.zeros(()) for _ in range(directions)]

    def get_extra_state(self) -> Float64[Tensor, " direction"]:
        """Return the levels, for `state_dict`."""
        return torch.stack([value.detach().cpu().double() for value in self.values])

    def set_extra_state(self, state: Float64[Tensor, " direction"]) -> None:
        """Take over saved levels."""
        self.values = list(state.to(torch.float64).unbind())


class NormalizedLossOptions(KeyedLossOptions, total=False):
    """What every loss with such a normaliser takes beside its own arguments, and passes on to `NormalizedLoss`."""

    gamma_every: Every
    gamma_decay: Number
    state_on: Residence


class NormalizedLoss(KeyedLoss):
    """A loss that keeps log u of each sample, one for each direction; `SogCLRLoss` describes the arguments.

    Args:
        average: "plain" averages ḡ itself, as the papers do. "relative" averages ḡ / M, where log M, the batch's level,
            is the mean of log ḡ over its valid queries; u is that average times the present M, and balanced: times what
            makes the mean of the weights ḡ / u 1.
        official: True averages ḡ itself, and where a batch has samples that were seen, those that were not from 0, as
            LibAUC does.
    """

    def __init__(
        self,
        num_samples: int,
        gamma: Number,
        gamma_schedule: Schedule,
        average: Average,
        /,
        *,
        two_way: bool,
        official: bool = False,
        gamma_every: Every = "epoch",
        gamma_decay: Number = 0.5,
        state_on: Residence = "device",
        **options: Unpack[KeyedLossOptions],
    ) -> None:
        super().__init__(num_samples, **options)
        self.two_way = require_flag("two_way", two_way)
        self.gamma = Gamma(gamma, gamma_schedule, gamma_every=gamma_every, gamma_decay=gamma_decay)
        on_host = require_choice("state_on", state_on, get_args(Residence)) == "host"
        relative = require_choice("average", average, get_args(Average)) == "relative"
        official = require_flag("official", official)
        self.levels = Levels(1 + two_way) if relative and not official else None
        self.tables = nn.ModuleList(
            RowTable(num_samples, 1, logarithms=True, starts_at_zero=official, on_host=on_host)
            for _ in range(1 + self.two_way)
        )

    @property
    def log_u(self) -> Float[Tensor, "direction sample"]:
        """log u of each sample, at the level of the last batch but not balanced; 0 for one not seen yet."""
        found = first_column(self.tables)
        if self.levels is None:
            return found
        seen = torch.stack([table.get_buffer("seen") for table in self.tables])
        return torch.where(seen, found + torch.stack([level.to(found) for level in self.levels.values])[:, None], 0)

    def log_normalizer(
        self, pairs: Pairs, log_mean: Float[Tensor, " query"], *, shared: bool = False, previous: bool = False
    ) -> Float[Tensor, " query"]:
        """Return log u of each query's sample after this batch, and keep it where the call may write.

        The first ḡ is copied. What is kept is u of the valid queries' samples, blended with the mean of ḡ over views.
        Where each process has a loss of its own batch, level and balance are of all batches, but in evaluation mode.

        Args:
            log_mean: log ḡ of each query.
            shared: True blends u with the mean of ḡ over all views of the sample, False with the query's own.
            previous: True returns u as it was before, where the sample was seen.
        """
        gamma, table, index = self.gamma(), table_of(self.tables, pairs), query_ids(pairs)
        values = log_mean.detach()[:, None].to(table.rows.dtype)
        own = values.masked_fill(~pairs.valid[:, None], torch.nan)  # which means and tables leave out

        def blended(index: EntryIndex, own: EntryValues) -> EntryValues:
            found = table.blended(index, table.mean(index, own)[0] if shared else own, rate=gamma, batch=ids)
            if not previous:
                return found
            before, seen = table.read(index)
            return torch.where(seen[:, None], before, found)

        ids, everyone = index, own
        if writes(self):
            ids, everyone = table.gathered(index, own, is_shared=pairs.is_shared)
        if self.levels is None:
            normalizer = blended(index, own)
        else:
            level = mean_of_all(everyone)
            everyone = everyone - level
            found = blended(ids, everyone)
            normalizer = found if ids is index else blended(index, own - level)
            normalizer = normalizer + level + mean_of_all(everyone - found, logarithms=True)
        if writes(self):
            table.update(ids, everyone, rate=gamma, is_shared=True)
            if self.levels is not None:
                self.levels.values[pairs.side] = level
        return torch.where(pairs.valid[:, None], normalizer, values)[:, 0].to(log_mean.dtype)


def mean_of_all(values: EntryValues, *, logarithms: bool = False) -> Float[Tensor, ""]:
    """Return the mean of the finite entries, or the log mean of exp; the same bits in any order, and 0 without any."""
    if len(values) == 0:
        return values.new_zeros(())
    index = torch.zeros(len(values), dtype=torch.int64, device=values.device)
    mean, found = (log_mean_by_row if logarithms else mean_by_row)(index, values)
    return torch.where(found[0], mean[0, 0], 0)


def table_of(tables: nn.ModuleList, pairs: Pairs) -> RowTable:
    """Return the table of the pairs' direction."""
    table = tables[pairs.side]
    assert isinstance(table, RowTable)
    return table


def first_column(tables: nn.ModuleList) -> Float[Tensor, "direction sample"]:
    """Return the first column of the tables of all directions."""
    for table in tables:
        assert isinstance(table, RowTable)
        table.settle()
    return torch.stack([table.get_buffer("rows")[:, 0] for table in tables])

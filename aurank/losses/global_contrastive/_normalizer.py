"""The moving average that stands for a sample's normaliser: its table, its rate γ, and the loss that it weighs.

A global contrastive loss minimises −s⁺ + τ·log g, where g is the mean of exp(s⁻/τ) over all negatives of the data set.
A batch shows a few of them. Their mean ḡ gives the direction of the gradient, and the normaliser u, an estimate of g
from earlier batches, its length: the gradient is (τ/u)·∇ḡ.
"""

import math
import warnings
from typing import Literal, Unpack, get_args

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from aurank.errors import AurankWarning, UserError
from aurank.losses.core.checks import Number, refuse_unused, require_choice, require_flag, require_fraction
from aurank.losses.core.keyed_loss import KeyedLoss, KeyedLossOptions, query_ids
from aurank.losses.core.log_mean_exp import AnyTemperature
from aurank.losses.core.pairs import Pairs
from aurank.losses.core.row_table import RowTable, writes

Schedule = Literal["constant", "cosine"]
Every = Literal["epoch", "step"]
Residence = Literal["device", "host"]
LARGEST_LOG_WEIGHT = 80.0


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
        if steps < 1 or epochs <= 0:
            raise UserError(f"steps and epochs must be above 0, got steps={steps}, epochs={epochs}")
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


class NormalizedLossOptions(KeyedLossOptions, total=False):
    """What every loss with such a normaliser takes beside its own arguments, and passes on to `NormalizedLoss`."""

    gamma_every: Every
    gamma_decay: Number
    state_on: Residence


class NormalizedLoss(KeyedLoss):
    """A loss that keeps log u of each sample, one for each direction; `SogCLRLoss` describes the arguments."""

    def __init__(
        self,
        num_samples: int,
        gamma: Number,
        gamma_schedule: Schedule,
        *,
        two_way: bool,
        gamma_every: Every = "epoch",
        gamma_decay: Number = 0.5,
        state_on: Residence = "device",
        **options: Unpack[KeyedLossOptions],
    ) -> None:
        super().__init__(num_samples, **options)
        self.two_way = require_flag("two_way", two_way)
        self.gamma = Gamma(gamma, gamma_schedule, gamma_every=gamma_every, gamma_decay=gamma_decay)
        on_host = require_choice("state_on", state_on, get_args(Residence)) == "host"
        self.tables = nn.ModuleList(
            RowTable(num_samples, 1, logarithms=True, on_host=on_host) for _ in range(1 + self.two_way)
        )

    @property
    def log_u(self) -> Float[Tensor, "direction sample"]:
        """log u of each sample; 0 for one not seen yet."""
        return first_column(self.tables)

    def log_normalizer(
        self, pairs: Pairs, log_mean: Float[Tensor, " query"], *, shared: bool = False, previous: bool = False
    ) -> Float[Tensor, " query"]:
        """Return log u of each query's sample after this batch, and keep it where the call may write.

        The first ḡ is copied. What is kept is u of the valid queries' samples, blended with the mean of ḡ over views.

        Args:
            log_mean: log ḡ of each query.
            shared: True blends u with the mean of ḡ over all views of the sample, False with the query's own.
            previous: True returns u as it was before, where the sample was seen.
        """
        gamma, table, index, rows = self.gamma(), table_of(self.tables, pairs), query_ids(pairs), pairs.valid_rows
        values = own = log_mean.detach()[:, None].to(table.rows.dtype)
        if shared and len(rows):
            own = values.index_copy(0, rows, table.mean(index[rows], values[rows])[0])
        normalizer = table.blended(index, own, rate=gamma)
        if previous:
            before, seen = table.read(index)
            normalizer = torch.where(seen[:, None], before, normalizer)
        if writes(self):
            table.update(index[rows], values[rows], rate=gamma, is_shared=pairs.is_shared)
        return normalizer[:, 0].to(log_mean.dtype)


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

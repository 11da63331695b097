"""State of each sample: the moving average that stands for its normaliser, its rate γ, and its own temperature."""

import math
import warnings
from typing import Literal, Unpack, get_args

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from aurank.errors import AurankWarning
from aurank.losses.core.checks import Number, require_number, require_within
from aurank.losses.core.pair_loss import KeyedLoss, KeyedLossOptions, query_ids
from aurank.losses.core.pairs import Pairs, count_equal
from aurank.losses.core.row_table import EntryIndex, EntryValues, RowTable, log_mean_by_row, mean_by_row, writes
from aurank.losses.core.temperature import AnyTemperature, Temperature, attraction, column, log_mean_exp
from aurank.names import require_choice

Schedule = Literal["constant", "cosine"]
FALLS_OVER = 0.5  # share of the training
Average = Literal["relative", "plain"]
LARGEST_LOG_WEIGHT = 80.0


def surrogate_loss(
    log_mean: Float[Tensor, " query"], log_normalizer: Float[Tensor, " query"], temperature: AnyTemperature
) -> Float[Tensor, " query"]:
    """Return τ·log u of each query, with the gradient (τ/u)·∇ḡ, and in τ the one that τ·log g would have."""
    normalizer = log_normalizer.detach()
    # At most 1/γ, unless u is from before this batch. There it must not overflow, for the difference below is 0.
    weight = (log_mean.detach() - normalizer).clamp(max=LARGEST_LOG_WEIGHT).exp()
    constant = temperature.detach() if isinstance(temperature, Tensor) else temperature
    return temperature * normalizer + constant * weight * (log_mean - log_mean.detach())


class Gamma(nn.Module):
    """γ of u ← (1 − γ)·u + γ·ḡ, the share of the new value; at 1 nothing of the past is kept."""

    def __init__(self, gamma: Number, gamma_schedule: Schedule = "constant") -> None:
        super().__init__()
        self.last = require_number("gamma", gamma, "(0, 1]")
        self.schedule = require_choice("gamma_schedule", gamma_schedule, get_args(Schedule))
        constant = self.schedule == "constant"
        self.value = self.last if constant else 1.0
        self.progress_known = constant

    def set_progress(self, *, step: int, steps: int, epoch: int, epochs: float) -> None:
        self.progress_known = True
        if self.schedule == "constant":
            return
        fall = 0.5 * (1 + math.cos(math.pi * min(1.0, epoch / epochs / FALLS_OVER)))
        self.value = self.last + (1 - self.last) * fall

    def forward(self) -> float:
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
        return torch.tensor(self.value, dtype=torch.float64)

    def set_extra_state(self, state: Tensor | float) -> None:
        if self.schedule != "constant":
            self.value = float(state)


class Levels(nn.Module):
    """The mean log ḡ of the last batch, for each direction, where that batch was; saved from the host."""

    def __init__(self, directions: int) -> None:
        super().__init__()
        self.values = [torch.zeros(()) for _ in range(directions)]

    def get_extra_state(self) -> Float64[Tensor, " direction"]:
        return torch.stack([value.detach().cpu().double() for value in self.values])

    def set_extra_state(self, state: Float64[Tensor, " direction"]) -> None:
        self.values = list(state.to(torch.float64).unbind())


class NormalizedLoss(KeyedLoss):
    """A loss that keeps log u of each sample, one for each direction; `SogCLRLoss` describes the arguments."""

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
        **options: Unpack[KeyedLossOptions],
    ) -> None:
        super().__init__(num_samples, **options)
        self.two_way = two_way
        self.gamma = Gamma(gamma, gamma_schedule)
        relative = require_choice("average", average, get_args(Average)) == "relative"
        self.levels = Levels(1 + two_way) if relative and not official else None
        self.tables = nn.ModuleList(
            RowTable(num_samples, 1, logarithms=True, starts_at_zero=official) for _ in range(1 + self.two_way)
        )

    @property
    def log_u(self) -> Float[Tensor, "direction sample"]:
        """log u of each sample, at the level of the last batch but not balanced; 0 for one not seen yet."""
        stored = first_column(self.tables)
        if self.levels is None:
            return stored
        seen = torch.stack([table.get_buffer("seen") for table in self.tables])
        return torch.where(seen, stored + torch.stack([level.to(stored) for level in self.levels.values])[:, None], 0)

    def log_normalizer(
        self, pairs: Pairs, log_mean: Float[Tensor, " query"], *, shared: bool = False, previous: bool = False
    ) -> Float[Tensor, " query"]:
        """Return log u of each query's sample after this batch, and keep it where the call may write."""
        gamma, table, index = self.gamma(), table_of(self.tables, pairs), query_ids(pairs)
        values = log_mean.detach()[:, None].to(table.rows.dtype)
        entries = values.masked_fill(~pairs.valid[:, None], torch.nan)  # which means and tables leave out

        def blended(index: EntryIndex, entries: EntryValues) -> EntryValues:
            new = table.mean(index, entries)[0] if shared else entries
            after = table.blended(index, new, rate=gamma, batch=ids)
            before, seen = table.read(index)
            return torch.where(seen[:, None], before, after) if previous else after

        ids, everyone = index, entries
        if writes(self):
            ids, everyone = table.gathered(index, entries, is_shared=pairs.is_shared)
        if self.levels is None:
            normalizer = blended(index, entries)
        else:
            level = mean_of_all(everyone)
            everyone = everyone - level
            of_everyone = blended(ids, everyone)
            normalizer = of_everyone if ids is index else blended(index, entries - level)
            normalizer = normalizer + level + mean_of_all(everyone - of_everyone, logarithms=True)
        if writes(self):
            table.update(ids, everyone, rate=gamma, is_shared=True)
            if self.levels is not None:
                self.levels.values[pairs.side] = level
        return torch.where(pairs.valid[:, None], normalizer, values)[:, 0].to(log_mean.dtype)


def mean_of_all(values: EntryValues, *, logarithms: bool = False) -> Float[Tensor, ""]:
    if len(values) == 0:
        return values.new_zeros(())
    index = torch.zeros(len(values), dtype=torch.int64, device=values.device)
    mean, is_finite = (log_mean_by_row if logarithms else mean_by_row)(index, values)
    return torch.where(is_finite[0], mean[0, 0], 0)


def table_of(tables: nn.ModuleList, pairs: Pairs) -> RowTable:
    table = tables[pairs.side]
    assert isinstance(table, RowTable)
    return table


def first_column(tables: nn.ModuleList) -> Float[Tensor, "direction sample"]:
    return torch.stack([table.get_buffer("rows")[:, 0] for table in tables])


Update = Literal["momentum", "adam"]


class IndividualTemperatures(nn.Module):
    def __init__(
        self,
        beside: nn.ModuleList,
        temperature: Number,
        *,
        bounds: tuple[float, float],
        rate: Number,
        update: Update,
        beta: Number | None = None,
        clip: Number | None,
    ) -> None:
        super().__init__()
        start = require_within("temperature", require_number("temperature", temperature), bounds)
        self.bounds = bounds
        self.rate = require_number("temperature_lr", rate)
        self.update = require_choice("temperature_update", update, get_args(Update))
        beta = (0.9 if update == "momentum" else 0.1) if beta is None else beta
        self.beta = require_number("temperature_beta", beta, "(0, 1]")
        self.clip = None if clip is None else require_number("temperature_clip", clip)
        row = torch.tensor([start, 0.0] if update == "momentum" else [start, 0.0, 0.0, 0.0])
        self.tables = nn.ModuleList()
        for normalizers in beside:
            assert isinstance(normalizers, RowTable)
            table = RowTable(len(normalizers.rows), len(row), start=row)
            table.seen.fill_(False)  # True once the sample's τ has moved
            self.tables.append(table)

    @property
    def values(self) -> Float[Tensor, "direction sample"]:
        """τ of each sample."""
        return first_column(self.tables)

    @property
    def learned_temperature(self) -> Float[Tensor, ""]:
        return self.values.mean()

    def forward(self, pairs: Pairs) -> Float[Tensor, " query"]:
        return table_of(self.tables, pairs).read(query_ids(pairs))[0][:, 0].to(pairs.similarity.dtype)

    @torch.no_grad()
    def step(self, pairs: Pairs, gradient: Float[Tensor, " query"]) -> None:
        """Move τ of the valid queries' samples, each down the mean of the gradients of its queries."""
        table, rows = table_of(self.tables, pairs), pairs.valid_rows
        index, gradients = query_ids(pairs)[rows], gradient[rows][:, None].to(table.rows.dtype)
        index, gradients = table.gathered(index, gradients, is_shared=pairs.is_shared)
        if len(index) == 0:
            return
        mean, finite = table.mean(index, gradients)
        if self.clip is not None:
            mean = mean.clamp(-self.clip, self.clip)
        rows, _ = table.read(index)
        temperature, average = rows[:, :1], rows[:, 1:2].lerp(mean, self.beta)
        if self.update == "momentum":
            moved, moments = temperature - self.rate * average, [average]
        else:
            square, steps = rows[:, 2:3].lerp(mean.square(), 0.001), rows[:, 3:] + 1
            first, second = average / (1 - (1 - self.beta) ** steps), square / (1 - 0.999**steps)
            moved, moments = temperature - self.rate * first / (second.sqrt() + 1e-8), [average, square, steps]
        table.write(index, torch.cat([moved.clamp(*self.bounds), *moments], dim=1), finite)


class RobustLoss(NormalizedLoss):
    """What iSogCLR and FastCLIP share: ḡ of h = s⁻ − s⁺, with one τ or one for each sample, and ρ (0 for none)."""

    temperature: Temperature | IndividualTemperatures
    rho: float
    weighted_pull: bool
    of_similarity = False  # ḡ is of s⁻, not of h
    rho_checked = False

    @property
    def temperatures(self) -> Float[Tensor, "*sample"]:
        """τ of each sample [sample], [direction, sample] of a two-way loss; a scalar where one τ is for all."""
        if isinstance(self.temperature, IndividualTemperatures):
            return self.temperature.values if self.two_way else self.temperature.values[0]
        return torch.as_tensor(self.temperature()).detach()

    def temperature_of(self, pairs: Pairs) -> AnyTemperature:
        """Return τ of each query's sample, or the one τ of all with its gradient; check ρ at the first batch."""
        if self.training and self.rho and not self.rho_checked:
            self.rho_checked = check_rho(pairs, self.rho)
        individual = isinstance(self.temperature, IndividualTemperatures)
        temperature: AnyTemperature = self.temperature(pairs) if individual else self.temperature()
        return temperature

    def relative_log_mean(
        self, pairs: Pairs, temperature: AnyTemperature
    ) -> tuple[Float[Tensor, " query"], Float[Tensor, " query"] | int]:
        """Return log ḡ, through which s⁺ has a gradient if `weighted_pull`, and s⁺ − s⁺, which has it otherwise."""
        pull, log_mean = attraction(pairs), log_mean_exp(pairs, temperature)
        if self.of_similarity:
            return log_mean, pull
        log_mean = log_mean - (pull if self.weighted_pull else pull.detach()) / temperature
        return log_mean, 0 if self.weighted_pull else pull - pull.detach()

    def step_temperatures(
        self, pairs: Pairs, tau: AnyTemperature, log_mean: Float[Tensor, " query"], log_u: Float[Tensor, " query"]
    ) -> None:
        """Move each query's τ, where it has one, down log u + ρ − (ḡ/u)·E_w[h]/τ, w ∝ exp(h/τ) over its negatives."""
        if not writes(self) or not isinstance(self.temperature, IndividualTemperatures):
            return
        with torch.no_grad():
            relative = pairs.similarity if self.of_similarity else pairs.similarity - attraction(pairs)[:, None]
            count = pairs.negative_count.clamp(min=1).to(relative.dtype)
            log_weight = relative / column(tau) - (log_mean + count.log())[:, None]
            mean = (log_weight.masked_fill(~pairs.negative, -torch.inf).exp() * relative).sum(dim=1)
            gradient = log_u + self.rho - (log_mean - log_u).exp() * mean / tau
        self.temperature.step(pairs, gradient)


def check_rho(pairs: Pairs, rho: float) -> bool:
    """Return whether the batch has a valid query; warn if no weights of its negatives diverge from uniform by ρ."""
    if len(pairs.valid_rows) == 0:
        return False
    # counted on the host, by label: a miner may leave fewer, none leaves more
    labels, ref_labels = pairs.host_query_labels, pairs.host_reference_labels.sort(dim=0).values
    same = count_equal(labels, ref_labels)[1] if pairs.host_positive is None else pairs.host_positive.sum(dim=1)
    most = len(pairs.host_reference_labels) - int(same.min())
    if rho >= math.log(most):
        warnings.warn(
            f"rho={rho:g} is not below log({most}) = {math.log(most):.3g}, the most that weights of the "
            f"batch's {most} negatives can diverge from uniform ones: every temperature will fall to its lower "
            "bound; take a smaller rho or larger batches",
            AurankWarning,
            stacklevel=2,
        )
    return True

"""A temperature for each sample, moved down a gradient of its own within bounds (iSogCLR, FastCLIP v2)."""

import math
import warnings
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from aurank.errors import AurankWarning, UserError
from aurank.losses.core.checks import Number, require_choice, require_fraction, require_positive
from aurank.losses.core.keyed_loss import query_ids
from aurank.losses.core.log_mean_exp import AnyTemperature, attraction, column, log_mean_exp
from aurank.losses.core.pairs import Pairs, count_equal
from aurank.losses.core.row_table import RowTable, writes
from aurank.losses.core.temperature import Temperature
from aurank.losses.global_contrastive._normalizer import NormalizedLoss, first_column, table_of

Update = Literal["momentum", "adam"]
WATCH_EVERY = 1000  # steps between looks at the bounds: each makes the host wait for the device
WATCH_FIRST = 100  # before that, as a training may be over by then


class IndividualTemperatures(nn.Module):
    """τ of each sample, for each direction: tables of τ and of the averages of its gradient.

    Args:
        beside: the tables of the normalisers, of the same samples and directions, in the same place.
        temperature: the first τ of every sample.
        bounds: least and greatest τ, onto which each step is projected.
        rate: the step η.
        update: "momentum", u ← (1 − β)·u + β·G and τ ← Π[τ − η·u] (Alg. 1-2 of iSogCLR), or "adam", with the average of
            G² at the share 0.001 and both averages corrected by the sample's own number of steps.
        beta: β, the share of the new gradient; None: 0.9, for "adam" 0.1.
        clip: G is clipped to [−clip, clip]; None leaves it.
    """

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
        start = require_positive("temperature", temperature)
        if not bounds[0] <= start <= bounds[1]:
            raise UserError(f"temperature must lie within temperature_bounds={bounds}, got {temperature!r}")
        self.bounds = bounds
        self.rate = require_positive("temperature_lr", rate)
        self.update = require_choice("temperature_update", update, get_args(Update))
        beta = (0.9 if update == "momentum" else 0.1) if beta is None else beta
        self.beta = require_fraction("temperature_beta", beta, one=True)
        self.clip = None if clip is None else require_positive("temperature_clip", clip)
        row = torch.tensor([start, 0.0] if update == "momentum" else [start, 0.0, 0.0, 0.0])
        self.tables = nn.ModuleList()
        for other in beside:
            assert isinstance(other, RowTable)
            table = RowTable(len(other.rows), len(row), start=row, on_host=other.on_host)
            table.seen.fill_(False)  # True once the sample's τ has moved
            self.tables.append(table)
        self.steps = 0
        self.warned = False

    @property
    def values(self) -> Float[Tensor, "direction sample"]:
        """τ of each sample."""
        return first_column(self.tables)

    @property
    def learned_temperature(self) -> Float[Tensor, ""]:
        """The mean τ."""
        return self.values.mean()

    def forward(self, pairs: Pairs) -> Float[Tensor, " query"]:
        """Return τ of each query's sample, without a gradient."""
        return table_of(self.tables, pairs).read(query_ids(pairs))[0][:, 0].to(pairs.similarity.dtype)

    @torch.no_grad()
    def step(self, pairs: Pairs, gradient: Float[Tensor, " query"]) -> None:
        """Move τ of the valid queries' samples, each down the mean of the gradients of its queries.

        With torch.distributed the queries of all ranks count, and every rank must call. A gradient that is not finite
        is left out.
        """
        table, rows = table_of(self.tables, pairs), pairs.valid_rows
        index, gradients = query_ids(pairs)[rows], gradient[rows][:, None].to(table.rows.dtype)
        index, gradients = table.gathered(index, gradients, is_shared=pairs.is_shared)
        if len(index) == 0:
            return
        mean, finite = table.mean(index, gradients)
        if self.clip is not None:
            mean = mean.clamp(-self.clip, self.clip)
        table.write(index, self._moved(table.read(index)[0], mean), finite)
        if pairs.side == len(self.tables) - 1:  # after the last direction nothing is read any more
            self._warn_at_bounds()

    def _moved(self, rows: Float[Tensor, "entry width"], gradient: Float[Tensor, "entry 1"]) -> Tensor:
        temperature, average = rows[:, :1], rows[:, 1:2].lerp(gradient, self.beta)
        if self.update == "momentum":
            return torch.cat([(temperature - self.rate * average).clamp(*self.bounds), average], dim=1)
        square, steps = rows[:, 2:3].lerp(gradient.square(), 0.001), rows[:, 3:] + 1
        first, second = average / (1 - (1 - self.beta) ** steps), square / (1 - 0.999**steps)
        moved = temperature - self.rate * first / (second.sqrt() + 1e-8)
        return torch.cat([moved.clamp(*self.bounds), average, square, steps], dim=1)

    def _warn_at_bounds(self) -> None:
        """Warn once where most temperatures are at a bound."""
        self.steps += 1
        every = WATCH_FIRST if self.steps < WATCH_EVERY else WATCH_EVERY
        if self.warned or self.steps % every or torch.compiler.is_compiling():
            return
        moved = self.values[torch.stack([table.get_buffer("seen") for table in self.tables])]
        for name, bound in zip(("lower", "upper"), self.bounds, strict=True):
            share = float((moved == bound).double().mean())
            if share > 0.5:
                self.warned = True
                remedy = "a smaller rho lets them rise" if name == "lower" else "a greater rho lets them fall"
                warnings.warn(
                    f"{share:.0%} of the temperatures are at their {name} bound, {bound:g}: {remedy}, or move "
                    "temperature_bounds",
                    AurankWarning,
                    stacklevel=2,
                )


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
        found: AnyTemperature = self.temperature(pairs) if individual else self.temperature()
        return found

    def relative_log_mean(
        self, pairs: Pairs, temperature: AnyTemperature
    ) -> tuple[Float[Tensor, " query"], Float[Tensor, " query"] | int]:
        """Return log ḡ, through which s⁺ has a gradient if `weighted_pull`, and s⁺ − s⁺, which has it otherwise.

        LibAUC's ḡ is of exp(s⁻/τ), and all of s⁺ is beside it.
        """
        pull, log_mean = attraction(pairs), log_mean_exp(pairs, temperature)
        if self.of_similarity:
            return log_mean, pull
        log_mean = log_mean - (pull if self.weighted_pull else pull.detach()) / temperature
        return log_mean, 0 if self.weighted_pull else pull - pull.detach()

    def step_temperatures(
        self, pairs: Pairs, tau: AnyTemperature, log_mean: Float[Tensor, " query"], log_u: Float[Tensor, " query"]
    ) -> None:
        """Move each query's τ, where it has one, down log u + ρ − (ḡ/u)·E_w[h]/τ, w ∝ exp(h/τ) over its negatives.

        Source: Eq. 13 of iSogCLR, https://arxiv.org/abs/2305.11965, without 1/n, which belongs to the rate.
        """
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
    same = count_equal(pairs.host_query_labels, pairs.host_reference_labels.sort().values)[1]
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

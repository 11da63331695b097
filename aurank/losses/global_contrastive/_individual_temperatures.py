"""A temperature for each sample, moved down a gradient of its own within bounds (iSogCLR, FastCLIP v2)."""

import warnings
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from aurank.errors import AurankWarning
from aurank.losses.core.keyed_loss import keys
from aurank.losses.core.log_mean_exp import stacked
from aurank.losses.core.pairs import Pairs
from aurank.losses.core.row_table import RowTable

Update = Literal["momentum", "adam"]
WATCH_EVERY = 1000  # steps between looks at the bounds: each makes the host wait for the device
WATCH_FIRST = 100  # before that, as a training may be over by then


class IndividualTemperatures(nn.Module):
    """τ of each sample, for each direction, and the step that moves it; tables of τ and of its gradient's averages.

    temperature: the first τ of every sample. bounds: least and greatest τ, onto which each step is projected.
    rate: the step η. update: "momentum", u ← (1 − β)·u + β·G and τ ← Π[τ − η·u] (001, Alg. 1-2), or "adam", with the
    average of G² at the share 0.001 and both averages corrected by the sample's own number of steps.
    beta: β, the share of the new gradient: 1 less what momentum usually means.
    clip: G is put into [−clip, clip]; None leaves it.
    """

    def __init__(
        self,
        num_samples: int,
        temperature: float,
        *,
        bounds: tuple[float, float],
        rate: float,
        update: Update,
        beta: float,
        clip: float | None,
        two_way: bool,
    ) -> None:
        super().__init__()
        self.bounds, self.rate, self.update, self.beta, self.clip = bounds, rate, update, beta, clip
        start = torch.zeros(2 if update == "momentum" else 4)
        start[0] = temperature
        self.tables = nn.ModuleList(RowTable(num_samples, len(start), start=start) for _ in range(1 + two_way))
        for table in self.tables:
            table.get_buffer("seen").fill_(False)  # what is seen here is a step
        self.steps = 0
        self.warned = False

    @property
    def values(self) -> Float[Tensor, "direction sample"]:
        """τ of each sample."""
        return stacked(self.tables)

    @property
    def learnt(self) -> Float[Tensor, ""]:
        """The mean τ as it stands."""
        return self.values.mean()

    def forward(self, pairs: Pairs) -> Float[Tensor, " query"]:
        """τ of each query's sample, without a gradient."""
        return self._table(pairs).read(keys(pairs))[0][:, 0].to(pairs.similarity.dtype)

    @torch.no_grad()
    def descend(self, pairs: Pairs, gradient: Float[Tensor, " query"]) -> None:
        """Nothing; moves τ of the valid queries' samples, each down the mean of the gradients of its queries.

        With torch.distributed the queries of all ranks count, and every rank must call. A gradient that is not finite
        is left out.
        """
        table, rows = self._table(pairs), pairs.valid_rows
        index, gradients = keys(pairs)[rows], gradient[rows][:, None].to(table.rows.dtype)
        index, gradients = table.gathered(index, gradients, is_shared=pairs.is_shared)
        if len(index) == 0:
            return
        mean, finite = table.mean(index, gradients)
        if self.clip is not None:
            mean = mean.clamp(-self.clip, self.clip)
        table.write(index, self._moved(table.read(index)[0], mean), finite)
        if pairs.side == len(self.tables) - 1:  # the last direction, so that nothing is read after
            self._watch()

    def _table(self, pairs: Pairs) -> RowTable:
        table = self.tables[pairs.side]
        assert isinstance(table, RowTable)
        return table

    def _moved(self, rows: Float[Tensor, "entry width"], gradient: Float[Tensor, "entry 1"]) -> Tensor:
        """The rows after a step down the gradient."""
        temperature, average = rows[:, :1], rows[:, 1:2].lerp(gradient, self.beta)
        if self.update == "momentum":
            return torch.cat([(temperature - self.rate * average).clamp(*self.bounds), average], dim=1)
        square, steps = rows[:, 2:3].lerp(gradient.square(), 0.001), rows[:, 3:] + 1
        first, second = average / (1 - (1 - self.beta) ** steps), square / (1 - 0.999**steps)
        moved = temperature - self.rate * first / (second.sqrt() + 1e-8)
        return torch.cat([moved.clamp(*self.bounds), average, square, steps], dim=1)

    def _watch(self) -> None:
        """Nothing; warns once where most temperatures have come to a bound."""
        self.steps += 1
        every = WATCH_FIRST if self.steps < WATCH_EVERY else WATCH_EVERY
        if self.warned or self.steps % every or torch.compiler.is_compiling():
            return
        values = self.values
        found = values[torch.stack([table.get_buffer("seen") for table in self.tables])]
        for name, bound in zip(("lower", "upper"), self.bounds, strict=True):
            share = float((found == bound).double().mean())
            if share > 0.5:
                self.warned = True
                remedy = "a smaller rho lets them rise" if name == "lower" else "a greater rho lets them fall"
                warnings.warn(
                    f"{share:.0%} of the temperatures are at their {name} bound, {bound:g}: {remedy}, or move "
                    "temperature_bounds",
                    AurankWarning,
                    stacklevel=2,
                )

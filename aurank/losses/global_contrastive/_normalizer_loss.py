"""NormalizerLoss: losses whose normaliser is a moving average for each sample, kept in tables."""

from collections.abc import Callable
from typing import Literal, Unpack, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from aurank.losses.core.checks import Number, refuse_unused, require_choice, require_flag
from aurank.losses.core.keyed_loss import KeyedLoss, KeyedLossOptions
from aurank.losses.core.log_mean_exp import moving_normalizer, normalizer_tables, stacked
from aurank.losses.core.loss_inputs import Inputs
from aurank.losses.core.pairs import Pairs
from aurank.losses.core.row_table import RowTable, writes
from aurank.losses.global_contrastive._gamma import Every, Gamma, Schedule

Residence = Literal["device", "host"]


class NormalizerLossOptions(KeyedLossOptions, total=False):
    """What these losses take beside their own arguments, and pass on to `NormalizerLoss`."""

    gamma_every: Every
    gamma_decay: Number
    state_on: Residence


class NormalizerLoss(KeyedLoss):
    """A loss with u of each sample: the moving average of ḡ, the mean of exp(s/τ) over the negatives of a batch.

    gamma: γ, the share of the new ḡ in u. gamma_schedule, gamma_every, gamma_decay: as in `Gamma`.
    two_way: True takes another modality as references, whose rows are named by `ref_ids`; each direction has its own u.
    state_on: "device" (default) moves the state with the loss; "host" leaves it in host memory, where there is more of
        it: a batch's rows are fetched before and written back after, without waiting.
    """

    def __init__(
        self,
        num_samples: int,
        gamma: Number,
        *,
        gamma_schedule: Schedule = "constant",
        gamma_every: Every = "epoch",
        gamma_decay: Number = 0.5,
        two_way: bool = False,
        state_on: Residence = "device",
        **options: Unpack[KeyedLossOptions],
    ) -> None:
        super().__init__(num_samples, **options)
        self.gamma = Gamma(gamma, gamma_schedule, every=gamma_every, decay=gamma_decay)
        if gamma_schedule == "constant":
            refuse_unused(NormalizerLoss, 'gamma_schedule="constant"', gamma_every=gamma_every, gamma_decay=gamma_decay)
        self.two_way = require_flag("two_way", two_way)
        self.state_on = require_choice("state_on", state_on, get_args(Residence))
        self.tables = normalizer_tables(num_samples, two_way=two_way)

    @property
    def log_u(self) -> Float[Tensor, "direction sample"]:
        """log u of each sample, for each direction; zero for one not seen yet."""
        return stacked(self.tables)

    def log_normalizer(
        self, pairs: Pairs, log_mean: Float[Tensor, " query"], *, shared: bool = False, previous: bool = False
    ) -> Float[Tensor, " query"]:
        """log u of each query's sample with this batch's ḡ gone into it, for good in training mode."""
        return moving_normalizer(
            self.tables, pairs, log_mean, gamma=self.gamma(), shared=shared, previous=previous, write=writes(self)
        )

    def prepared(self, inputs: Inputs) -> Inputs:
        """The inputs with ids, whose rows of a state on the host are sent for."""
        inputs = super().prepared(inputs)
        assert inputs.ids is not None
        ids = inputs.ids if not self.two_way or inputs.ref_ids is None else torch.cat([inputs.ids, inputs.ref_ids])
        for part in self.modules():
            if isinstance(part, RowTable):
                part.prefetch(ids, inputs.embeddings.device)
        return inputs

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "NormalizerLoss":
        for part in self.modules():
            if isinstance(part, RowTable):
                part.on_host = self.state_on == "host"
        super()._apply(fn, recurse)
        return self

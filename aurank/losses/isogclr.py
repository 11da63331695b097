"""iSogCLR (Qiu et al., ICML 2023): SogCLR with a temperature for each sample, found by distributional robustness."""

import math
import warnings
from collections.abc import Sequence
from typing import Unpack, get_args

import torch
from jaxtyping import Float
from pytorch_metric_learning.distances import CosineSimilarity
from torch import Tensor, nn

from aurank.errors import UserError
from aurank.losses.checks import Number, require_choice, require_fraction, require_positive
from aurank.losses.gamma import Every, Gamma, Schedule
from aurank.losses.global_contrast import (
    attraction,
    column,
    descend,
    log_mean_exp,
    moving_normalizer,
    normalizer_tables,
    stacked,
)
from aurank.losses.individual_temperatures import IndividualTemperatures, Update
from aurank.losses.keyed import KeyedLoss, KeyedLossOptions
from aurank.losses.pairs import Pairs, count_equal
from aurank.losses.temperature import Temperature, require_bounds


@torch.no_grad()
def temperature_gradient(
    pairs: Pairs,
    temperature: Float[Tensor, " query"],
    log_mean: Float[Tensor, " query"],
    log_normalizer: Float[Tensor, " query"],
    *,
    rho: float,
) -> Float[Tensor, " query"]:
    """dF/dτ of each query: log u + ρ − (ḡ/u)·E_w[h]/τ, with w ∝ exp(h/τ) over the batch's negatives. 001, Eq. 13.

    Without the paper's 1/n, which belongs to the rate. log_mean: log ḡ, of h = s − s⁺. log_normalizer: log u.
    """
    relative = pairs.similarity - attraction(pairs)[:, None]
    log_weight = relative / column(temperature) - log_mean[:, None] - pairs.negative_count.clamp(min=1).log()[:, None]
    mean = (log_weight.masked_fill(~pairs.negative, -torch.inf).exp() * relative).sum(dim=1)
    return log_normalizer + rho - (log_mean - log_normalizer).exp() * mean / temperature


class RobustLoss(KeyedLoss):
    """F = τ·(log(ε + u) + ρ) of each query, u the moving average of ḡ = mean exp((s⁻ − s⁺)/τ): what iSogCLR and
    FastCLIP have in common. A subclass's constructor sets what is declared here.
    """

    temperature: Temperature | IndividualTemperatures
    rho: float  # 0 where no temperature is learned
    gamma: Gamma
    tables: nn.ModuleList
    epsilon: float = 0.0
    weighted_pull: bool = False
    multiplied: bool = True  # False leaves out the factor τ, and ρ with it
    counted_twice: bool = False  # True doubles what the gradient of a global τ owes to ḡ
    told: bool = False

    @property
    def temperatures(self) -> Float[Tensor, "*sample"]:
        """τ of each sample, Tensor[sample], Tensor[direction, sample] of a two-way loss; a scalar where τ is global."""
        if isinstance(self.temperature, IndividualTemperatures):
            return self.temperature.values if self.two_way else self.temperature.values[0]
        return torch.as_tensor(self.temperature()).detach()

    @property
    def log_u(self) -> Float[Tensor, "direction sample"]:
        """log u of each sample, for each direction; zero for one not seen yet."""
        return stacked(self.tables)

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        """τ·(log(ε + u) + ρ). The loss is of τ as it was before this batch's step."""
        self._warn_of_rho(pairs)
        source = self.temperature
        temperature: Tensor | float = source(pairs) if isinstance(source, IndividualTemperatures) else source()
        inner = temperature
        if self.counted_twice and isinstance(temperature, Tensor):
            inner = 2 * temperature - temperature.detach()
        pull = attraction(pairs)
        log_mean = log_mean_exp(pairs, inner) - (pull if self.weighted_pull else pull.detach()) / inner
        log_normalizer = moving_normalizer(self.tables, pairs, log_mean, gamma=self.gamma(), write=self.training)
        if self.epsilon:
            log_normalizer = torch.logaddexp(log_normalizer, torch.full_like(log_normalizer, math.log(self.epsilon)))
        if isinstance(source, IndividualTemperatures) and self.training:
            assert isinstance(temperature, Tensor)
            source.descend(pairs, temperature_gradient(pairs, temperature, log_mean, log_normalizer, rho=self.rho))
        if not self.multiplied:
            return descend(log_mean, log_normalizer, 1.0)
        pulled = 0 if self.weighted_pull else pull - pull.detach()
        return descend(log_mean, log_normalizer, temperature) + temperature * self.rho - pulled

    def _warn_of_rho(self, pairs: Pairs) -> None:
        if self.told or not self.rho or not self.training or len(pairs.valid_rows) == 0:
            return
        self.told = True
        # counted on the host, by label: a miner may leave fewer, none leaves more
        same = count_equal(pairs.host_query_labels, pairs.host_reference_labels.sort().values)[1]
        most = len(pairs.host_reference_labels) - int(same.min())
        if self.rho >= math.log(most):
            warnings.warn(
                f"rho={self.rho:g} is not below log({most}) = {math.log(most):.3g}, the most that weights of the "
                f"batch's {most} negatives can diverge from uniform ones: every temperature will fall to its lower "
                "bound; take a smaller rho or larger batches",
                stacklevel=2,
            )


class ISogCLRLoss(RobustLoss):
    """τ_i·(log u_i + ρ) of each query: the contrastive loss over all negatives, with a temperature for each sample.

    It is the dual of RGCL (Eq. 6-7), the greatest mean of h = s⁻ − s⁺ under weights of the negatives whose divergence
    KL from uniform is at most ρ: where τ_i comes to rest within its bounds, the divergence is ρ. u_i is the moving
    average of mean exp(h/τ_i), kept as a logarithm, the first value copied. In training mode the loss of τ_i is taken
    first, then τ_i moves down G = log u + ρ − (ḡ/u)·E_w[h]/τ (Eq. 13 without 1/n, which `temperature_lr` takes in) and
    is projected on its bounds (Alg. 1-2); views of a sample share τ_i, and their gradients are averaged. In evaluation
    mode nothing is written, and the value is the one that training mode would give. Several positives stand in for the
    paper's one by their mean similarity.

    Deviations: Eq. 13-14 are printed with u before this batch went in; here it has, as in the authors' code. Their code
    for one modality averages exp(s/τ) in place of exp(h/τ).

    num_samples: rows of the data set, which `ids` (or labels, in their absence) name.
    rho: ρ > 0, below the logarithm of the number of negatives. The paper has 0.1 to 4 on images, about 6 on image and
        text at batches of 512.
    temperature: the first τ of every sample. temperature_bounds: least and greatest; None is the bound of Lemma 1, the
        least + 2/ρ (none for a distance other than cosine similarity).
    temperature_lr: step of τ (0.01 unless given). temperature_update: "momentum" as Alg. 1, or "adam".
        temperature_beta: the share β1 of the new gradient in its average (0.9 unless given, 0.1 for "adam"): 1 less
        what momentum usually means. temperature_clip: greatest |G|; None leaves it.
    individual: False has one τ for all samples, a parameter of the loss that the training's optimiser moves; the
        arguments of the step are then refused.
    gamma: share of the new ḡ in u, β0 of Eq. 12. gamma_schedule, gamma_every, gamma_decay: as in `Gamma`.
    weighted_pull: False (default) pulls the positive with weight 1, which is what the objective's gradient gives it.
        True does it with ḡ/u, as Eq. 14 estimates that weight: at small τ nothing at all is left of the gradient in a
        batch that is easier than earlier ones.
    two_way: both directions between two modalities (App. B), each with u and τ of its own.

    State: `temperatures`, Tensor[sample], and `log_u`, Tensor[direction, sample].
    """

    def __init__(
        self,
        num_samples: int,
        rho: Number = 0.3,
        *,
        temperature: Number = 0.7,
        temperature_bounds: Sequence[Number | None] = (0.05, None),
        temperature_lr: Number | None = None,
        temperature_update: Update = "momentum",
        temperature_beta: Number | None = None,
        temperature_clip: Number | None = None,
        individual: bool = True,
        gamma: Number = 0.9,
        gamma_schedule: Schedule = "constant",
        gamma_every: Every = "epoch",
        gamma_decay: Number = 0.5,
        weighted_pull: bool = False,
        two_way: bool = False,
        **options: Unpack[KeyedLossOptions],
    ) -> None:
        super().__init__(num_samples, two_way=two_way, **options)
        self.rho = require_positive("rho", rho)
        self.gamma = Gamma(gamma, gamma_schedule, every=gamma_every, decay=gamma_decay)
        self.weighted_pull = weighted_pull
        self.tables = normalizer_tables(num_samples, two_way=two_way)
        low, high = require_bounds("temperature_bounds", temperature_bounds)
        if temperature_bounds[1] is None and isinstance(self.distance, CosineSimilarity):
            high = low + 2 / self.rho
        if not individual:
            given = {"temperature_lr": temperature_lr, "temperature_beta": temperature_beta}
            given |= {"temperature_clip": temperature_clip}
            for name, value in given.items():
                if value is not None:
                    raise UserError(
                        f"{name}={value!r} is of temperatures of each sample; with individual=False an optimiser moves "
                        "the one temperature: leave it out, and set optim.temperature_lr"
                    )
            bounds = (low, None if high == math.inf else high)
            self.temperature = Temperature(temperature, learnable=True, bounds=bounds)
            return
        update = require_choice("temperature_update", temperature_update, get_args(Update))
        beta = (0.9 if update == "momentum" else 0.1) if temperature_beta is None else temperature_beta
        self.temperature = IndividualTemperatures(
            num_samples,
            require_within(temperature, (low, high)),
            bounds=(low, high),
            rate=require_positive("temperature_lr", 0.01 if temperature_lr is None else temperature_lr),
            update=temperature_update,
            beta=require_fraction("temperature_beta", beta, one=True),
            clip=None if temperature_clip is None else require_positive("temperature_clip", temperature_clip),
            two_way=two_way,
        )


def require_within(temperature: Number, bounds: tuple[float, float]) -> float:
    """The temperature; UserError unless it lies within the bounds."""
    found = require_positive("temperature", temperature)
    if not bounds[0] <= found <= bounds[1]:
        raise UserError(f"temperature must lie within temperature_bounds={bounds}, got {temperature!r}")
    return found

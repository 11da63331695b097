"""SogCLR, iSogCLR and FastCLIP: the contrastive loss over all negatives of the data set, from small batches."""

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Unpack, get_args

from jaxtyping import Float
from pytorch_metric_learning.distances import CosineSimilarity
from torch import Tensor

from aurank.losses.core.checks import Number, Share, SoftmaxTemperature, require_number
from aurank.losses.core.pair_loss import KeyedLossOptions
from aurank.losses.core.pairs import Pairs
from aurank.losses.core.temperature import Temperature, add_epsilon, attraction, log_mean_exp, require_bounds
from aurank.losses.global_contrastive._normalizer import (
    Average,
    IndividualTemperatures,
    NormalizedLoss,
    RobustLoss,
    Schedule,
    Update,
    surrogate_loss,
)
from aurank.names import require_choice
from aurank.ranges import Range

Normalizer = Literal["view", "shared"]


class SogCLRLoss(NormalizedLoss):
    """−s⁺ + τ·log u of each query: the contrastive loss whose normaliser u is a moving average over earlier batches.

    s⁺ is a weighted mean, ḡ the mean of exp(s⁻/τ) over the negatives of a batch. The gradient is −∇s⁺ + (τ/u)·∇ḡ
    (Alg. 1); the value is comparable between batch sizes. Evaluation mode writes nothing, and gives training's value.

    The paper averages ḡ: u ← (1 − γ)·u + γ·ḡ, the first ḡ copied (`average="plain"`). While a network starts to learn,
    ḡ falls by orders of magnitude, so that u is too large for epochs. The default averages how a sample differs from
    its batch: r ← (1 − γ)·r + γ·ḡ/M, with M the geometric mean of ḡ over the batch, and u = c·M·r, with c such that the
    weights ḡ/u have the mean 1. It is better while a network starts to learn, but γ → 0 does not remove the bias of
    small batches. The paper's average does; docs/claims.md has figures of both.

    State: `log_u`; `tables` in `state_dict`. docs/losses.md has the factors to the gradients of other repositories.

    Args:
        num_samples: rows of the data set, which `ids` (or labels, in their absence) name.
        temperature: τ.
        gamma: γ; 1 is the decoupled loss of the batch alone.
        normalizer: "view" divides the gradient of each view by the blend of its own ḡ with u, as the authors' code does
            (Eq. 5). "shared" divides by the one u of the sample, the blend with the mean over its views (Eq. 9, 10).
        previous_normalizer: True divides by u before this batch, as Eq. 10 is printed; False by the new one, as the
            paper's table and code do.
        gamma_schedule: "cosine" lets γ fall from 1 to `gamma`, epoch by epoch for half of the training;
            the loop then calls `gamma.set_progress`.
        average: "relative" averages ḡ/M, "plain" ḡ itself, as the paper.
        official: True does as LibAUC's GCLoss_v1 (2.0.1) without its clamp of u at 1e-8: it averages ḡ, and copies a
            first ḡ only if no sample of the batch was seen before; otherwise the new u is γ·ḡ.
        two_way: both directions between two modalities (§4), each with a u of its own.

    Source: Yuan et al., ICML 2022, https://arxiv.org/abs/2202.12387.

    Example:
        >>> import torch
        >>> loss = SogCLRLoss(num_samples=4)
        >>> views, images = torch.eye(4).repeat(2, 1), torch.arange(4).repeat(2)
        >>> loss(views, images)  # s⁺ = 1, and log u = 0 as all s⁻ = 0
        tensor(-1.)
    """

    unused: ClassVar = {("official", True): ("normalizer", "previous_normalizer", "two_way")}

    def __init__(
        self,
        num_samples: int,
        temperature: SoftmaxTemperature = 0.1,
        gamma: Share = 0.9,
        *,
        normalizer: Normalizer = "view",
        previous_normalizer: bool = False,
        gamma_schedule: Schedule = "constant",
        average: Average = "relative",
        official: bool = False,
        two_way: bool = False,
        **options: Unpack[KeyedLossOptions],
    ) -> None:
        super().__init__(num_samples, gamma, gamma_schedule, average, two_way=two_way, official=official, **options)
        self.temperature = require_number("temperature", temperature)
        self.normalizer = require_choice("normalizer", normalizer, get_args(Normalizer))
        self.previous_normalizer = previous_normalizer

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        log_mean = log_mean_exp(pairs, self.temperature)
        shared = self.normalizer == "shared"
        log_u = self.log_normalizer(pairs, log_mean, shared=shared, previous=self.previous_normalizer)
        return surrogate_loss(log_mean, log_u, self.temperature) - attraction(pairs)


class ISogCLRLoss(RobustLoss):
    """τ_i·(log u_i + ρ) of each query: the contrastive loss over all negatives, with a temperature for each sample.

    It is the dual of RGCL (Eq. 6-7), the greatest mean of h = s⁻ − s⁺ under weights of the negatives that diverge from
    uniform by at most ρ (KL). Where τ_i comes to rest within its bounds, they diverge by ρ. u_i is the moving average
    of ḡ = mean exp(h/τ_i), as in `SogCLRLoss`; s⁺ is the weighted mean similarity to the positives.

    In training mode the loss at τ_i is computed first. Then τ_i moves down G = log u + ρ − (ḡ/u)·E_w[h]/τ, and is
    projected onto its bounds (Alg. 1-2). Views of a sample share τ_i, and their gradients are averaged.

    Deviations: Eq. 13-14 are printed with u before this batch; here it is the new one, as in the authors' code. Their
    code for two modalities is not reproduced: it counts the positive in ḡ, starts u at 0, pulls as `weighted_pull`
    does, and clips G to [−5, 5].

    State: `temperatures` and `log_u`; `temperature` and `tables` in `state_dict`.

    Args:
        num_samples, gamma, gamma_schedule, average: as in `SogCLRLoss`.
        rho: ρ > 0, below the logarithm of the number of negatives. The paper has 0.1 to 4 on images, about 6 on image
            and text at batches of 512.
        temperature: the first τ of every sample.
        temperature_bounds: least and greatest τ; None is the bound of Lemma 1, the least + 2/ρ (none for a distance
            other than cosine similarity).
        temperature_lr: step of τ (0.01 unless given), the paper's rate without its 1/n.
        temperature_update: "momentum" (unless given) as Alg. 1, or "adam".
        temperature_beta: share β1 of the new gradient in its average, 1 less what momentum usually means (0.9 unless
            given, 0.1 for "adam").
        temperature_clip: greatest |G|; None leaves it.
        individual: False has one τ for all samples, a parameter of the loss that the training's optimiser moves.
        official: True does as LibAUC's GCLoss_v1 with enable_isogclr (2.0.1): ḡ is the mean of exp(s⁻/τ_i); the rest is
            as in `SogCLRLoss`. Its defaults are temperature=0.1, temperature_bounds=(0.05, 0.7). With
            temperature_clip=3 it is the loss of the iSogCLR repository, which has γ = 1 in the first epoch, not copies.
        weighted_pull: False pulls the positive with weight 1, as the objective's gradient does. True with ḡ/u, as
            Eq. 14 estimates that weight: at small τ no gradient is left in a batch that is easier than earlier ones.
        two_way: both directions between two modalities (App. B), each with u and τ of its own.

    Source: Qiu et al., ICML 2023, https://arxiv.org/abs/2305.11965.

    Example:
        >>> import torch
        >>> loss = ISogCLRLoss(num_samples=4, rho=0.3, temperature=0.7)
        >>> loss(torch.eye(4).repeat(2, 1), torch.arange(4).repeat(2))  # 0.7·(−1/0.7 + 0.3)
        tensor(-0.7900)
    """

    unused: ClassVar = {
        ("official", True): ("temperature_update", "individual", "weighted_pull", "two_way"),
        ("individual", False): ("temperature_lr", "temperature_beta", "temperature_clip", "temperature_update"),
    }

    def __init__(
        self,
        num_samples: int,
        rho: Annotated[Number, Range(0.05, 2.0, log=True)] = 0.3,
        *,
        temperature: Annotated[Number, Range(0.05, 1.0, log=True)] = 0.7,
        temperature_bounds: Sequence[Number | None] = (0.05, None),
        temperature_lr: Number | None = None,
        temperature_update: Update | None = None,
        temperature_beta: Number | None = None,
        temperature_clip: Number | None = None,
        individual: bool = True,
        gamma: Share = 0.9,
        gamma_schedule: Schedule = "constant",
        average: Average = "relative",
        official: bool = False,
        weighted_pull: bool = False,
        two_way: bool = False,
        **options: Unpack[KeyedLossOptions],
    ) -> None:
        super().__init__(num_samples, gamma, gamma_schedule, average, two_way=two_way, official=official, **options)
        self.of_similarity = official
        self.rho = require_number("rho", rho)
        self.weighted_pull = weighted_pull
        low, high = require_bounds("temperature_bounds", temperature_bounds)
        if temperature_bounds[1] is None and isinstance(self.distance, CosineSimilarity):
            high = low + 2 / self.rho
        if individual:
            self.temperature = IndividualTemperatures(
                self.tables,
                temperature,
                bounds=(low, high),
                rate=0.01 if temperature_lr is None else temperature_lr,
                update="momentum" if temperature_update is None else temperature_update,
                beta=temperature_beta,
                clip=temperature_clip,
            )
            return
        self.temperature = Temperature(temperature, learnable=True, bounds=(low, None if high == math.inf else high))

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        temperature = self.temperature_of(pairs)
        log_mean, rest_of_pull = self.relative_log_mean(pairs, temperature)
        log_u = self.log_normalizer(pairs, log_mean)
        self.step_temperatures(pairs, temperature, log_mean, log_u)
        return surrogate_loss(log_mean, log_u, temperature) + temperature * self.rho - rest_of_pull


Version = Literal["v0", "v1", "v2", "v3"]

# the authors' τ and ρ for CC3M
DEFAULTS: dict[str, tuple[float, float]] = {"v0": (0.07, 0.0), "v1": (0.07, 0.0), "v2": (0.03, 7.0), "v3": (0.07, 6.5)}


class FastCLIPLoss(RobustLoss):
    """τ·(log(ε + u) + ρ) of each query, u the moving average of ḡ = mean exp((s⁻ − s⁺)/τ), its rate falling from 1.

    Deviations: the authors' repository (fast_clip, commit c3ae1f5) takes the mean of both directions, and has the
    factor τ in v3 alone; docs/losses.md has the factors between the gradients. Its v2 averages the gradient of τ from
    the second epoch on and corrects by epochs; here it is averaged at once, and corrected by a sample's steps.

    State: `temperatures` and `log_u`, as of `ISogCLRLoss`; so is s⁺.

    Args:
        num_samples: rows of the data set, which `ids` (or labels, in their absence) name.
        version: "v0", one learnable τ, and neither the factor τ nor ρ: log(ε + u). "v1", a fixed τ and no ρ: SogCLR
            with this schedule. "v2", a τ for each sample and side, as in iSogCLR, moved by Adam's rule. "v3", one
            learnable τ with ρ, its gradient that of Eq. 13 of the NeuCLIP paper (App. A.3).
        rho: ρ of v2 and v3 (7.0 and 6.5, which need batches of 1,100 and 670): below the logarithm of the number of
            negatives. The authors take 8.5 on CC12M and 16 on LAION-400M.
        temperature: τ, the first one where it is learned: 0.03 for v2, else 0.07. The parameter of v0 and v3 is log τ;
            give it to an optimiser (`optim.temperature_lr`; the authors take 2e-4 on CC3M).
        temperature_bounds: of what is learned, as the authors clamp it.
        temperature_lr: the step of v2 (0.0133).
        gamma: γ at the end (0.2 on CC3M, 0.8 on LAION-400M).
        gamma_schedule: "cosine" falls from 1, epoch by epoch for half of the training.
        epsilon: ε (1e-14 on CC3M and CC12M, 1e-6 on LAION-400M).
        weighted_pull: True pulls the positive with weight ḡ/(ε + u), as the authors' code does and Eq. 4 of the
            NeuCLIP paper has it: at small τ no gradient is left in a batch that is easier than earlier ones. False with
            weight 1, as the objective's gradient does.
        official: True, for v0 and v3, pulls as the authors do, and gives τ their gradient, which counts what comes
            through ḡ twice.
        two_way: True is the sum of both directions; False takes one, against any references.

    Source: Wei et al., 2024, https://arxiv.org/abs/2407.01445.

    Example:
        >>> import torch
        >>> images, texts, rows = torch.eye(4), torch.eye(4), torch.arange(4)
        >>> loss = FastCLIPLoss(num_samples=4, version="v1", gamma=0.8)
        >>> loss.gamma.set_progress(step=0, steps=10, epoch=0, epochs=2.0)
        >>> loss(images, rows, ref_emb=texts, ref_labels=rows)  # s⁻ − s⁺ = −1, in both directions
        tensor(-2.)
    """

    unused: ClassVar = {
        ("version", "v0"): ("rho", "temperature_lr"),
        ("version", "v1"): ("rho", "temperature_lr", "temperature_bounds", "official"),
        ("version", "v2"): ("official",),
        ("version", "v3"): ("temperature_lr",),
    }

    def __init__(
        self,
        num_samples: int,
        version: Version = "v3",
        *,
        rho: Number | None = None,
        temperature: Number | None = None,
        temperature_bounds: Sequence[Number | None] = (0.01, 1.0),
        temperature_lr: Number | None = None,
        gamma: Share = 0.2,
        gamma_schedule: Schedule = "cosine",
        epsilon: Number = 1e-14,
        weighted_pull: bool = True,
        official: bool = False,
        two_way: bool = True,
        **options: Unpack[KeyedLossOptions],
    ) -> None:
        super().__init__(num_samples, gamma, gamma_schedule, "plain", two_way=two_way, **options)
        self.version = require_choice("version", version, get_args(Version))
        default_temperature, default_rho = DEFAULTS[version]
        self.rho = default_rho if rho is None or not default_rho else require_number("rho", rho)
        self.epsilon = require_number("epsilon", epsilon)
        self.weighted_pull = weighted_pull or official
        self.official = official
        first = default_temperature if temperature is None else temperature
        if version != "v2":
            self.temperature = Temperature(first, learnable=version != "v1", bounds=temperature_bounds, scale="log")
            return
        self.temperature = IndividualTemperatures(
            self.tables,
            first,
            bounds=require_bounds("temperature_bounds", temperature_bounds),
            rate=0.0133 if temperature_lr is None else temperature_lr,
            update="adam",
            clip=5.0,
        )

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        temperature = self.temperature_of(pairs)
        constant = temperature.detach() if isinstance(temperature, Tensor) else temperature
        inner = 2 * temperature - constant if self.official else temperature  # τ, with twice its gradient
        log_mean, rest_of_pull = self.relative_log_mean(pairs, inner)
        log_u = add_epsilon(self.log_normalizer(pairs, log_mean), self.epsilon)
        self.step_temperatures(pairs, temperature, log_mean, log_u)
        if self.version == "v0":
            return surrogate_loss(log_mean, log_u, 1.0) - rest_of_pull / constant
        return surrogate_loss(log_mean, log_u, temperature) + temperature * self.rho - rest_of_pull

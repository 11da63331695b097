"""iSogCLR (Qiu et al., ICML 2023): SogCLR with a temperature for each sample, found by distributional robustness."""

import math
from collections.abc import Sequence
from typing import Unpack, get_args

from aurank.errors import UserError
from aurank.losses.core.checks import Number, require_choice, require_fraction, require_positive
from aurank.losses.core.from_pml import CosineSimilarity
from aurank.losses.core.temperature import Temperature, require_bounds
from aurank.losses.global_contrastive._gamma import Schedule
from aurank.losses.global_contrastive._individual_temperatures import IndividualTemperatures, Update
from aurank.losses.global_contrastive._normalizer_loss import NormalizerLossOptions
from aurank.losses.global_contrastive._robust_loss import RobustLoss


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
    for one modality averages exp(s/τ) in place of exp(h/τ), clips G to [−3, 3], has γ = 1 in the first epoch, and adds
    the two views of an image, so that its gradient is twice the one here. Their code for two modalities is not
    reproduced (commit 98aca98): it counts the positive in ḡ, though it divides by the number of negatives; u starts
    from 0 and not from the first ḡ; the positive is pulled as by weighted_pull=True; and G is clipped to [−5, 5].

    num_samples: rows of the data set, which `ids` (or labels, in their absence) name.
    rho: ρ > 0, below the logarithm of the number of negatives. The paper has 0.1 to 4 on images, about 6 on image and
        text at batches of 512.
    temperature: the first τ of every sample. temperature_bounds: least and greatest; None is the bound of Lemma 1, the
        least + 2/ρ (none for a distance other than cosine similarity).
    temperature_lr: step of τ (0.01 unless given). temperature_update: "momentum" (default) as Alg. 1, or "adam".
        temperature_beta: the share β1 of the new gradient in its average (0.9 unless given, 0.1 for "adam"): 1 less
        what momentum usually means. temperature_clip: greatest |G|; None leaves it.
    individual: False has one τ for all samples, a parameter of the loss that the training's optimiser moves; the
        arguments of the step are then refused.
    gamma: share of the new ḡ in u, β0 of Eq. 12. Schedules of it, and state_on: as in `NormalizerLoss`.
    weighted_pull: False (default) pulls the positive with weight 1, which is what the objective's gradient gives it.
        True does it with ḡ/u, as Eq. 14 estimates that weight: at small τ nothing at all is left of the gradient in a
        batch that is easier than earlier ones.
    two_way: both directions between two modalities (App. B), each with u and τ of its own.

    State: `temperatures`, Tensor[sample], and `log_u`, Tensor[direction, sample]: `temperature` and `tables` in
    `state_dict`.
    """

    def __init__(
        self,
        num_samples: int,
        rho: Number = 0.3,
        *,
        temperature: Number = 0.7,
        temperature_bounds: Sequence[Number | None] = (0.05, None),
        temperature_lr: Number | None = None,
        temperature_update: Update | None = None,
        temperature_beta: Number | None = None,
        temperature_clip: Number | None = None,
        individual: bool = True,
        gamma: Number = 0.9,
        gamma_schedule: Schedule = "constant",
        weighted_pull: bool = False,
        two_way: bool = False,
        **options: Unpack[NormalizerLossOptions],
    ) -> None:
        require_positive("rho", rho)
        super().__init__(
            num_samples,
            gamma,
            gamma_schedule=gamma_schedule,
            two_way=two_way,
            rho=rho,
            weighted_pull=weighted_pull,
            **options,
        )
        low, high = require_bounds("temperature_bounds", temperature_bounds)
        if temperature_bounds[1] is None and isinstance(self.distance, CosineSimilarity):
            high = low + 2 / self.rho
        if not individual:
            given: dict[str, object] = {"temperature_lr": temperature_lr, "temperature_beta": temperature_beta}
            given |= {"temperature_clip": temperature_clip, "temperature_update": temperature_update}
            for name, value in given.items():
                if value is not None:
                    raise UserError(
                        f"{name}={value!r} is of temperatures of each sample; with individual=False an optimiser moves "
                        "the one temperature: leave it out, and set optim.temperature_lr"
                    )
            bounds = (low, None if high == math.inf else high)
            self.temperature = Temperature(temperature, learnable=True, bounds=bounds)
            return
        update: Update = "momentum" if temperature_update is None else temperature_update
        require_choice("temperature_update", update, get_args(Update))
        beta = (0.9 if update == "momentum" else 0.1) if temperature_beta is None else temperature_beta
        self.temperature = IndividualTemperatures(
            num_samples,
            require_within(temperature, (low, high)),
            bounds=(low, high),
            rate=require_positive("temperature_lr", 0.01 if temperature_lr is None else temperature_lr),
            update=update,
            beta=require_fraction("temperature_beta", beta, one=True),
            clip=None if temperature_clip is None else require_positive("temperature_clip", temperature_clip),
            two_way=self.two_way,
        )


def require_within(temperature: Number, bounds: tuple[float, float]) -> float:
    """The temperature; UserError unless it lies within the bounds."""
    found = require_positive("temperature", temperature)
    if not bounds[0] <= found <= bounds[1]:
        raise UserError(f"temperature must lie within temperature_bounds={bounds}, got {temperature!r}")
    return found

"""FastCLIP (Wei et al., arXiv 2407.01445): SogCLR for images and texts, four ways to treat the temperature."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Unpack, get_args

from aurank.errors import UserError
from aurank.losses.core.checks import Number, refuse_unused, require_choice, require_positive
from aurank.losses.core.temperature import Temperature, require_bounds
from aurank.losses.global_contrastive._gamma import Schedule
from aurank.losses.global_contrastive._individual_temperatures import IndividualTemperatures
from aurank.losses.global_contrastive._normalizer_loss import NormalizerLossOptions
from aurank.losses.global_contrastive._robust_loss import RobustLoss
from aurank.losses.global_contrastive.isogclr import require_within

Version = Literal["v0", "v1", "v2", "v3"]


class Defaults(NamedTuple):
    """What a version takes where nothing is given: the authors' values for CC3M."""

    temperature: float
    rho: float | None


DEFAULTS = {
    "v0": Defaults(0.07, None),
    "v1": Defaults(0.07, None),
    "v2": Defaults(0.03, 7.0),
    "v3": Defaults(0.07, 6.5),
}


class FastCLIPLoss(RobustLoss):
    """τ·(log(ε + u) + ρ) of each query, u the moving average of ḡ = mean exp((s⁻ − s⁺)/τ), its rate falling from 1.

    version: "v0", one learnable τ, and neither the factor τ nor ρ: log(ε + u). "v1", a fixed τ and no ρ: SogCLR with
        this schedule. "v2", a τ for each sample and side, as iSogCLR has it, moved by Adam's rule. "v3" (default), one
        learnable τ with ρ, its gradient that of Eq. 13 of the NeuCLIP paper (App. A.3).
    rho: ρ of v2 and v3 (7.0 and 6.5, which need batches of 1,100 and 670): below the logarithm of the number of
        negatives. The authors take 8.5 on CC12M and 16 on LAION-400M.
    temperature: τ, the first one where it is learned: 0.03 for v2, else 0.07. The parameter of v0 and v3 is log τ;
        give it to an optimiser (`optim.temperature_lr`; the authors take 2e-4 on CC3M).
    temperature_bounds: of what is learned, as the authors clamp it.
    temperature_lr: the step of v2.
    gamma: the rate at the end (0.2 on CC3M, 0.8 on LAION-400M); gamma_schedule and the
        rest as in `Gamma`, by default from 1 along a cosine, epoch by epoch, for half of the training.
    epsilon: ε (1e-14 on CC3M and CC12M, 1e-6 on LAION-400M).
    weighted_pull: False (default) pulls the positive with weight 1, which is what the objective's gradient gives it;
        True with ḡ/(ε + u), as the authors do: nothing at all is left of the gradient at small τ in a batch that is
        easier than earlier ones.
    official: True, for v0 and v3, pulls as the authors do, and gives τ their gradient, which counts what comes through
        ḡ twice.
    two_way: True (default) is the sum of both directions; False takes one, against any references.

    Against the authors' repository (fast_clip, commit c3ae1f5): it takes the mean of both directions, and has the
    factor τ in v3 alone. So the gradient, as weighted_pull or official make it, is 2 times the repository's in v0 and
    v3, 2τ times in v1, and 2τ times each query's in v2. v2's averages of the gradient of τ begin in the second epoch
    there (β is 0 in the first, so that a step is the rate times a sign) and are corrected by the epochs; here they
    begin at once, and are corrected by the steps that the sample took. Before October 2024 the repository divided by
    the second moment and not by its root.

    LibAUC's loss of two modalities, GCLoss_v2, is FastCLIPLoss("v1", weighted_pull=True, gamma_schedule="constant"),
    whose gradient is 2/(B − 1) times LibAUC's in a batch of B.

    State: `temperatures` and `log_u`, as of `ISogCLRLoss`.
    """

    def __init__(
        self,
        num_samples: int,
        version: Version = "v3",
        *,
        rho: Number | None = None,
        temperature: Number | None = None,
        temperature_bounds: Sequence[Number | None] = (0.01, 1.0),
        temperature_lr: Number | None = None,
        gamma: Number = 0.2,
        gamma_schedule: Schedule = "cosine",
        epsilon: Number = 1e-14,
        weighted_pull: bool = False,
        official: bool = False,
        two_way: bool = True,
        **options: Unpack[NormalizerLossOptions],
    ) -> None:
        require_choice("version", version, get_args(Version))
        defaults = DEFAULTS[version]
        if rho is not None and defaults.rho is None:
            raise UserError(f"rho={rho!r} has no place in {version}, which has no ρ: leave it out, or take v2 or v3")
        if temperature_lr is not None and version != "v2":
            raise UserError(
                f"temperature_lr={temperature_lr!r} is of the temperatures of v2; that of {version} "
                f"{'is fixed' if version == 'v1' else 'is moved by the optimiser: set optim.temperature_lr'}"
            )
        if official and version not in ("v0", "v3"):
            raise UserError(f"official=True is the authors' gradient of τ in v0 and v3; {version} has none of it")
        if rho is not None:
            require_positive("rho", rho)
        super().__init__(
            num_samples,
            gamma,
            gamma_schedule=gamma_schedule,
            rho=(defaults.rho or 0.0) if rho is None else rho,
            epsilon=require_positive("epsilon", epsilon),
            weighted_pull=weighted_pull or official,
            multiplied=version != "v0",
            counted_twice=official,
            two_way=two_way,
            **options,
        )
        self.version = version
        first = defaults.temperature if temperature is None else temperature
        if version == "v1":
            refuse_unused(FastCLIPLoss, 'version="v1"', temperature_bounds=temperature_bounds)
        if version != "v2":
            self.temperature = Temperature(first, learnable=version != "v1", bounds=temperature_bounds, scale="log")
            return
        bounds = require_bounds("temperature_bounds", temperature_bounds)
        self.temperature = IndividualTemperatures(
            num_samples,
            require_within(first, bounds),
            bounds=bounds,
            rate=require_positive("temperature_lr", 0.0133 if temperature_lr is None else temperature_lr),
            update="adam",
            beta=0.1,
            clip=5.0,
            two_way=two_way,
        )

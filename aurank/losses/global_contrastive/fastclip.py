"""FastCLIP: SogCLR for images and texts, four ways to treat the temperature."""

from collections.abc import Sequence
from typing import Literal, Unpack, get_args

from jaxtyping import Float
from torch import Tensor

from aurank.errors import UserError
from aurank.losses.core.checks import Number, Share, require_choice, require_number
from aurank.losses.core.pair_loss import KeyedLossOptions
from aurank.losses.core.pairs import Pairs
from aurank.losses.core.temperature import Temperature, add_epsilon, require_bounds
from aurank.losses.global_contrastive._normalizer import (
    IndividualTemperatures,
    RobustLoss,
    Schedule,
    surrogate_loss,
)

Version = Literal["v0", "v1", "v2", "v3"]

# the authors' τ and ρ for CC3M
DEFAULTS: dict[str, tuple[float, float]] = {"v0": (0.07, 0.0), "v1": (0.07, 0.0), "v2": (0.03, 7.0), "v3": (0.07, 6.5)}


class FastCLIPLoss(RobustLoss):
    """τ·(log(ε + u) + ρ) of each query, u the moving average of ḡ = mean exp((s⁻ − s⁺)/τ), its rate falling from 1.

    Deviations: the authors' repository (fast_clip, commit c3ae1f5) takes the mean of both directions, and has the
    factor τ in v3 alone; docs/losses.md has the factors between the gradients. There v2's averages of the gradient of τ
    begin in the second epoch (β is 0 in the first, so that a step is the rate times a sign) and are corrected by the
    epochs; here they begin at once, and are corrected by the steps that the sample took.

    State: `temperatures` and `log_u`, as of `ISogCLRLoss`.

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
        weighted_pull: False pulls the positive with weight 1, as the objective's gradient does. True with ḡ/(ε + u), as
            the authors do: at small τ no gradient is left in a batch that is easier than earlier ones.
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
        weighted_pull: bool = False,
        official: bool = False,
        two_way: bool = True,
        **options: Unpack[KeyedLossOptions],
    ) -> None:
        super().__init__(num_samples, gamma, gamma_schedule, "plain", two_way=two_way, **options)
        self.version = require_choice("version", version, get_args(Version))
        default_temperature, default_rho = DEFAULTS[version]
        if official and version not in ("v0", "v3"):
            raise UserError(f"official=True is the authors' gradient of τ in v0 and v3; {version} has none of it")
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

"""SogCLR (Yuan et al., ICML 2022): the contrastive loss over all negatives of the data set, from small batches."""

from typing import Literal, Unpack, get_args

from jaxtyping import Float
from torch import Tensor

from aurank.losses.core.checks import Number, require_choice, require_positive
from aurank.losses.core.log_mean_exp import attraction, descend, log_mean_exp
from aurank.losses.core.pairs import Pairs
from aurank.losses.global_contrastive._gamma import Schedule
from aurank.losses.global_contrastive._normalizer_loss import NormalizerLoss, NormalizerLossOptions

Normalizer = Literal["view", "shared"]


class SogCLRLoss(NormalizerLoss):
    """−s⁺ + τ·log u of each query: the contrastive loss whose normaliser is a moving average over earlier batches.

    u of a sample is a moving average of ḡ, the mean of exp(s⁻/τ) over the negatives of a batch: u ← (1 − γ)·u + γ·ḡ
    (Eq. 10), kept as a logarithm, so that no temperature overflows; the first ḡ is copied. The gradient is
    −∇s⁺ + (τ/u)·∇ḡ (Alg. 1); the value is what that descends, comparable between batch sizes. In evaluation mode
    nothing is written, and the value is the one that training mode would give.

    num_samples: rows of the data set, which `ids` (or labels, in their absence) name.
    gamma: γ; 1 is the decoupled loss of the batch alone. Schedules of it, and state_on: as in `NormalizerLoss`.
    normalizer: "view" (default) divides the gradient of each view by the blend of its own ḡ with u, as the authors'
        code does: the objective of Eq. 5, one logarithm for each view. "shared" divides by the one u of the sample, the
        blend with the mean over its views, as Eq. 9 and 10 have it: the logarithm of the mean over augmentations. What
        is stored is the same: the mean.
    positive_in_denominator: True takes positives into g (§4 of the paper, for two modalities).
    previous_normalizer: True divides by u before this batch went in, as Eq. 10 is printed; the paper's table and code
        have the new one (default).
    two_way: both directions between two modalities (§4), each with a u of its own.

    Against the authors' repositories: the mean here is over queries, where SogCLR's own and LibAUC's GCLoss_v1 add the
    two views of an image, so the gradient is half of theirs. That of two_way=True is 2/(B − 1) times the one of
    GCLoss_v2, LibAUC's loss of two modalities, in a first batch of B; from then on that one pulls positives with other
    weights: it is FastCLIPLoss("v1", weighted_pull=True, gamma_schedule="constant").

    State: `log_u`, Tensor[direction, sample], zero where a sample has not been seen: `tables` in `state_dict`.
    """

    def __init__(
        self,
        num_samples: int,
        temperature: Number = 0.1,
        gamma: Number = 0.9,
        *,
        normalizer: Normalizer = "view",
        positive_in_denominator: bool = False,
        previous_normalizer: bool = False,
        gamma_schedule: Schedule = "constant",
        two_way: bool = False,
        **options: Unpack[NormalizerLossOptions],
    ) -> None:
        super().__init__(num_samples, gamma, gamma_schedule=gamma_schedule, two_way=two_way, **options)
        self.temperature = require_positive("temperature", temperature)
        self.normalizer = require_choice("normalizer", normalizer, get_args(Normalizer))
        self.positive_in_denominator = positive_in_denominator
        self.previous_normalizer = previous_normalizer

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        """−s⁺ + τ·log u."""
        log_mean = log_mean_exp(pairs, self.temperature, with_positives=self.positive_in_denominator)
        log_normalizer = self.log_normalizer(
            pairs, log_mean, shared=self.normalizer == "shared", previous=self.previous_normalizer
        )
        return descend(log_mean, log_normalizer, self.temperature) - attraction(pairs)

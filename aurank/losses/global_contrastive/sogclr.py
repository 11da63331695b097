"""SogCLR: the contrastive loss over all negatives of the data set, from small batches."""

from typing import Literal, Unpack, get_args

from jaxtyping import Float
from torch import Tensor

from aurank.losses.core.checks import Share, SoftmaxTemperature, require_choice, require_number
from aurank.losses.core.pair_loss import KeyedLossOptions
from aurank.losses.core.pairs import Pairs
from aurank.losses.core.temperature import attraction, log_mean_exp
from aurank.losses.global_contrastive._normalizer import (
    Average,
    NormalizedLoss,
    Schedule,
    surrogate_loss,
)

Normalizer = Literal["view", "shared"]


class SogCLRLoss(NormalizedLoss):
    """−s⁺ + τ·log u of each query: the contrastive loss whose normaliser u is a moving average over earlier batches.

    The default u is ours and gives up the paper's promise: it is balanced within each batch, which makes it a ratio, so
    γ → 0 does not take the bias of small batches away. The paper's average does, `average="plain"` and `official=True`:
    it is the better one where embeddings change so slowly, as in fine-tuning, that γ can be small. While a network
    starts to learn, the default is the better one. docs/losses.md has figures.

    ḡ is the mean of exp(s⁻/τ) over the negatives of a batch. The gradient is −∇s⁺ + (τ/u)·∇ḡ (Alg. 1); the value is
    comparable between batch sizes. In evaluation mode nothing is written, and the value is the one that training mode
    would give.

    The paper averages ḡ: u ← (1 − γ)·u + γ·ḡ, the first one copied (`average="plain"`). As ḡ falls by orders of
    magnitude while a network starts to learn, that u is too large for epochs. Here, r ← (1 − γ)·r + γ·ḡ/M, the first
    one copied, where M is the geometric mean of ḡ over the batch: what all samples have in common is taken from the
    present batch, and only how a sample differs is remembered. u = c·M·r, with c such that the weights ḡ/u of the batch
    are 1 in the mean, as the pull's are. docs/results.md has both measured.

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
        official: True does as LibAUC's GCLoss_v1 (2.0.1; 812f98f), without its clamp of u at 1e-8: it averages ḡ; a
            first ḡ is copied only where no sample of the batch was seen before, elsewhere u is γ·ḡ, too small by γ.
        two_way: both directions between two modalities (§4), each with a u of its own.

    Source: Yuan et al., ICML 2022, https://arxiv.org/abs/2202.12387.

    Example:
        >>> import torch
        >>> loss = SogCLRLoss(num_samples=4)
        >>> views, images = torch.eye(4).repeat(2, 1), torch.arange(4).repeat(2)
        >>> loss(views, images)  # s⁺ = 1, and log u = 0 as all s⁻ = 0
        tensor(-1.)
    """

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

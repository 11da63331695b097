"""AUROC by a surrogate (Gao and Zhou, IJCAI 2015): how often a negative scores above a positive, made smooth."""

from typing import Any, Unpack, get_args

from jaxtyping import Float
from torch import Tensor

from aurank.losses.core.checks import StepTemperature, require_choice, require_number
from aurank.losses.core.pair_loss import PairLoss, PairLossOptions
from aurank.losses.core.pairs import Pairs
from aurank.losses.ranking.ranking_sums import Surrogate, ranking_sums

DEFAULT_TEMPERATURE = 0.1


class AUROCLoss(PairLoss):
    """A surrogate of 1 − AUROC of each query: the mean over its positives and negatives of ℓ((s⁻ − s⁺) / temperature).

    Args:
        surrogate: ℓ(x), "huber" (1 + 2x for x > 0, (1 + x)² down to x = −1, then 0), "logistic" log2(1 + e^x), or
            "sigmoid". The first two bound 1 − AUROC from above; "sigmoid" tends to it as the temperature falls.
        temperature: how far apart two similarities count as ordered.
        official: True does as the SOPRC authors' code: the query stays in its own ranking as a positive, and "logistic"
            has temperature 1. That code averages over all triplets of equal
            classes at once; here, over each query's, then over the queries, which is the same for equal classes.

    Source: Gao and Zhou, On the Consistency of AUC Pairwise Optimization, https://arxiv.org/abs/1208.0645.

    Example:
        >>> import torch
        >>> rows, labels = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]), torch.tensor([0, 0, 1])
        >>> AUROCLoss("sigmoid", 0.01)(rows, labels).item() < 1e-6
        True
    """

    def __init__(
        self,
        surrogate: Surrogate = "huber",
        temperature: StepTemperature = DEFAULT_TEMPERATURE,
        *,
        official: bool = False,
        **options: Unpack[PairLossOptions],
    ) -> None:
        super().__init__(**options)
        require_choice("surrogate", surrogate, get_args(Surrogate))
        self.surrogate: Surrogate = surrogate
        self.temperature = require_number("temperature", temperature)
        if official and surrogate == "logistic":
            self.temperature = 1.0
        self.official = official

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        positives = pairs.positives_and_self if self.official else pairs.positives
        kind: dict[str, Any] = {"surrogate": self.surrogate, "temperature": self.temperature}
        sums = ranking_sums(positives.similarity, pairs.negative_similarity, **kind)
        return positives.mean(sums) / pairs.negative_count.clamp(min=1)

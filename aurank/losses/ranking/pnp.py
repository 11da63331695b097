"""PNP (Li et al., AAAI 2022): only the negatives ahead of a positive are penalised."""

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal, Unpack, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from aurank.losses.core.checks import Number, StepTemperature, require_choice, require_number
from aurank.losses.core.pair_loss import PairLoss, PairLossOptions
from aurank.losses.core.pairs import Pairs
from aurank.losses.ranking.ranking_sums import ranking_sums
from aurank.ranges import Range

Variant = Literal["O", "I_u", "I_b", "D_s", "D_q"]
Ahead = Float[Tensor, "query width"]


class PNPLoss(PairLoss):
    """The mean over each query's positives i of f(R_i), R_i = Σ_{negatives j} σ((s_j − s_i) / temperature).

    Other positives ahead of i do not matter. The variants differ in how the gradient of a positive depends on the
    number R of negatives ahead of it:

    | variant | f(R) | its derivative |
    |---|---|---|
    | O | R | 1 |
    | I_u | (1 + R)·log(1 + R) − R | log(1 + R), grows without bound |
    | I_b | (b·R − log(1 + b·R)) / b² | R / (1 + b·R), grows up to 1/b |
    | D_s | log(1 + R) | 1 / (1 + R), falls slowly |
    | D_q | 1 − (1 + R)^−alpha | alpha / (1 + R)^(alpha + 1), falls quickly |

    Those with a falling derivative leave alone a positive behind many negatives, which may be of another cluster of its
    class; the authors' command for their best result has D_q. Time and memory are those of SmoothAP.

    Args:
        variant: which f; of the paper's names PNP-O, PNP-I_u … what follows the dash.
        temperature: how far apart two similarities count as ordered; also `tau`, as in the paper, or `anneal`.
        alpha: of D_q; 4 in that command, for SOP.
        b: of I_b.
        official: True does as the authors' code: the query is a positive of its own, and I_u lacks its − R, so that its
            derivative is 1 + log(1 + R) and does not vanish where no negative is ahead.

    Source: Li et al., Rethinking the Optimization of Average Precision: Only Penalizing Negative Instances before
        Positive Ones is Enough, AAAI 2022, https://arxiv.org/abs/2102.04640.

    Example:
        >>> rows, labels = torch.eye(4).repeat_interleave(2, 0), torch.arange(4).repeat_interleave(2)
        >>> round(PNPLoss()(rows, labels).item(), 4)
        0.0
    """

    aliases: ClassVar = {"tau": "temperature", "anneal": "temperature"}

    def __init__(
        self,
        variant: Annotated[Variant, Range(choices=("O", "I_u", "I_b", "D_s", "D_q"))] = "D_q",
        temperature: StepTemperature = 0.01,
        *,
        alpha: Annotated[Number, Range(0.5, 16.0, log=True)] = 4.0,
        b: Number = 2.0,
        official: bool = False,
        **options: Unpack[PairLossOptions],
    ) -> None:
        super().__init__(**options)
        self.variant = require_choice("variant", variant, get_args(Variant))
        self.temperature = require_number("temperature", temperature)
        self.alpha = require_number("alpha", alpha)
        self.b = require_number("b", b)
        self.official = official

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        positives = pairs.positives_and_self if self.official else pairs.positives
        scores, others = positives.similarity, pairs.negative_similarity
        ahead = ranking_sums(scores, others, surrogate="sigmoid", temperature=self.temperature)
        return positives.mean(self.penalty(ahead))

    def penalty(self, ahead: Ahead) -> Ahead:
        """Return f of the numbers of negatives ahead."""
        penalties: dict[str, Callable[[Ahead], Ahead]] = {
            "O": torch.clone,
            "I_u": lambda ahead: (1 + ahead) * ahead.log1p() - (0.0 if self.official else 1.0) * ahead,
            "I_b": lambda ahead: (self.b * ahead - (self.b * ahead).log1p()) / self.b**2,
            "D_s": torch.log1p,
            "D_q": lambda ahead: -(-self.alpha * ahead.log1p()).expm1(),
        }
        return penalties[self.variant](ahead)

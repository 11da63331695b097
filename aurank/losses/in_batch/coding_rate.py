"""Anti-collapse by the coding rate (Jiang et al., 2024): embeddings are to fill as many dimensions as they can."""

from typing import Annotated, Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from aurank.losses.core.checks import Number, require_choice, require_number
from aurank.losses.core.common import in_common_precision, to_device_of, without_autocast
from aurank.losses.core.distributed import Gather
from aurank.losses.core.pair_loss import TakesInputs
from aurank.losses.core.pairs import Inputs
from aurank.ranges import Range

Of = Literal["samples", "classes"]


def coding_rate(rows: Float[Tensor, "row dim"], *, variance: float) -> Float[Tensor, ""]:
    """Return ½ log det(I + dim/(rows · variance) · ZᵀZ), in nats, over the smaller of both Gram matrices."""
    number, dim = rows.shape
    gram = rows @ rows.T if number < dim else rows.T @ rows
    identity = torch.eye(len(gram), dtype=rows.dtype, device=rows.device)
    return torch.logdet(identity + dim / (number * variance) * gram) / 2


class CodingRateLoss(TakesInputs, nn.Module):
    """−R, the negative coding rate of a batch: an addend that keeps embeddings from collapsing to few dimensions.

    R = ½ log det(I + dim/(n·epsilon²) · ZᵀZ) of the n rows of unit length grows with each direction that they take, and
    is greatest where all are orthogonal: 100 for a batch of 112 in 128 dimensions, so that weights of some 0.001 to 0.1
    suit a loss between 0 and 1. It knows no labels: put it beside another loss, `MultipleLosses([SmoothAPLoss(),
    CodingRateLoss()], weights=[1, 0.01])`. References and a miner do not matter to it.

    Args:
        epsilon: the distortion at which rows are told apart; the greater, the less small directions count.
        of: "samples": of all rows. "classes": of the mean row of each label, which leaves the images of a class
            together; they stand for the paper's class proxies.
        distributed: as in `PairLoss`.

    Source: Jiang et al., Anti-Collapse Loss for Deep Metric Learning Based on Coding Rate Metric, 2024,
        https://arxiv.org/abs/2407.03106. The authors' code minimises e^−R, with epsilon in place of epsilon².

    Example:
        >>> labels, spread = torch.tensor([0, 0, 1, 1]), torch.eye(4)
        >>> bool(CodingRateLoss()(spread, labels) < CodingRateLoss()(torch.ones(4, 4), labels))
        True
    """

    def __init__(
        self,
        epsilon: Annotated[Number, Range(0.05, 2.0, log=True)] = 0.5,
        *,
        of: Of = "samples",
        distributed: bool = False,
    ) -> None:
        super().__init__()
        self.epsilon = require_number("epsilon", epsilon)
        self.of = require_choice("of", of, get_args(Of))
        self.gather = Gather(distributed)

    def compute(self, inputs: Inputs) -> Any:
        inputs = self.gather.batch(inputs)
        rows, _ = in_common_precision(inputs.embeddings, inputs.embeddings)
        with without_autocast(rows.device):
            rows = normalize(rows)
            if self.of == "classes":
                labels = torch.unique(inputs.labels.detach().cpu(), return_inverse=True, return_counts=True)
                index, counts = (to_device_of(rows, each) for each in labels[1:])
                sums = rows.new_zeros(len(counts), rows.shape[1]).index_add(0, index, rows)
                rows = normalize(sums / counts[:, None])
            return -coding_rate(rows, variance=self.epsilon**2)

"""BlackBox AP (Rolinek et al., CVPR 2020; Vlastelica et al., ICLR 2020): exact ranks, a finite difference backward."""

from typing import Annotated, Any, Unpack

import torch
from jaxtyping import Bool, Float, Int32, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable

from aurank.losses.core.checks import Margin, Number, require_number
from aurank.losses.core.pair_loss import PairLoss, PairLossOptions
from aurank.losses.core.pairs import Pairs
from aurank.losses.core.row_table import SavedGenerator, writes
from aurank.ranges import Range


class AveragePrecision(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, hit: Tensor, is_hit: Tensor, step: float) -> Tensor:
        ascending = scores.sort(dim=1).values
        hits = scores.gather(1, hit).masked_fill(~is_hit, -torch.inf)
        rank, within = at_least(hits, ascending), at_least(hits, hits.sort(dim=1).values)
        precision = (within.to(scores.dtype) / rank).masked_fill(~is_hit, 0)
        count = is_hit.sum(dim=1).clamp(min=1).to(scores.dtype)
        length = (scores != -torch.inf).sum(dim=1).clamp(min=1).to(scores.dtype)
        # ∂(1 − AP)/∂r for ranks r = rank / length: w / r² per positive, w its rank among the positives / length
        slope = precision / rank * (length / count)[:, None]
        ctx.step = step
        ctx.save_for_backward(scores, ascending, hit, is_hit, hits, slope, length)
        # a negative that is NaN has a rank, above all others: without this it would go unnoticed
        return (precision.sum(dim=1) / count).masked_fill(ascending[:, -1].isnan(), torch.nan)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        scores, ascending, hit, is_hit, hits, slope, length = ctx.saved_tensors
        # the step does not depend on upstream: a loss scaled for half precision would look for its ranks elsewhere
        moved = hits + ctx.step * slope
        before, after = hits.sort(dim=1).values, moved.sort(dim=1).values
        # only positives move, so another entry falls by as many ranks as positives pass it
        fall = at_least(scores, after) - at_least(scores, before)
        negatives_above = at_least(moved, ascending) - at_least(moved, before)
        own_fall = negatives_above + at_least(moved, after) - at_least(hits, ascending)
        fall.scatter_add_(1, hit, (own_fall - fall.gather(1, hit)).masked_fill(~is_hit, 0))
        return fall * (-upstream / (length * ctx.step))[:, None], None, None, None


def at_least(scores: Float[Tensor, "list item"], ascending: Float[Tensor, "list other"]) -> Int32[Tensor, "list item"]:
    """Return for each score how many of its list's others are at least as high."""
    return ascending.shape[1] - torch.searchsorted(ascending, scores.contiguous(), out_int32=True)


class BlackBoxAPLoss(PairLoss):
    """(1 − flat_weight) · (1 − AP) of each query, exact, plus flat_weight · (1 − AP) of all pairs in one list.

    The second, the term "flat", ranks the pairs of all valid queries together: one value for the batch, which a reducer
    leaves as it is. The gradient is a finite difference of ranks: informative if a step of `lambda_` along the ranks'
    gradient changes their order. In training mode a margin is drawn anew for each pair: a positive's score is lowered
    and a negative's raised by margin · |N(0, 1)| / 2. In evaluation mode, and without gradients, there is none.

    Args:
        lambda_: length of the step, with ranks divided by the length of their list and the loss a plain mean over the
            queries: what it means in the authors' code. A factor of the loss, such as that of loss scaling, multiplies
            the gradient and nothing else; there it lengthens the step too.
        margin: scale of the random margin, α of the paper.
        flat_weight: share of the term "flat", β of the paper; 0 leaves it out.
        generator, seed: where the margins come from; their position in the sequence is saved.

    Source: Rolinek et al., CVPR 2020, https://arxiv.org/abs/1912.03500; the finite difference is that of Vlastelica et
        al., ICLR 2020, https://arxiv.org/abs/1912.02175. The copy in the SOPRC repository ranks the query itself, and
        appends the similarities of earlier batches' queries to each query's.

    Example:
        >>> rows, labels = torch.eye(2).repeat_interleave(2, 0), torch.tensor([0, 0, 1, 1])
        >>> BlackBoxAPLoss(margin=0)(rows, labels).item()
        0.0
    """

    def __init__(
        self,
        lambda_: Annotated[Number, Range(0.5, 50.0, log=True)] = 5.0,
        margin: Margin = 0.15,
        *,
        flat_weight: Number = 0.9,
        seed: int = 0,
        generator: torch.Generator | None = None,
        **options: Unpack[PairLossOptions],
    ) -> None:
        self.extra_names = ("flat",) if flat_weight else ()
        super().__init__(**options)
        self.takes_weights = False  # a rank of the finite difference has no meaning for them
        self.lambda_ = require_number("lambda_", lambda_)
        self.margin = require_number("margin", margin, "[0, inf)")
        self.flat_weight = require_number("flat_weight", flat_weight, "[0, 1)")
        self.noise = SavedGenerator(seed, generator)

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        lists = listed(pairs, pairs.similarity), pairs.positive, pairs.positives.index, pairs.positives.mask
        return self._loss(*lists, weight=1 - self.flat_weight, averaged=len(pairs.valid_rows))

    def extra_terms(self, pairs: Pairs) -> dict[str, Tensor]:
        if not self.flat_weight:
            return {}
        similarity = pairs.similarity
        if pairs.is_self_set:  # s_ij and s_ji are equal where they differ by rounding only
            rounding = 8 * torch.finfo(similarity.dtype).eps
            equal = similarity.isclose(similarity.T, rtol=rounding, atol=rounding)
            similarity = torch.where(equal, (similarity + similarity.T) / 2, similarity)
        valid = pairs.valid[:, None]
        scores = listed(pairs, similarity).masked_fill(~valid, -torch.inf)
        starts = torch.arange(len(valid), device=valid.device)[:, None] * scores.shape[1]
        flat = scores, pairs.positive, pairs.positives.index + starts, pairs.positives.mask & valid
        flat_loss = self._loss(
            *(part.reshape(1, -1) for part in flat), weight=self.flat_weight, averaged=min(1, len(pairs.valid_rows))
        )
        return {"flat": flat_loss.squeeze(0)}

    def _loss(
        self,
        scores: Float[Tensor, "list entry"],
        positive: Bool[Tensor, "list entry"],
        hit: Int64[Tensor, "list hit"],
        is_hit: Bool[Tensor, "list hit"],
        *,
        weight: float,
        averaged: int,
    ) -> Float[Tensor, " list"]:
        if writes(self) and self.margin and averaged:
            widths = self.noise.draw(torch.randn, scores.shape, like=scores).abs() * (self.margin / 2)
            scores = scores + torch.where(positive, -widths, widths)
        step = self.lambda_ * weight / max(averaged, 1)
        precision: Tensor = AveragePrecision.apply(scores, hit, is_hit, step)
        return weight * (1 - precision)


def listed(pairs: Pairs, similarity: Float[Tensor, "query reference"]) -> Float[Tensor, "query reference"]:
    """Return the similarities of positives and negatives, minus infinity for references that are in no list."""
    return similarity.masked_fill(~(pairs.positive | pairs.negative), -torch.inf)

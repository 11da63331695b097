"""Ramzi et al.: losses whose ranks are bounded from above (SupAP, 2021; SupRecall, 2023), and calibrated scores."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from aurank.losses.core.checks import Cuts, Number, RankTemperature, StepTemperature, require_number
from aurank.losses.core.pair_loss import PairLoss, PairLossOptions
from aurank.losses.core.pairs import Pairs, Positives
from aurank.losses.ranking.blackbox_ap import at_least
from aurank.losses.ranking.ranking_sums import Bound, ranking_sums
from aurank.losses.ranking.recall_at_k import check_cuts
from aurank.ranges import Range

PUBLISHED_OFFSET = 1.44  # of the authors' class, and of their configurations but those of iNaturalist


@dataclass(frozen=True)
class BoundedRanks:
    """How many less relevant references are ahead of a score, at most (NeurIPS 2021, arXiv 2110.01445)."""

    temperature: Number
    slope: Number
    delta: Number
    jump: Number
    offset: Number | None = None
    official: bool = False  # the authors' code: ½ at t = 0, and an offset of 1.44 unless given

    def __post_init__(self) -> None:
        require_number("temperature", self.temperature)
        for name in ("slope", "delta", "jump", *(["offset"] if self.offset is not None else [])):
            require_number(name, getattr(self, name), "[0, inf)")

    def behind(
        self, scores: Float[Tensor, "query width"], others: Float[Tensor, "query reference"]
    ) -> Float[Tensor, "query width"]:
        """Return for each score the sum of H⁻ over others, of which minus infinity adds nothing."""
        knee = self.delta / self.temperature
        height = 1 / (1 + math.exp(-knee)) + self.jump
        published = PUBLISHED_OFFSET if self.official else height
        drop = height - (published if self.offset is None else self.offset)
        bound = Bound(float(self.jump), float(knee), float(self.slope * self.temperature), drop, float(self.official))
        return ranking_sums(scores, others, surrogate="bound", temperature=float(self.temperature), bound=bound)


def ascending(positives: Positives) -> Float[Tensor, "query width"]:
    return positives.similarity.detach().masked_fill(~positives.mask, -torch.inf).sort(dim=1).values


def count_ahead(
    scores: Float[Tensor, "query width"], others: Float[Tensor, "query other"]
) -> Float[Tensor, "query width"]:
    return at_least(scores.detach(), others).to(scores.dtype)


class BoundedRankOptions(PairLossOptions, total=False):
    slope: Number
    delta: Number
    jump: Number
    offset: Number | None
    calibration: Number
    positive_margin: Number
    negative_margin: Number
    official: bool


class BoundedRankLoss(PairLoss):
    """A loss of bounded ranks; positive scores are pulled above one threshold, negative ones pushed below another."""

    # Of the paper, and of the authors' classes SupAP and CalibrationLoss, but for SupAP's tau: the paper's rho.
    aliases: ClassVar = {"rho": "slope", "margin": "delta", "start": "jump", "lambda_": "calibration"}
    aliases |= dict.fromkeys(("tau", "temp"), "temperature")
    aliases |= dict.fromkeys(("alpha", "pos_margin"), "positive_margin")
    aliases |= dict.fromkeys(("beta", "neg_margin"), "negative_margin")

    def __init__(
        self,
        temperature: StepTemperature = 0.01,
        *,
        slope: Number = 100.0,
        delta: Number = 0.05,
        jump: Number = 0.5,
        offset: Number | None = None,
        calibration: Annotated[Number, Range(0.0, 0.8)] = 0.1,
        positive_margin: Number = 0.9,
        negative_margin: Number = 0.6,
        official: bool = False,
        **options: Unpack[PairLossOptions],
    ) -> None:
        self.calibration = require_number("calibration", calibration, "[0, 1)")
        self.extra_names = ("calibration",) if self.calibration else ()
        super().__init__(**options)
        self.high = require_number("positive_margin", positive_margin, "(-inf, inf)")
        self.low = require_number("negative_margin", negative_margin, "(-inf, inf)")
        self.ranks = BoundedRanks(temperature, slope, delta, jump, offset, official)
        self.official = official

    def extra_terms(self, pairs: Pairs) -> dict[str, Tensor]:
        if not self.calibration:
            return {}
        if self.official:
            short = (self.high - pairs.similarity).relu().masked_fill(~pairs.positive, 0)
            over = (pairs.similarity - self.low).relu().masked_fill(~pairs.negative, 0)
            # "not == 0" counts NaN too, so that it shows in the loss
            short, over = (each.sum() / (each != 0).sum().clamp(min=1) for each in (short, over))
        else:
            short = pairs.positives.mean((self.high - pairs.positives.similarity).relu())
            over = (pairs.negative_similarity - self.low).relu().sum(dim=1) / pairs.negative_count.clamp(min=1)
        return {"calibration": self.calibration * (short + over)}


class SupAPLoss(BoundedRankLoss):
    """(1 − λ) · an upper bound of each query's 1 − average precision + λ · the calibration of its scores (ROADMAP).

    AP = mean over positives i of r⁺/(r⁺ + r⁻): r⁺ counts the positives that score at least s_i, exactly and without a
    gradient; r⁻ adds up H⁻(s_j − s_i) over negatives j. With t = s_j − s_i, H⁻ is σ(t/temperature) for t < 0, jump more
    from 0 on, and goes on with `slope` beyond `delta`: the further ahead a negative is, the more it counts, and the
    gradient does not fade. Time and memory are those of SmoothAP.

    The paper's names are taken too: `tau`, `rho` (slope), `lambda_`, `alpha` and `beta` (the margins), and those of the
    authors' classes: `temp`, `margin` (delta), `start` (jump), `pos_margin`, `neg_margin`. Their `tau` is `rho` here.

    Args:
        temperature: width of the sigmoid.
        slope: of the line beyond `delta`, per unit of similarity.
        delta: from where on the sigmoid is flat.
        jump: what a negative ahead counts more than its sigmoid. From ½ on, H⁻ is at least 1 there, which makes the
            bound. As temperature, delta and slope go to 0, temperature the fastest, the loss becomes 1 − average
            precision with jump=0 and calibration=0; with a jump, that of negatives counted 1 + jump times.
        offset: where the line beyond `delta` begins; None: where the curve is, σ(delta/temperature) + jump.
        calibration: λ, in [0, 1); reported as the term "calibration".
        positive_margin, negative_margin: the score above which a positive, and below which a negative, has no
            calibration loss.
        official: True does as the authors' code (SupRank, commit 99041e8; HAPPIER, commit 4d7c054). The query counts as
            a positive of its own. `offset` is 1.44 unless given, so H⁻ falls by 0.05 at `delta`: their class has that,
            whatever `jump` is. For iNaturalist their configurations have offset=1.0, jump=0.0; ROADMAP's first release
            has offset=6.44. A tied negative counts ½. The calibration is PML's contrastive loss over the batch: means
            over the pairs whose loss is not 0. The weights stay: SupRank has 0.9 and 0.1 as here, ROADMAP's
            configurations 1 and 1.

    Source: Ramzi et al., Robust and Decomposable Average Precision for Image Retrieval, NeurIPS 2021,
        https://arxiv.org/abs/2110.01445.

    Example:
        >>> rows, labels = torch.eye(4).repeat_interleave(2, 0), torch.arange(4).repeat_interleave(2)
        >>> SupAPLoss()(rows, labels).item()
        0.0
    """

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        positives = pairs.positives_and_self if self.official else pairs.positives
        among = count_ahead(positives.similarity, ascending(positives))
        rank = among + self.ranks.behind(positives.similarity, pairs.negative_similarity)
        # at least 1 but for padding
        return (1 - self.calibration) * (1 - positives.mean(among / rank.clamp(min=1)))


class SupRecallLoss(BoundedRankLoss):
    """(1 − λ) · (1 − the mean over k of each query's smoothed recall@k) + λ · the calibration of its scores.

    recall@k = 1/|P| Σ_{i∈P} σ((k − rank_i) / rank_temperature), as `RecallAtKLoss` has it, with SupAP's rank: the
    positives that score at least s_i, counted exactly and without a gradient, and H⁻(s_j − s_i) of each negative j. As
    H⁻ is at least a step, no rank is taken for better than it is.

    Args:
        k: the cuts; a recall@k with k below the number of positives cannot reach 1, and the loss then not 0.
        temperature, slope, delta, jump, offset: of H⁻, as in `SupAPLoss`.
        rank_temperature: how far a rank must be from k to count as inside or outside.
        calibration, positive_margin, negative_margin: as in `SupAPLoss`.
        official: True does as the authors' code (SupRank): recall@k is divided by the lesser of k and |P|; the query is
            a positive of its own, at rank 1; H⁻ and the calibration are as `SupAPLoss` says.

    Source: Ramzi et al., Optimization of Rank Losses for Image Retrieval, 2023, https://arxiv.org/abs/2309.08250.

    Example:
        >>> rows, labels = torch.eye(4).repeat_interleave(2, 0), torch.arange(4).repeat_interleave(2)
        >>> round(SupRecallLoss(k=(1, 2), rank_temperature=0.1, calibration=0)(rows, labels).item(), 4)
        0.25
    """

    def __init__(
        self,
        k: Cuts = (1, 2, 4, 8, 16),
        temperature: StepTemperature = 0.01,
        *,
        rank_temperature: RankTemperature = 1.0,
        **options: Unpack[BoundedRankOptions],
    ) -> None:
        super().__init__(temperature, **options)
        self.k = check_cuts(k)
        self.rank_temperature = require_number("rank_temperature", rank_temperature)

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        positives = pairs.positives_and_self if self.official else pairs.positives
        rank = count_ahead(positives.similarity, ascending(positives))
        rank = rank + self.ranks.behind(positives.similarity, pairs.negative_similarity)
        count, recall = positives.count.clamp(min=1), torch.zeros_like(rank[:, 0])
        for cut in self.k:
            hits = ((cut - rank) / self.rank_temperature).sigmoid().masked_fill(~positives.mask, 0).sum(dim=1)
            recall = recall + hits / (count.clamp(max=cut) if self.official else count)
        return (1 - self.calibration) * (1 - recall / len(self.k))

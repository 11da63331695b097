"""What the losses of Ramzi et al. have in common: ranks that are bounded from above, and the calibration of scores."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from aurank.losses.core.checks import Number, require_number
from aurank.losses.core.pairs import Pairs, Positives
from aurank.losses.ranking.blackbox_ap import at_least
from aurank.losses.ranking.ranking_sums import Bound, ranking_sums

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
    """Return each query's positive scores in order, behind as many minus infinities as there are paddings."""
    return positives.similarity.detach().masked_fill(~positives.mask, -torch.inf).sort(dim=1).values


def count_ahead(
    scores: Float[Tensor, "query width"], others: Float[Tensor, "query other"]
) -> Float[Tensor, "query width"]:
    """Return for each score how many of the others, which ascend, are at least as high; there is no gradient."""
    return at_least(scores.detach(), others).to(scores.dtype)


@dataclass(frozen=True)
class Calibration:
    """Positive scores are pulled above one threshold, negative ones pushed below another, the same for all queries."""

    weight: Number
    high: Number
    low: Number
    official: bool = False  # means over the pairs of the whole batch that are not there yet, as PML's ContrastiveLoss

    def __post_init__(self) -> None:
        require_number("calibration", self.weight, "[0, 1)")
        require_number("positive_margin", self.high, "(-inf, inf)")
        require_number("negative_margin", self.low, "(-inf, inf)")

    @property
    def names(self) -> tuple[str, ...]:
        return ("calibration",) if self.weight else ()

    def terms(self, pairs: Pairs) -> dict[str, Any]:
        """Return the weighted term by its name, one value per query or, under `official`, one of the batch."""
        if not self.weight:
            return {}
        if self.official:
            short = (self.high - pairs.similarity).relu().masked_fill(~pairs.positive, 0)
            over = (pairs.similarity - self.low).relu().masked_fill(~pairs.negative, 0)
            # "not == 0" counts NaN too, so that it shows in the loss
            return {
                "calibration": self.weight * sum(each.sum() / (each != 0).sum().clamp(min=1) for each in (short, over))
            }
        short = pairs.positives.mean((self.high - pairs.positives.similarity).relu())
        over = (pairs.negative_similarity - self.low).relu().sum(dim=1) / pairs.negative_count.clamp(min=1)
        return {"calibration": self.weight * (short + over)}

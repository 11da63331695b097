"""What the losses of Ramzi et al. have in common: ranks that are bounded from above, and the calibration of scores."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from aurank.losses.core.checks import Number, as_number, require_finite, require_number, require_positive
from aurank.losses.core.pairs import Pairs, Positives
from aurank.losses.ranking.blackbox_ap import at_least
from aurank.losses.ranking.ranking_sums import Bound, ranking_sums

PUBLISHED_OFFSET = 1.44  # of the authors' class, and of their configurations but those of iNaturalist


@dataclass(frozen=True)
class BoundedRanks:
    """How many less relevant references are ahead of a score, at most (NeurIPS 2021, arXiv 2110.01445)."""

    temperature: float
    slope: float
    delta: float
    jump: float
    offset: float | None = None
    official: bool = False  # the authors' code: ½ at t = 0, and an offset of 1.44 unless given

    @classmethod
    def checked(
        cls,
        temperature: Number,
        slope: Number,
        delta: Number,
        jump: Number,
        offset: Number | None = None,
        *,
        official: bool,
    ) -> "BoundedRanks":
        """Return the ranks of a loss's arguments; UserError where they are no numbers of that kind."""
        return cls(
            require_positive("temperature", temperature),
            require_not_negative("slope", slope),
            require_not_negative("delta", delta),
            require_not_negative("jump", jump),
            None if offset is None else require_not_negative("offset", offset),
            official,
        )

    def behind(
        self, scores: Float[Tensor, "query width"], others: Float[Tensor, "query reference"]
    ) -> Float[Tensor, "query width"]:
        """Return for each score the sum of H⁻ over others, of which minus infinity adds nothing."""
        knee = self.delta / self.temperature
        height = 1 / (1 + math.exp(-knee)) + self.jump
        published = PUBLISHED_OFFSET if self.official else height
        drop = height - (published if self.offset is None else self.offset)
        bound = Bound(self.jump, knee, self.slope * self.temperature, drop, float(self.official))
        return ranking_sums(scores, others, surrogate="bound", temperature=self.temperature, bound=bound)


def require_not_negative(name: str, value: object) -> float:
    """Return the value as a float; UserError unless it is a finite number of at least 0."""
    return require_number(name, value, 0 <= as_number(value) < torch.inf, ">= 0")


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

    weight: float
    high: float
    low: float
    official: bool = False  # means over the pairs of the whole batch that are not there yet, as PML's ContrastiveLoss

    @classmethod
    def checked(cls, weight: Number, high: Number, low: Number, *, official: bool) -> "Calibration":
        """Return the calibration of a loss's arguments; UserError where they do not fit."""
        kept = require_number("calibration", weight, 0 <= as_number(weight) < 1, ">= 0 and < 1")
        return cls(kept, require_finite("positive_margin", high), require_finite("negative_margin", low), official)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its terms."""
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

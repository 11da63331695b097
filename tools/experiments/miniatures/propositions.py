"""Propositions 1 and 3: the mean and variance of v, and how the error of interpolation falls with the scores."""

from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from aurank.losses.core.row_table import RowTable
from aurank.losses.ranking.soprc import INTERPOLATIONS, quantile_scores

BETAS = (0.001, 0.01, 0.1)
NUM_QUANTILES = 100
UNBOUNDED = (-torch.inf, torch.inf)
COUNTS = (20, 40, 80, 160, 320)


def moving_average(*, rows: int = 1000, steps: int = 200, seed: int = 0) -> dict[str, Any]:
    """Mean and variance of v after some steps with one model, beside what Proposition 1 says, by β and start of v.

    Each row of a RowTable is a stream of its own; a batch is 3 scores of N(0.5, 0.1). "mean_error": largest difference
    between the mean of v and (1 − β)^T (v₁ − E φ) + E φ, in standard errors of that mean; "offset": mean |E v − E φ|;
    "variance": mean over quantiles of Var v / (Var φ · β / (2 − β)), at most 1 by the proposition.
    """
    chance = torch.Generator().manual_seed(seed)
    index = torch.arange(rows)
    many = torch.cat([interpolated(rows, chance) for _ in range(100)]).double()
    mean, variance = many.mean(dim=0), many.var(dim=0)
    arange = torch.arange(NUM_QUANTILES) / NUM_QUANTILES
    result: dict[str, Any] = {}
    for start, beta in [(start, beta) for start in ("arange", "copied") for beta in BETAS]:
        table = RowTable(rows, NUM_QUANTILES, start=arange if start == "arange" else None)
        for _ in range(steps):
            table.update(index, interpolated(rows, chance), rate=beta)
        v = table.rows.double()
        begin = arange.double() if start == "arange" else mean
        expected = mean + (1 - beta) ** steps * (begin - mean)
        error = (v.mean(dim=0) - expected).abs() / (v.var(dim=0) / rows + variance / len(many)).sqrt()
        result.setdefault(start, {})[f"{beta:g}"] = {
            "mean_error": float(error.max()),
            "offset": float((v.mean(dim=0) - mean).abs().mean()),
            "variance": float((v.var(dim=0) / (variance * beta / (2 - beta))).mean()),
        }
    return {"steps": steps, "rows": rows, "seed": seed, "starts": result}


def interpolated(rows: int, chance: torch.Generator) -> Float[Tensor, "row quantile"]:
    """φ of 3 scores for each row."""
    scores = (0.5 + 0.1 * torch.randn(rows, 3, generator=chance)).sort(dim=1).values
    return quantile_scores(scores, torch.full((rows,), 3), num_quantiles=NUM_QUANTILES, bounds=UNBOUNDED)


def interpolation_slopes() -> dict[str, Any]:
    """The largest error over the middle 80 % by the number n of scores, and its slope on logarithmic axes.

    p is the quantile function of N(0, 1) between its 5 % and 95 %, so that p'' is bounded. "linear": Proposition 3 as
    it stands, straight lines through (i/n, p(i/n)). The interpolations of the loss get p(i/(n+1)), about what order
    statistics of n scores are on average. "bound": ‖p''‖ / 8n².
    """
    levels = torch.arange(1, 4001, dtype=torch.float64) / 4001
    middle = (levels >= 0.1) & (levels <= 0.9)
    truth = shape(levels)[middle]
    edge = NormalDist().inv_cdf(0.95)
    second_derivative = 0.9**2 * edge / NormalDist().pdf(edge) ** 2  # of Φ⁻¹, greatest at the ends
    errors: dict[str, list[float]] = {"linear": []}
    for count in COUNTS:
        knots = torch.arange(count + 1, dtype=torch.float64) / count
        lines = torch.from_numpy(np.interp(levels.numpy(), knots.numpy(), shape(knots).numpy()))
        errors["linear"].append(float((lines[middle] - truth).abs().max()))
        scores = shape(torch.arange(1, count + 1, dtype=torch.float64) / (count + 1))[None]
        for name, interpolate in INTERPOLATIONS.items():
            found = interpolate(scores, torch.tensor([count]), num_quantiles=len(levels), bounds=UNBOUNDED)[0]
            errors.setdefault(name, []).append(float((found[middle] - truth).abs().max()))
    slopes = {name: float(np.polyfit(np.log(COUNTS), np.log(each), 1)[0]) for name, each in errors.items()}
    bound = [second_derivative / (8 * count**2) for count in COUNTS]
    return {"counts": list(COUNTS), "errors": errors, "slopes": slopes, "bound": bound}


def shape(levels: Float[Tensor, " level"]) -> Float[Tensor, " level"]:
    """p."""
    scores: Tensor = torch.special.ndtri(0.05 + 0.9 * levels)
    return scores

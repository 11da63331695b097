"""Figures 1, 4 and 5: how estimators of AUPRC, and interpolated scores, differ from the truth on drawn scores.

100,000 scores, a tenth of them positive, stand for a data set. Batches of 2,000 are drawn from them without
replacement, a share π0 of them positive (the paper says "several points"; 2,000 is this tool's choice). An estimator is
unbiased if its mean over batches is the loss 1 − AUPRC of all 100,000, whatever π0.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from aurank.losses.core.row_table import RowTable
from aurank.losses.ranking._sums import Surrogate, ranking_sums
from aurank.losses.ranking.soprc import INTERPOLATIONS, quantile_scores, true_positive_rate

SIZE, PRIOR, BATCH, REPEATS, SEED = 100_000, 0.1, 2_000, 500, 0
RATES = (0.01, 0.02, 0.03, 0.1, 0.2)
COUNTS = (2, 3, 5, 10, 20, 50, 100)
TAU1, TAU2, BETA, NUM_QUANTILES = 0.1, 0.001, 0.1, 100  # defaults of SOPRCLoss
FINER = {"repeats": 50, "batch": 8_000, "num_quantiles": 1_000}  # what is left of the error then
STEP = 1e-6  # a sigmoid so steep is the 0/1 loss
UNBOUNDED = (-torch.inf, torch.inf)

Draw = Callable[[np.random.Generator, int], np.ndarray[Any, np.dtype[np.float64]]]
DISTRIBUTIONS: dict[str, tuple[Draw, Draw]] = {  # positives, negatives
    "binormal": (lambda chance, n: chance.normal(1, 1, n), lambda chance, n: chance.normal(0, 1, n)),
    "bibeta": (lambda chance, n: chance.beta(5, 2, n), lambda chance, n: chance.beta(2, 5, n)),
    "offset uniform": (lambda chance, n: chance.uniform(0.5, 1.5, n), lambda chance, n: chance.uniform(0, 1, n)),
}


def estimator_bias(
    name: str, *, repeats: int = REPEATS, size: int = SIZE, batch: int = BATCH, num_quantiles: int = NUM_QUANTILES
) -> dict[str, Any]:
    """Truth, and mean and standard deviation of each estimator at each sampling rate, as losses 1 − AUPRC."""
    chance = np.random.default_rng(SEED)
    positives, negatives = (torch.from_numpy(scores) for scores in pool(name, chance, size))
    result: dict[str, Any] = {"truth": exact_losses(positives, negatives), "rates": {}}
    for rate in RATES:
        n_positive = round(rate * batch)
        drawn = subsets(positives, n_positive, repeats, chance)
        others = subsets(negatives, batch - n_positive, repeats, chance)
        values = estimates(drawn, others, num_quantiles=num_quantiles)
        result["rates"][f"{rate:g}"] = {
            estimator: {"mean": float(losses.mean()), "deviation": float(losses.std())}
            for estimator, losses in values.items()
        }
    return result


def pool(name: str, chance: np.random.Generator, size: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Scores of the data set's positives and negatives."""
    count = round(PRIOR * size)
    draw_positive, draw_negative = DISTRIBUTIONS[name]
    return draw_positive(chance, count), draw_negative(chance, size - count)


def subsets(scores: Tensor, count: int, repeats: int, chance: np.random.Generator) -> Float[Tensor, "repeat count"]:
    """Subsets of the scores, each without replacement, in float32."""
    rows = np.stack([chance.choice(len(scores), count, replace=False, shuffle=False) for _ in range(repeats)])
    return scores[torch.from_numpy(rows)].float()


def estimates(
    positives: Float[Tensor, "repeat n"], negatives: Float[Tensor, "repeat m"], *, num_quantiles: int
) -> dict[str, Float[Tensor, " repeat"]]:
    """Of each batch: "ap", Eq. 5 with the 0/1 loss, which is 1 − AP; "soprc", Eq. 8; "soprc_surrogate", Eq. 8 with ℓ1.

    Eq. 8 has the true prior, and v as it is after this batch and those before it.
    """
    above = sums(positives, negatives, "sigmoid", STEP)
    position = 1 + positives.argsort(dim=1, descending=True).argsort(dim=1)
    losses = {"ap": (above / (above + position)).mean(dim=1)}
    rate = PRIOR * true_positive_rate(positives, followed_quantiles(positives, num_quantiles), tau2=TAU2)
    for name, total in {"soprc": above, "soprc_surrogate": sums(positives, negatives, "huber", TAU1)}.items():
        numerator = (1 - PRIOR) * total / negatives.shape[1]
        losses[name] = (numerator / (numerator + rate)).mean(dim=1)
    return losses


def followed_quantiles(positives: Float[Tensor, "repeat n"], num_quantiles: int) -> Float[Tensor, "repeat quantile"]:
    """v after each batch, the batches coming one after the other."""
    table = RowTable(1, num_quantiles)
    row, count = torch.zeros(1, dtype=torch.int64), torch.tensor([positives.shape[1]])
    followed = []
    for scores in positives.sort(dim=1).values:
        own = quantile_scores(scores[None], count, num_quantiles=num_quantiles, bounds=UNBOUNDED)
        table.update(row, own, rate=BETA)
        followed.append(table.rows.clone())
    return torch.cat(followed)


def sums(
    scores: Float[Tensor, "repeat n"], others: Float[Tensor, "repeat m"], surrogate: Surrogate, temperature: float
) -> Float[Tensor, "repeat n"]:
    """`ranking_sums`, a few batches at a time."""
    step = max(1, 10_000_000 // (scores.shape[1] * others.shape[1]))
    parts = zip(torch.split(scores, step), torch.split(others, step), strict=True)
    return torch.cat([ranking_sums(a, b, surrogate=surrogate, temperature=temperature) for a, b in parts])


def exact_losses(positives: Tensor, negatives: Tensor) -> dict[str, float]:
    """Of the whole data set in float64 by sorting: 1 − AUPRC (Eq. 3), and the objective with ℓ1 in FPR (Eq. 4)."""
    ahead = 1.0 + positives.argsort(descending=True).argsort().double()
    true_positive = PRIOR * ahead / len(positives)
    ordered = negatives.sort().values
    above = len(negatives) - torch.searchsorted(ordered, positives)
    # Σ ℓ1 by sums of 1, s, s² over the negatives from a place on: quadratic from p − τ1 to p, linear from p on
    tails = [torch.cat([(ordered**power).flip(0).cumsum(0).flip(0), ordered.new_zeros(1)]) for power in range(3)]
    linear = [tail[torch.searchsorted(ordered, positives)] for tail in tails]
    both = [tail[torch.searchsorted(ordered, positives - TAU1)] for tail in tails]
    one, first, second = (a - b for a, b in zip(both, linear, strict=True))
    offset = 1 - positives / TAU1  # ℓ1 = (offset + s/τ1)²
    quadratic = offset**2 * one + 2 * offset / TAU1 * first + second / TAU1**2
    huber = quadratic + linear[0] + 2 * (linear[1] - positives * linear[0]) / TAU1
    losses = {}
    for name, total in {"auprc_loss": above.double(), "surrogate": huber}.items():
        numerator = (1 - PRIOR) * total / len(negatives)
        losses[name] = float((numerator / (numerator + true_positive)).mean())
    return losses


def interpolation_error(name: str, *, repeats: int = 10 * REPEATS, size: int = SIZE) -> dict[str, Any]:
    """Of each interpolation by the number of scores: error of its mean and of one batch, against the true quantiles.

    "bias": root mean square over quantiles of E φ − p; "rms": that of φ − p over quantiles and batches.
    """
    chance = np.random.default_rng(SEED)
    positives = torch.from_numpy(pool(name, chance, size)[0])
    levels = torch.arange(1, NUM_QUANTILES + 1, dtype=torch.float64) / (NUM_QUANTILES + 1)
    truth = positives.quantile(levels)
    result: dict[str, Any] = {}
    for count in COUNTS:
        drawn = subsets(positives, count, repeats, chance).sort(dim=1).values
        counts = torch.full((repeats,), count)
        for kind, interpolate in INTERPOLATIONS.items():
            found = interpolate(drawn, counts, num_quantiles=NUM_QUANTILES, bounds=UNBOUNDED)
            error = found.double() - truth
            result.setdefault(kind, {})[str(count)] = {
                "bias": float(error.mean(dim=0).square().mean().sqrt()),
                "rms": float(error.square().mean().sqrt()),
            }
    return result


def measure() -> dict[str, Any]:
    """All of Figures 1, 4 and 5."""
    settings = {"size": SIZE, "prior": PRIOR, "batch": BATCH, "repeats": REPEATS, "seed": SEED}
    settings |= {"tau1": TAU1, "tau2": TAU2, "beta": BETA, "num_quantiles": NUM_QUANTILES}
    return {
        "settings": settings,
        "estimators": {name: estimator_bias(name) for name in DISTRIBUTIONS},
        "finer": {**FINER, **estimator_bias("binormal", **FINER)},
        "interpolation": {name: interpolation_error(name) for name in DISTRIBUTIONS},
    }

"""The losses of the authors' repositories by their formulas, as slow loops: what their gradients are is compared."""

import math

import torch
from torch import Tensor


class Average:
    """u of each sample: the first value is copied, then u ← (1 − γ)·u + γ·new."""

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        self.values: dict[tuple[int, int], Tensor] = {}

    def of(self, side: int, sample: int, new: Tensor) -> Tensor:
        """u with the new value gone into it, which is kept by `keep`."""
        before = self.values.get((side, sample))
        return new.detach() if before is None else (1 - self.gamma) * before + self.gamma * new.detach()

    def keep(self, side: int, sample: int, value: Tensor) -> None:
        self.values[side, sample] = value.detach()


class Temperatures:
    """τ of each sample in GCLoss_v1: down the average of its gradient, onto the bounds; `clip` as in iSogCLR's."""

    def __init__(self, start: float, *, rate: float, beta: float, bounds: tuple[float, float], clip: float) -> None:
        self.start, self.rate, self.beta, self.bounds, self.clip = start, rate, beta, bounds, clip
        self.values: dict[int, float] = {}
        self.averages: dict[int, float] = {}

    def of(self, sample: int) -> float:
        return self.values.get(sample, self.start)

    def move(self, sample: int, slope: float) -> None:
        slope = min(max(slope, -self.clip), self.clip)
        average = (1 - self.beta) * self.averages.get(sample, 0.0) + self.beta * slope
        moved = self.of(sample) - self.rate * average
        self.averages[sample], self.values[sample] = average, min(max(moved, self.bounds[0]), self.bounds[1])


def libauc_one_modality(
    first: Tensor,
    second: Tensor,
    samples: list[int],
    table: list[float],
    gamma: float,
    temperatures: Temperatures,
    *,
    rho: float = 0.0,
) -> Tensor:
    """GCLoss_v1: the mean over images of the sum over both views of −s⁺ + Σ_j (exp(s_j/τ)/u)·s_j / (2(B − 1)).

    The weights are constants. The table of u is of zeros at first, and γ is 1 in a batch that finds zeros alone; what
    is kept is the mean of both views' u. The views share τ, which moves by the mean of their gradients.
    """
    size, total = len(first), first.new_zeros(())
    gamma = gamma if any(table[sample] for sample in samples) else 1.0
    for image, sample in enumerate(samples):
        tau, kept, slopes = temperatures.of(sample), [], []
        for own, other in ((first, second), (second, first)):
            scores = torch.stack([own[image] @ each[j] for each in (other, own) for j in range(size) if j != image])
            weights = (scores.detach() / tau).exp()
            u = (1 - gamma) * table[sample] + gamma * float(weights.mean())
            total = total + (weights / u * scores).mean() - own[image] @ other[image]
            slopes.append(math.log(u) + rho - float((weights / u * scores.detach()).mean()) / tau)
            kept.append(u)
        table[sample] = sum(kept) / 2
        temperatures.move(sample, sum(slopes) / 2)
    return total / size


def h_and_mean(
    similarity: Tensor, row: int, temperature: float, *, with_positive: bool = False
) -> tuple[list[Tensor], Tensor]:
    """h of each negative of a row, the partner of row i being column i, and the mean of exp(h/τ) over B − 1."""
    h = [similarity[row, j] - similarity[row, row] for j in range(len(similarity)) if with_positive or j != row]
    return h, torch.stack([(each / temperature).exp() for each in h]).sum() / (len(similarity) - 1)


def libauc_two_modalities(similarity: Tensor, samples: list[int], average: Average, *, temperature: float) -> Tensor:
    """GCLoss_v2: half the sum over directions of mean_i Σ_j (exp(h_j/τ)/u)·h_j, the weights constants."""
    total = similarity.new_zeros(())
    for side, scores in enumerate((similarity, similarity.T)):
        for row, sample in enumerate(samples):
            h, mean = h_and_mean(scores, row, temperature)
            u = average.of(side, sample, mean)
            total = total + sum((each.detach() / temperature).exp() / u * each for each in h) / len(samples) / 2
            average.keep(side, sample, u)
    return total


def fastclip(
    similarity: Tensor, samples: list[int], average: Average, *, temperature: float, epsilon: float, multiplied: bool
) -> Tensor:
    """fast_clip: half the sum over directions of mean_i ḡ/(u + ε), u a constant, times τ where it is multiplied."""
    total = similarity.new_zeros(())
    for side, scores in enumerate((similarity, similarity.T)):
        for row, sample in enumerate(samples):
            _, mean = h_and_mean(scores, row, temperature)
            u = average.of(side, sample, mean)
            total = total + mean / (u + epsilon) / len(samples) / 2
            average.keep(side, sample, u)
    return temperature * total if multiplied else total


def isogclr_two_modalities(similarity: Tensor, *, temperature: float, gamma: float) -> Tensor:
    """The two-modality loss of iSogCLR on its first batch: u is γ·ḡ, and ḡ counts the positive."""
    total = similarity.new_zeros(())
    for scores in (similarity, similarity.T):
        for row in range(len(scores)):
            h, mean = h_and_mean(scores, row, temperature, with_positive=True)
            u = gamma * mean.detach()
            weighted = sum((each.detach() / temperature).exp() / u * each for each in h) / (len(scores) - 1)
            total = total + weighted / len(scores)
    return total

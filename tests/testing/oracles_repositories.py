"""The losses of the authors' repositories by their formulas, as slow loops: what their gradients are is compared."""

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


def sogclr(first: Tensor, second: Tensor, samples: list[int], average: Average, *, temperature: float) -> Tensor:
    """SogCLR's repository and LibAUC's GCLoss_v1: the mean over images of the sum over both views.

    For each view −s⁺ + Σ_j (exp(s_j/τ)/u)·s_j / (2(B − 1)), the weights constants. What is kept is the mean of both u.
    """
    size, total = len(first), first.new_zeros(())
    for image in range(size):
        kept = []
        for own, other in ((first, second), (second, first)):
            scores = [own[image] @ each[j] for each in (other, own) for j in range(size) if j != image]
            mean = torch.stack([(score / temperature).exp() for score in scores]).mean()
            u = average.of(0, samples[image], mean)
            weights = [(score.detach() / temperature).exp() / u for score in scores]
            pushed = sum(weight * score for weight, score in zip(weights, scores, strict=True)) / (2 * (size - 1))
            total = total + pushed - own[image] @ other[image]
            kept.append(u)
        average.keep(0, samples[image], (kept[0] + kept[1]) / 2)
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

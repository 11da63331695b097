"""The paper's P2: how much the gradient changes when one positive, or one negative, of a query is replaced.

A linear map of inputs drawn around class centres stands for the network; the loss is that of one query against the rest
of its batch, 4 of each class; the change is the mean of |g − g'| divided by the mean of |g|, over independent batches.
Numbers are means over worlds, each with its own centres, weights and v.

"ap" is Eq. 5 with SOPRC's surrogates; "blackbox_ap" is exact AP, without its random margin and its flat term.
"""

import copy
from statistics import fmean
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from aurank.losses import BlackBoxAPLoss, FastAPLoss, PairLoss, Pairs, SmoothAPLoss, SOPRCLoss
from aurank.losses.ranking.soprc import false_positive_rate

BATCHES = (56, 112, 224)
PER_CLASS, WIDTH, DIM, SPREAD = 4, 64, 32, 1.2
TAU1, TAU2 = 0.1, 0.001
WARM_UP, TRIALS, WORLDS = 50, 40, 5


class APLoss(PairLoss):
    """Eq. 5: mean over positives of σ(Σ ℓ1 over negatives / Σ ℓ2 over positives), itself counted as 1 of those."""

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        """1 − AP with the surrogates of SOPRC; the gradient goes through both sums."""
        scores, mask = pairs.positives.similarity, pairs.positives.mask
        negatives = false_positive_rate(pairs, tau1=TAU1) * pairs.negative_count[:, None]
        higher = ((scores[:, None, :] - scores[:, :, None]) / (2 * TAU2)).relu().tanh()
        positives = 1 + higher.masked_fill(~mask[:, None, :], 0).sum(dim=2)
        return pairs.positives.mean(negatives / (negatives + positives))


def losses(classes: int) -> dict[str, nn.Module]:
    """What is compared, by name."""

    def soprc(**given: Any) -> nn.Module:
        return SOPRCLoss(torch.full((classes,), PER_CLASS), tau1=TAU1, tau2=TAU2, semi_variance=None, **given)

    return {
        "smooth_ap": SmoothAPLoss(),
        "fast_ap": FastAPLoss(),
        "blackbox_ap": BlackBoxAPLoss(margin=0, flat_weight=0),
        "ap": APLoss(),
        "soprc_without_v": soprc(moving_average=False),
        "soprc": soprc(beta=0.1),
        "soprc_beta_0.001": soprc(beta=0.001),
    }


def gradient(loss: nn.Module, weight: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
    """The gradient of the loss of row 0 against all others, by the weights; the loss's state moves."""
    weight = weight.clone().requires_grad_()
    embeddings = inputs @ weight
    value = loss(embeddings[:1], labels[:1], ref_emb=embeddings[1:], ref_labels=labels[1:])
    (found,) = torch.autograd.grad(value, weight)
    return found


def change(batch: int, *, seed: int, trials: int = TRIALS) -> dict[str, dict[str, float]]:
    """For each loss the relative change of the gradient with another "positive" and with another "negative".

    The query is row 0; the positive another row of its class, the negative a row of any other class.
    """
    chance = torch.Generator().manual_seed(seed)
    labels = torch.arange(batch) // PER_CLASS
    centres = torch.randn(batch // PER_CLASS, WIDTH, generator=chance)[labels]

    def draw() -> Tensor:
        return centres + SPREAD * torch.randn(batch, WIDTH, generator=chance)

    weight = torch.randn(WIDTH, DIM, generator=chance) / WIDTH**0.5
    compared = losses(batch // PER_CLASS)
    totals = {name: {"gradient": 0.0, "positive": 0.0, "negative": 0.0} for name in compared}
    with torch.no_grad():
        for _ in range(WARM_UP):  # v follows the scores before it is measured
            inputs = draw()
            for loss in compared.values():
                if isinstance(loss, SOPRCLoss):
                    loss(inputs @ weight, labels)
    for _ in range(trials):
        inputs, other = draw(), draw()
        rows = {"positive": 1, "negative": int(torch.randint(PER_CLASS, batch, (1,), generator=chance))}
        for name, loss in compared.items():
            first = gradient(copy.deepcopy(loss), weight, inputs, labels)
            totals[name]["gradient"] += float(first.norm())
            for kind, row in rows.items():
                replaced = inputs.clone()
                replaced[row] = other[row]
                second = gradient(copy.deepcopy(loss), weight, replaced, labels)
                totals[name][kind] += float((first - second).norm())
    return {
        name: {kind: total[kind] / total["gradient"] for kind in ("positive", "negative")}
        for name, total in totals.items()
    }


def measure() -> dict[str, Any]:
    """The changes at each batch size, means over worlds."""
    batches: dict[str, dict[str, dict[str, float]]] = {}
    for batch in BATCHES:
        worlds = [change(batch, seed=seed) for seed in range(WORLDS)]
        batches[str(batch)] = {
            name: {kind: fmean(world[name][kind] for world in worlds) for kind in ("positive", "negative")}
            for name in worlds[0]
        }
    return {"trials": TRIALS, "seeds": list(range(WORLDS)), "batches": batches}

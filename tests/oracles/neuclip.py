"""A slow reference of NeuCLIP, of the other oracles and torch's AdaGrad; batches for it."""

import torch
from torch import Tensor

from aurank.losses import NeuCLIPLoss
from oracles import Mask, PerQuery, sides, weighted


def normalizer(row: Tensor, others: list[int], pull: Tensor, *, temperature: Tensor | float, epsilon: float) -> Tensor:
    """ε + the mean of exp((s − s⁺)/τ) over some references."""
    total = row.new_zeros(())
    for other in others:
        total = total + ((row[other] - pull) / temperature).exp()
    return epsilon + total / len(others)


def term(g: Tensor, alpha: Tensor, *, temperature: Tensor | float, rho: float) -> Tensor:
    """τ·(e^−α·(ε + g) + α − 1 + ρ), g with its ε."""
    return temperature * ((-alpha).exp() * g + alpha - 1 + rho)


def first_batch(
    similarity: Tensor, positive: Mask, negative: Mask, *, temperature: float, epsilon: float, rho: float
) -> PerQuery:
    """The loss where the prototypes are the query's references, its positives among them, itself not."""
    found = {}
    given = {"temperature": temperature, "epsilon": epsilon}
    for query, (positives, negatives) in sides(positive, negative).items():
        row = similarity[query]
        pull = weighted(row[positives], positive[query], positives)
        alpha = normalizer(row, positives + negatives, pull, **given).log().detach()
        found[query] = term(normalizer(row, negatives, pull, **given), alpha, temperature=temperature, rho=rho)
    return found


class Reference:
    """One direction of NeuCLIP with cosine similarity, in float64: α by its definition, torch.optim.Adagrad."""

    def __init__(self, num_prototypes: int, *, temperature: float, epsilon: float, rho: float, rate: float) -> None:
        self.size, self.temperature, self.epsilon, self.rho, self.rate = num_prototypes, temperature, epsilon, rho, rate
        self.older: list[Tensor] = []  # references of earlier batches, oldest first

    def start(self, references: Tensor) -> None:
        """The prototypes: the references, then the newest of earlier batches, all of unit length."""
        missing = max(0, self.size - len(references))
        rows = [*references[: self.size], *self.older[max(0, len(self.older) - missing) :][:missing]]
        rows = [row / row.norm() for row in rows]
        self.prototypes = torch.stack(rows).detach().clone().requires_grad_()
        self.optimizer = torch.optim.Adagrad([self.prototypes], lr=self.rate)

    def remember(self, references: Tensor) -> None:
        """Nothing; the references are earlier ones from now on."""
        self.older += list(references[: self.size].detach())

    def alphas(self, queries: Tensor, pulls: dict[int, Tensor], temperature: Tensor | float) -> PerQuery:
        found, prototypes = {}, self.prototypes.clone()  # the optimizer moves the others
        for query, pull in pulls.items():
            unit = queries[query] / queries[query].norm()
            row = torch.stack([(unit * each).sum() / each.norm() for each in prototypes])
            everything = list(range(len(row)))
            found[query] = normalizer(row, everything, pull, temperature=temperature, epsilon=self.epsilon).log()
        return found

    def batch(
        self, queries: Tensor, references: Tensor, labels: list[int], ref_labels: list[int], temperature: Tensor | float
    ) -> tuple[PerQuery, PerQuery]:
        """ε + g and s⁺ of each query that has positives and negatives."""
        g, pulls = {}, {}
        for query, label in enumerate(labels):
            row = torch.stack([(queries[query] * r).sum() / queries[query].norm() / r.norm() for r in references])
            positives = [place for place, other in enumerate(ref_labels) if other == label]
            negatives = [place for place, other in enumerate(ref_labels) if other != label]
            if positives and negatives:
                pulls[query] = torch.stack([row[place] for place in positives]).mean()
                given = {"temperature": temperature, "epsilon": self.epsilon}
                g[query] = normalizer(row, negatives, pulls[query], **given)
        return g, pulls

    def step(self, g: PerQuery, queries: Tensor, pulls: PerQuery) -> None:
        """One step of AdaGrad on the prototypes, the batch a constant."""
        alphas = self.alphas(queries.detach(), {row: pull.detach() for row, pull in pulls.items()}, self.temperature)
        terms = []
        for row, alpha in alphas.items():
            terms.append(term(g[row].detach(), alpha, temperature=self.temperature, rho=self.rho))
        self.optimizer.zero_grad()
        torch.stack(terms).mean().backward()
        self.optimizer.step()

    def loss(
        self, g: PerQuery, queries: Tensor, pulls: PerQuery, temperature: Tensor | float, *, detach: bool
    ) -> Tensor:
        """The mean over the queries."""
        terms = []
        for row, alpha in self.alphas(queries, pulls, temperature).items():
            alpha = alpha.detach() if detach else alpha
            terms.append(term(g[row], alpha, temperature=temperature, rho=self.rho))
        return torch.stack(terms).mean()


DIM = 5
SETTINGS = {"temperature": 0.125, "epsilon": 1e-8, "rho": 2.0}  # a temperature that float32 holds exactly
# more texts than images in no order; two texts of one label, images of one label, an image and a text without a partner
LABELS = torch.tensor([4, 0, 1, 7, 2, 4, 3])
TEXT_LABELS = torch.tensor([1, 2, 0, 0, 3, 4, 9, 4, 1])


def two_sides(seed: int = 0) -> tuple[Tensor, Tensor]:
    images, texts = len(LABELS), len(TEXT_LABELS)
    random = torch.Generator().manual_seed(seed)
    rows = torch.randn(images + texts, DIM, generator=random, dtype=torch.float64)
    return rows[:images].clone().requires_grad_(), rows[images:].clone().requires_grad_()


def make(**given: object) -> NeuCLIPLoss:
    return NeuCLIPLoss(DIM, **{"num_prototypes": 20, **SETTINGS, **given}).double()


def call(
    loss: NeuCLIPLoss, images: Tensor, texts: Tensor, labels: Tensor = LABELS, other: Tensor = TEXT_LABELS
) -> Tensor:
    value: Tensor = loss(images, labels, ref_emb=texts, ref_labels=other)
    return value

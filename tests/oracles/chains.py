"""Slow references of the losses that sample negatives, one proposal after the other; batches for them."""

import math

import torch
from torch import Tensor

from oracles import Mask, PerQuery, sides, weighted


def generator_of(seed: int, batch: int) -> torch.Generator:
    """What a loss of this seed draws from for a batch."""
    host = torch.Generator().manual_seed(seed)
    for _ in range(batch + 1):
        number = int(torch.randint(2**62, (), generator=host))
    return torch.Generator().manual_seed(number)


def draws(seed: int, queries: int, references: int, *, batch: int = 0) -> tuple[list[int], Tensor]:
    """The order of the proposals and the exponential numbers that a loss of this seed draws for a batch."""
    device = generator_of(seed, batch)
    order = torch.randperm(references, generator=device).tolist()
    return order, -torch.rand(queries, references, generator=device).log()


def walk(
    scores: list[float],
    wanted: list[bool],
    exponentials: list[float],
    *,
    temperature: float,
    burn_in: int,
    start: float = -math.inf,
) -> tuple[list[int], int]:
    """How many kept steps a chain spent at its start and at each proposal, and where it ended, 0 being the start."""
    spent, at, current, step = [0] * (1 + len(scores)), 0, start, 0
    for place, (score, proposed, exponential) in enumerate(zip(scores, wanted, exponentials, strict=True), start=1):
        if not proposed:
            continue
        if score + temperature * exponential > current:  # log U < (score − current) / temperature
            at, current = place, score
        if step >= burn_in:
            spent[at] += 1
        step += 1
    return spent, at


def emc2_first_batch(
    similarity: Tensor,
    positive: Mask,
    negative: Mask,
    ids: list[int] | None,
    *,
    temperature: float,
    burn_in: float = 0.5,
    seed: int = 0,
) -> PerQuery:
    """−mean s⁺ + the mean of s over the kept states of a chain that has no state yet; each id is proposed once."""
    order, exponentials = draws(seed, *similarity.shape)
    found = {}
    for query, (positives, negatives) in sides(positive, negative).items():
        row = similarity[query]
        proposed = once_each(order, negatives, ids)
        skipped = int(burn_in * len(proposed))
        spent, _ = walk(
            row[order].tolist(),
            [column in proposed for column in order],
            exponentials[query].tolist(),
            temperature=temperature,
            burn_in=skipped,
        )
        total = sum(spent[place] * row[column] for place, column in enumerate(order, start=1))
        found[query] = total / (len(proposed) - skipped) - weighted(row[positives], positive[query], positives)
    return found


def once_each(order: list[int], negatives: list[int], ids: list[int] | None) -> list[int]:
    """The negative of each id that comes first."""
    coming = [column for column in reversed(order) if column in negatives]
    return coming if ids is None else list({ids[column]: column for column in coming}.values())


def negative_cache_first_batch(
    similarity: Tensor,
    positive: Mask,
    negative: Mask,
    *,
    temperature: float,
    samples: int,
    weighted: bool,
    seed: int = 0,
) -> PerQuery:
    """(1 − p⁺)·(s⁻ − mean s⁺) for a negative drawn by Gumbel-max, while the cache of all samples is empty."""
    noise = gumbel_noise(seed, len(similarity), [similarity.shape[1], samples])
    return {
        query: pushed_and_pulled(similarity[query], *both, noise[query], temperature=temperature, weighted=weighted)
        for query, both in sides(positive, negative).items()
    }


def gumbel_noise(seed: int, queries: int, pieces: list[int], *, batch: int = 0) -> list[list[float]]:
    """The noise of each query's candidates that a negative cache of this seed draws for a batch, in pieces."""
    generator = generator_of(seed, batch)
    uniform = [torch.rand(queries, size, generator=generator, dtype=torch.float64) for size in pieces]
    return [[-math.log(-math.log(number)) for number in row] for row in torch.cat(uniform, dim=1).tolist()]


def pushed_and_pulled(
    row: Tensor, positives: list[int], negatives: list[int], noise: list[float], *, temperature: float, weighted: bool
) -> Tensor:
    """(1 − p⁺)·(s⁻ − mean s⁺) of one query with similarity to each candidate, its negative drawn by Gumbel-max."""
    plain = row.tolist()
    drawn = max(negatives, key=lambda column: plain[column] / temperature + noise[column])
    pull = sum(row[reference] for reference in positives) / len(positives)
    push = sum(math.exp(plain[column] / temperature) for column in negatives)
    share = push / (push + math.exp(float(pull.detach()) / temperature)) if weighted else 1.0
    return share * (row[drawn] - pull)


IMAGES, DIM = 24, 6
ENCODED = torch.nn.functional.normalize(
    torch.randn(2, IMAGES, DIM, generator=torch.Generator().manual_seed(3), dtype=torch.float64), dim=2
)


def batch(images: list[int], *, seed: int = 0) -> dict[str, Tensor]:
    """Embeddings of both views of some images."""
    rows = torch.randn(2 * len(images), DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return {"embeddings": rows.requires_grad_(), "labels": torch.tensor(images * 2)}


BATCHES = ([0, 1, 2], [0, 3, 4], [5, 0, 1], [2, 3, 0], [4, 1, 6], [0, 5, 2])

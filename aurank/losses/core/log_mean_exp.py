"""Terms of the contrastive losses: the similarity of positives, and the log mean of exp(s/τ) over negatives."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from aurank.losses.core.pairs import Pairs

AnyTemperature = Float[Tensor, ""] | Float[Tensor, " query"] | float


def attraction(pairs: Pairs) -> Float[Tensor, " query"]:
    """The mean similarity of each query to its positives; 0 without any."""
    return pairs.positives.mean(pairs.positives.similarity)


def log_mean_exp(
    pairs: Pairs, temperature: AnyTemperature, *, relative: bool = False, with_positives: bool = False
) -> Float[Tensor, " query"]:
    """log of the mean of exp(s/τ) over each query's negatives in the batch; 0 for a query without any.

    temperature: one for all, or one for each query.
    relative: s less the mean similarity to the query's positives, h of iSogCLR, FastCLIP and NeuCLIP.
    with_positives: the mean is over positives and negatives.
    """
    temperature = column(temperature)
    wanted = pairs.negative | pairs.positive if with_positives else pairs.negative
    similarity = pairs.similarity - attraction(pairs)[:, None] if relative else pairs.similarity
    count = wanted.sum(dim=1)
    # A query without any: its row of minus infinities would have no gradient that is a number.
    scores = (similarity / temperature).masked_fill(~wanted & (count > 0)[:, None], -torch.inf)
    found = torch.logsumexp(scores, dim=1) - count.clamp(min=1).to(similarity.dtype).log()
    return torch.where(count > 0, found, 0)


def add_epsilon(log_value: Float[Tensor, " query"], epsilon: float) -> Float[Tensor, " query"]:
    """log(ε + exp(value))."""
    return torch.logaddexp(log_value, torch.full_like(log_value, math.log(epsilon))) if epsilon else log_value


def column(temperature: AnyTemperature) -> Tensor | float:
    """A temperature for each query as a column beside the similarity; one for all as it is."""
    return temperature[:, None] if isinstance(temperature, Tensor) and temperature.ndim == 1 else temperature

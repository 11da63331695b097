"""What the global contrastive losses have in common: the mean over negatives of exp(s/τ), in logarithms.

Each of them descends −s⁺ + τ·log g, where g is the mean of exp(s⁻/τ) over all negatives of the data set; a batch shows
a few. They differ in what stands for log g, its *normaliser*: a moving average, a Markov chain, a network. The batch's
own mean ḡ gives the direction, the normaliser ℓ the weight: the gradient is (τ / exp ℓ)·∇ḡ.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from aurank.losses.core.keyed_loss import keys
from aurank.losses.core.pairs import Pairs
from aurank.losses.core.row_table import RowTable

STEEPEST = 80.0  # greatest logarithm of a weight

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


def descend(
    log_mean: Float[Tensor, " query"], log_normalizer: Float[Tensor, " query"], temperature: AnyTemperature
) -> Float[Tensor, " query"]:
    """τ·ℓ for each query, with the gradient (τ / exp ℓ)·∇ḡ, and in τ what τ·log g would have.

    log_mean: log ḡ of the batch, with its graph. log_normalizer: ℓ, taken as a constant.
    """
    normalizer = log_normalizer.detach()
    # Bounded by 1 / γ, unless u is from before this batch; there it must not overflow, for the difference below is 0.
    weight = (log_mean.detach() - normalizer).clamp(max=STEEPEST).exp()
    constant = temperature.detach() if isinstance(temperature, Tensor) else temperature
    return temperature * normalizer + constant * weight * (log_mean - log_mean.detach())


def normalizer_tables(num_samples: int, *, two_way: bool) -> nn.ModuleList:
    """A table of log u, one number for each sample, for each direction."""
    return nn.ModuleList(RowTable(num_samples, 1, logarithms=True) for _ in range(1 + two_way))


def stacked(tables: nn.ModuleList, column: int = 0) -> Float[Tensor, "direction sample"]:
    """One column of the tables of all directions."""
    for table in tables:
        assert isinstance(table, RowTable)
        table.settle()
    return torch.stack([table.get_buffer("rows")[:, column] for table in tables])


@torch.no_grad()
def moving_normalizer(
    tables: nn.ModuleList,
    pairs: Pairs,
    log_mean: Float[Tensor, " query"],
    *,
    gamma: float,
    shared: bool = False,
    previous: bool = False,
    write: bool,
) -> Float[Tensor, " query"]:
    """log u of each query's sample, u being the moving average of ḡ with this batch's gone into it.

    shared: what goes in is the mean of ḡ over all views of the sample; else each query's own, though what the table
    keeps is the mean either way. previous: u as it was before, where the sample was seen. write: the direction's table
    takes over.
    """
    table = tables[pairs.side]
    assert isinstance(table, RowTable)
    index, values, rows = keys(pairs), log_mean.detach()[:, None].to(table.rows.dtype), pairs.valid_rows
    before, seen = table.read(index)
    own = values
    if shared and len(rows):
        own = values.index_copy(0, rows, table.mean(index[rows], values[rows])[0])
    normalizer = table.blended(index, own, rate=gamma)
    if previous:
        normalizer = torch.where(seen[:, None], before, normalizer)
    if write:
        table.update(index[rows], values[rows], rate=gamma, is_shared=pairs.is_shared)
    return normalizer[:, 0].to(log_mean.dtype)

"""EMC²: negatives of the whole data set, sampled by Markov chains over the batches."""

from typing import Annotated, ClassVar, Literal, Unpack, get_args

import torch
from jaxtyping import Bool, Float, Int64
from pytorch_metric_learning.distances import BaseDistance
from torch import Tensor, nn

from aurank.errors import UserError
from aurank.losses.core.checks import Number, SoftmaxTemperature, require_number
from aurank.losses.core.pair_loss import KeyedLoss, PairLossOptions, query_ids
from aurank.losses.core.pairs import Inputs, Pairs
from aurank.losses.core.row_table import SavedGenerator, writes
from aurank.losses.core.temperature import attraction
from aurank.losses.global_contrastive._kept_rows import NONE, EmbedByIds, TaggedTable, embedded_anew, row_similarity
from aurank.names import require_choice
from aurank.ranges import Range

# Of running maxima at a time; what else the chains of a chunk need is about as much. A GPU wants few large steps.
TABLE_BYTES = {"cpu": 2**24, "gpu": 2**28}


@torch.no_grad()
def occupancy(
    scores: Float[Tensor, "chain proposal"],
    start: Float[Tensor, " chain"],
    exponentials: Float[Tensor, "chain proposal"],
    is_proposed: Bool[Tensor, "chain proposal"],
    burn_in: Int64[Tensor, " chain"],
    *,
    temperature: float,
) -> tuple[Float[Tensor, "chain 1+proposal"], Int64[Tensor, " chain"]]:
    """Return how many kept steps each chain spent where, and where it ended: 0 is its start, j + 1 proposal j."""
    number = scores.shape[1]
    reach = torch.where(is_proposed, scores + temperature * exponentials, -torch.inf)
    following = next_above(reach, torch.cat([start[:, None], scores], dim=1))
    visited = path(following)
    # when a state is entered, in steps that count: proposals before the one that led there, `number` at the end
    steps = torch.nn.functional.pad(is_proposed.to(scores.dtype).cumsum(dim=1), (1, 0))
    steps = torch.maximum(steps, burn_in[:, None].to(scores.dtype))
    entered = torch.cat([steps[:, :1], steps[:, :-1]], dim=1)
    stayed = (steps.gather(1, following) - entered).masked_fill_(~visited, 0)
    last = (visited & (following == number)).to(torch.uint8).argmax(dim=1)
    return stayed, last


def next_above(
    values: Float[Tensor, "chain proposal"], levels: Float[Tensor, "chain 1+proposal"]
) -> Int64[Tensor, "chain 1+proposal"]:
    """Return for each j the first index from j on whose value is above level j; the number of values if none is."""
    number = values.shape[1]
    depth = number.bit_length()
    maxima = values.new_empty(depth, len(values), number + 1)  # maxima[h, :, p]: of the 2**h values from p on
    maxima[0, :, :number] = values
    maxima[0, :, number] = torch.inf  # the end, which no search goes beyond
    for height in range(1, depth):
        half = 2 ** (height - 1)
        torch.maximum(maxima[height - 1, :, :-half], maxima[height - 1, :, half:], out=maxima[height, :, :-half])
        maxima[height, :, -half:] = torch.inf
    position = torch.arange(number + 1, device=values.device).repeat(len(values), 1)
    for height in reversed(range(depth)):
        position.add_(maxima[height].gather(1, position) <= levels, alpha=2**height)
    return position


def path(following: Int64[Tensor, "chain node"]) -> Bool[Tensor, "chain node"]:
    """Return True at the nodes of a chain that starts at 0 and goes from j to following[j] + 1, to beyond the last."""
    chains, size = following.shape
    width = 2 ** -(-(size - 1).bit_length() // 2)
    number = -(-size // width)
    end = number * width
    target = torch.nn.functional.pad(following + 1, (0, end - size), value=end)
    target.masked_fill_(target == size, end)
    blocks = target.view(chains, number, width)
    border = torch.arange(width, end + 1, width, device=following.device)  # where each block ends
    leaves = target.clone()
    for offset in reversed(range(width - 1)):
        to = blocks[:, :, offset]
        onward = leaves.gather(1, to.clamp(max=end - 1))
        leaves.view(chains, number, width)[:, :, offset] = torch.where(to < border, onward, to)
    at = following.new_zeros(chains)
    entered = following.new_full((chains, number), end)
    for block in range(number):
        is_inside = at < (block + 1) * width
        entered[:, block] = torch.where(is_inside, at, end)
        at = torch.where(is_inside, leaves.gather(1, at.clamp(max=end - 1)[:, None])[:, 0], at)
    visited = torch.empty_like(blocks, dtype=torch.bool)
    for offset in range(width):
        is_inside = entered == border - width + offset
        visited[:, :, offset] = is_inside
        entered = torch.where(is_inside, blocks[:, :, offset], entered)
    return visited.view(chains, end)[:, :size]


def first_views(pairs: Pairs, order: Int64[Tensor, " reference"]) -> Bool[Tensor, "query reference"]:
    """Return True at the negatives of each query that come first of their id in this order."""
    if pairs.reference_ids is None:
        return pairs.negative
    sample = torch.searchsorted(pairs.reference_ids.sort().values, pairs.reference_ids)  # a number of each id
    position = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order), device=order.device))
    chosen = torch.empty_like(pairs.negative)
    for negative, out in zip(torch.split(pairs.negative, 256), torch.split(chosen, 256), strict=True):  # bounds memory
        of_negatives = torch.where(negative, position, len(order))
        first = torch.full_like(of_negatives, len(order)).scatter_reduce_(
            1, sample.expand_as(negative), of_negatives, "amin"
        )
        torch.logical_and(negative, of_negatives == first.index_select(1, sample), out=out)
    return chosen


OutsideState = Literal["stored", "restart", "reencode"]


class Chains(nn.Module):
    def __init__(
        self,
        num_samples: int,
        temperature: Number,
        burn_in: Number,
        *,
        out_of_batch: OutsideState,
        embedding_size: int | None,
        seed: int,
        official: bool,
    ) -> None:
        super().__init__()
        self.temperature = require_number("temperature", temperature)
        self.burn_in = require_number("burn_in", burn_in, "[0, 1)")
        self.out_of_batch = require_choice("out_of_batch", out_of_batch, get_args(OutsideState))
        self.official = official
        self.random = SavedGenerator(seed)
        self.keeps_embedding = out_of_batch == "stored" and not official
        self.table = TaggedTable(num_samples, (embedding_size or 0) if self.keeps_embedding else int(official))

    def check_width(self, embeddings: Float[Tensor, "batch dim"]) -> None:
        if self.keeps_embedding:
            self.table.check_width(embeddings)

    def forward(
        self, pairs: Pairs, distance: BaseDistance, *, reencode: EmbedByIds | None, write: bool
    ) -> Float[Tensor, " query"]:
        """Continue each query's chain over its negatives; return the mean similarity to the states kept (Eq. 11)."""
        similarity, device = pairs.similarity.detach(), pairs.similarity.device
        score, column, inside, outside = self._start(pairs, distance, reencode)
        generator, number = self.random.on_device(device), similarity.shape[1]
        order = torch.randperm(number, generator=generator, device=device)
        if self.official:  # the batch's order, in which every view is proposed
            order = torch.arange(number, device=device)
        proposed = pairs.negative if self.official else first_views(pairs, order)
        count = proposed.sum(dim=1)
        skipped = (count.to(torch.float64) * self.burn_in).to(torch.int64)
        counted = count - skipped
        if self.official:  # steps up to `skipped` are not kept, be they negatives or not
            skipped = (pairs.negative & (order <= skipped[:, None])).sum(dim=1)

        steps, outside_steps, last = (torch.empty_like(like) for like in (similarity, score, column))
        room = TABLE_BYTES["cpu" if device.type == "cpu" else "gpu"]
        size = max(1, room // (4 * (number + 1) * number.bit_length()))
        for rows in (slice(first, first + size) for first in range(0, len(similarity), size)):
            scores, is_proposed = (each[rows].index_select(1, order) for each in (similarity, proposed))
            # float32 whatever the precision of the loss, so that it does not change the numbers
            uniform = torch.rand(scores.shape, generator=generator, device=device, dtype=torch.float32)
            waits = uniform.log_().neg_().to(scores.dtype)
            stayed, ended = occupancy(
                scores, score[rows], waits, is_proposed, skipped[rows], temperature=self.temperature
            )
            steps[rows].index_copy_(1, order, stayed[:, 1:])
            outside_steps[rows] = stayed[:, 0]
            last[rows] = torch.where(ended > 0, order[(ended - 1).clamp(min=0)], NONE)

        # a state that is in the batch is one of its references, with their gradient
        steps.scatter_add_(1, column[:, None], (outside_steps * inside)[:, None])
        outside_steps = outside_steps * ~inside * (not self.official)
        last = torch.where((last == NONE) & inside, column, last)
        if write and self._write(pairs, last):
            self.random.advance()
        total: Tensor = torch.linalg.vecdot(steps, pairs.similarity)
        return (total + outside_steps * outside) / counted.clamp(min=1)

    def _start(
        self, pairs: Pairs, distance: BaseDistance, reencode: EmbedByIds | None
    ) -> tuple[Float[Tensor, " query"], Int64[Tensor, " query"], Bool[Tensor, " query"], Float[Tensor, " query"]]:
        index = query_ids(pairs)
        state, (rows, seen) = self.table.tags[index], self.table.read(index)
        outside = torch.zeros_like(pairs.similarity[:, 0])
        if self.official:  # by the similarity that the state had when it was accepted, be it in the batch or not
            score = torch.where(seen, rows[:, 0].to(pairs.similarity.dtype), -torch.inf)
            return score, torch.zeros_like(state), torch.zeros_like(seen), outside
        column, inside = self._in_batch(pairs, state)
        has_state, embeddings = torch.zeros_like(seen), None
        if self.out_of_batch == "stored":
            has_state, embeddings = seen, rows.to(pairs.query)
        elif self.out_of_batch == "reencode":
            if pairs.reference_ids is None:
                raise UserError(
                    'EMC² with out_of_batch="reencode" names its states by ids: pass ref_ids beside ref_emb'
                )
            has_state, embeddings = state != NONE, torch.zeros_like(pairs.query)
            absent = has_state & ~inside
            embeddings[absent] = embedded_anew(reencode, state[absent], pairs, name="EMC²")
        if embeddings is not None and embeddings.shape[1]:
            with torch.enable_grad():
                outside = row_similarity(distance, pairs.query, embeddings)
        elsewhere = torch.where(has_state, outside.detach(), -torch.inf)
        inside_score = pairs.similarity.detach().gather(1, column[:, None])[:, 0]
        return torch.where(inside, inside_score, elsewhere), column, inside, outside

    def _in_batch(
        self, pairs: Pairs, state: Int64[Tensor, " query"]
    ) -> tuple[Int64[Tensor, " query"], Bool[Tensor, " query"]]:
        if pairs.reference_ids is None:
            return torch.zeros_like(state), torch.zeros_like(state, dtype=torch.bool)
        ordered, first = pairs.reference_ids.sort(stable=True)
        position = torch.searchsorted(ordered, state).clamp(max=len(ordered) - 1)
        column, same = first[position], (ordered[position] == state) & (state != NONE)
        return column, same & pairs.negative.gather(1, column[:, None])[:, 0]

    @torch.no_grad()
    def _write(self, pairs: Pairs, last: Int64[Tensor, " query"]) -> bool:
        rows = pairs.valid_rows
        index, column = query_ids(pairs)[rows], last[rows]
        moved, column = column != NONE, column.clamp(min=0)
        values = pairs.reference.detach()[column, : None if self.keeps_embedding else 0]
        if self.official:
            values = pairs.similarity.detach()[rows, column][:, None]
        before = self.table.read(index)[0]
        if before.shape[1] == values.shape[1]:
            values = torch.where(moved[:, None], values.to(before.dtype), before)
        # without ids of the references a state has no name, only what is kept of it
        names = torch.full_like(column, NONE) if pairs.reference_ids is None else pairs.reference_ids[column]
        tags = torch.where(moved, names, self.table.tags[index])
        return self.table.put(index, tags, values, is_shared=pairs.is_shared)


class EMC2Loss(KeyedLoss):
    """−s⁺ (a weighted mean) + the mean of s over negatives that a Markov chain of the query's sample visits.

    With independent uniform proposals the chain's stationary distribution is the softmax of s/τ over all negatives of
    the data set, their weights in the gradient of the global contrastive loss (Eq. 4). Only the batch is at hand here,
    and its images are proposed without replacement, so the gradient is near that one, not equal to it in the mean. The
    value is no estimate of that loss.

    In each batch the chain continues from its state Z: each image among the query's negatives is proposed once, by the
    view that a random order has first (the paper proposes every view), and accepted with probability
    min(1, exp((s_j − s_Z)/τ)) at the current weights (Alg. 1). States after the burn-in count as often as they were
    kept. At τ = 0.2 their total variation from the softmax is 0.028 for 40 images in batches of 4 or 8; 0.020 and 0.054
    for 10 images. With both views proposed it is 0.116, 0.074, 0.063 and 0.013: better only where a batch is nearly the
    data set.

    Rows of one id, its views, each continue from the same state, and the last in the batch sets the next one; the
    authors run them one after the other. With fixed augmentations, give each view an id, image · views + view, and
    num_samples to match. References without `ref_ids` have no name, so a state among them is out of batch later on.

    Args:
        num_samples: rows of the data set, which `ids` (or labels, in their absence) name: each has one chain.
        temperature: τ.
        burn_in: share of the steps of a batch that are not kept, rounded down.
        out_of_batch: how a state that is not among the query's negatives in the batch is scored: "stored", by its
            embedding when it was accepted; "restart", not at all, so that the first proposal is accepted; "reencode",
            by `reencode`, a function that embeds ids (`aurank train` sets it). A stored embedding is a constant; a new
            one has a gradient if the function returns it with a graph, as the authors' code does and `aurank train`
            does not. "stored" keeps num_samples · embedding_size numbers where the loss is, and in each checkpoint:
            5 GB for ten million samples in 128 dimensions. The other two keep 9 bytes a sample.
        embedding_size: width of the embeddings; None takes it from the first batch.
        seed: where the random numbers start; the position in the sequence is saved.
        official: True does as the authors' code (contrastive_emc2, commit 3641ed9) at its burn_in of 0.5. The state is
            scored by its similarity when it was accepted; proposals come in the order of the batch; step r counts if r
            is above the burn-in, positives being steps; both views are proposed; states outside of the batch count in
            the mean but are left out of the sum; and the loss is 1/τ times as large, as in the paper.

    Source: Yau et al., ICML 2024, https://arxiv.org/abs/2404.10575.

    Example:
        >>> import torch
        >>> loss = EMC2Loss(num_samples=4)
        >>> loss(torch.eye(4).repeat(2, 1), torch.arange(4).repeat(2))  # s⁺ = 1, and all s⁻ = 0
        tensor(-1.)
        >>> loss.states.shape  # the image at which each chain is now
        torch.Size([4])
    """

    reencode: EmbedByIds | None = None
    unused: ClassVar = {("official", True): ("burn_in", "out_of_batch")}

    def __init__(
        self,
        num_samples: int,
        temperature: SoftmaxTemperature = 0.07,
        burn_in: Annotated[Number, Range(0.0, 0.9)] = 0.5,
        *,
        out_of_batch: OutsideState = "stored",
        embedding_size: int | None = None,
        seed: int = 0,
        official: bool = False,
        views: int = 2,
        **options: Unpack[PairLossOptions],
    ) -> None:
        super().__init__(num_samples, views=views, **options)
        self.wants_reencode = out_of_batch == "reencode"
        self.chains = Chains(
            num_samples,
            temperature,
            burn_in,
            out_of_batch=out_of_batch,
            embedding_size=embedding_size,
            seed=seed,
            official=official,
        )

    @property
    def states(self) -> Int64[Tensor, " sample"]:
        """The id of each chain's state; −1 for a chain without one, or with one that has no name."""
        return self.chains.table.tags

    def prepared(self, inputs: Inputs) -> Inputs:
        self.chains.check_width(inputs.embeddings)
        return super().prepared(inputs)

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        repulsion: Tensor = self.chains(pairs, self.distance, reencode=self.reencode, write=writes(self))
        difference = repulsion - attraction(pairs)
        return difference / self.chains.temperature if self.chains.official else difference

"""Negative cache: negatives drawn from the softmax over stored embeddings."""

import math
from collections.abc import Iterable, Iterator
from functools import reduce
from typing import ClassVar, Literal, Unpack, get_args

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from aurank.losses.core.checks import Number, SoftmaxTemperature, require_number
from aurank.losses.core.pair_loss import KeyedLoss, PairLossOptions, query_ids
from aurank.losses.core.pairs import Inputs, Pairs
from aurank.losses.core.row_table import Counters, SavedGenerator, writes
from aurank.losses.core.temperature import attraction
from aurank.losses.global_contrastive._kept_rows import EmbedByIds, TaggedTable, embedded_anew, row_similarity
from aurank.names import require_choice

OutsideNegative = Literal["stored", "reencode"]

SCORES = 2**20  # of queries with candidates at a time, of some 30 bytes each, noise and masks included


@torch.no_grad()
def gumbel_max(
    pieces: Iterable[Float[Tensor, "query _"]], generator: torch.Generator | None
) -> tuple[Int64[Tensor, " query"], Float64[Tensor, " query"]]:
    """Return a candidate for each query, drawn from the softmax of its scores, and log Σ exp(score)."""
    heights, candidates, log_sums, before = [], [], [], 0
    for scores in pieces:
        # in float64: of ten million numbers in float32 several are the greatest below 1, and the first would be drawn
        uniform = torch.rand(scores.shape, generator=generator, device=scores.device, dtype=torch.float64)
        height, candidate = uniform.log_().neg_().log_().neg_().add_(scores).max(dim=1)
        heights.append(height)
        candidates.append(candidate + before)
        log_sums.append(scores.logsumexp(dim=1).to(torch.float64))
        before += scores.shape[1]
    best = torch.stack(heights).argmax(dim=0, keepdim=True)
    return torch.stack(candidates).gather(0, best)[0], reduce(torch.logaddexp, log_sums)


class NegativeCacheLoss(Counters, KeyedLoss):
    """w·(s⁻ − s⁺) of each query, its one negative drawn by Gumbel-max from the softmax of s/τ over the whole data set.

    Samples of the batch have their current embeddings, all others those of the last batch that held them. w = 1 − p⁺,
    where p⁺ is the positive's share of the softmax over it and all negatives, so the gradient is in the mean that of
    the cross-entropy, times τ. The value is no estimate of the loss. Samples not seen yet, and those of the query's
    label, are no candidates. The EMC² paper, which compares with it, stores images that are not augmented, and embeds B
    of them beside a batch; here each sample's last view in the batch is stored.

    The cache takes num_samples · embedding_size numbers where the loss is, and in each checkpoint: 5 GB for ten million
    samples in 128 dimensions. Each step compares every query with all of it.

    State: `cache.rows`, the embeddings, and `cache.tags`, the labels, by sample; `turn` as extra state.

    Args:
        out_of_batch: what a drawn negative that is not in the batch is: its "stored" embedding, or embedded anew
            ("reencode") by `reencode`, a function of ids that `aurank train` sets, and refreshed in the cache. A stored
            one is a constant; a new one has a gradient if the function returns it with a graph, as the authors' does.
        refresh: ρ, the share of the cache embedded anew at each step, by turns, for "reencode".
        positive_in_denominator: False sets w = 1, the gradient of the contrastive loss without the positive in its sum.
        num_samples, temperature, embedding_size, seed: as in `EMC2Loss`.

    Source: Lindgren et al., NeurIPS 2021, https://openreview.net/forum?id=824xC-SgWgU.

    Example:
        >>> loss = NegativeCacheLoss(num_samples=4, positive_in_denominator=False)
        >>> loss(torch.eye(4).repeat(2, 1), torch.arange(4).repeat(2))  # s⁺ = 1, and all s⁻ = 0
        tensor(-1.)
        >>> loss.cache.rows.shape
        torch.Size([4, 4])
    """

    unused: ClassVar = {("out_of_batch", "stored"): ("refresh",)}

    one_label = "its cache keeps one for each sample; take sogclr or emc2"
    COUNTERS = ("turn",)
    reencode: EmbedByIds | None = None

    def __init__(
        self,
        num_samples: int,
        temperature: SoftmaxTemperature = 0.07,
        *,
        out_of_batch: OutsideNegative = "stored",
        refresh: Number = 0.0,
        positive_in_denominator: bool = True,
        embedding_size: int | None = None,
        seed: int = 0,
        views: int = 2,
        **options: Unpack[PairLossOptions],
    ) -> None:
        super().__init__(num_samples, views=views, **options)
        self.temperature = require_number("temperature", temperature)
        self.out_of_batch = require_choice("out_of_batch", out_of_batch, get_args(OutsideNegative))
        self.wants_reencode = out_of_batch == "reencode"
        self.refresh = require_number("refresh", refresh, "[0, 1]")
        self.positive_in_denominator = positive_in_denominator
        self.random = SavedGenerator(seed)
        self.cache = TaggedTable(num_samples, embedding_size or 0)
        self.turn = 0  # the first sample to be embedded anew next

    def prepared(self, inputs: Inputs) -> Inputs:
        self.cache.check_width(inputs.embeddings)
        return super().prepared(inputs)

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        generator = self.random.on_device(pairs.query.device)
        drawn, log_sum = gumbel_max(self._scores(pairs), generator)  # a reference, or their number plus a sample
        size, is_empty = pairs.similarity.shape[1], self.cache.rows.shape[1] == 0  # of no width before the first batch
        inside, sample = drawn < size, (drawn - size).clamp(min=0)
        embeddings = torch.zeros_like(pairs.query) if is_empty else self.cache.rows[sample].to(pairs.query)
        anew, values = sample[:0], embeddings[:0]
        if self.wants_reencode:
            anew = sample[~inside]
            embeddings[~inside] = values = embedded_anew(self.reencode, anew, pairs, name=type(self).__name__)
        push = pairs.similarity.gather(1, drawn.clamp(max=size - 1)[:, None])[:, 0]
        if not is_empty:
            push = torch.where(inside, push, row_similarity(self.distance, pairs.query, embeddings))
        pull = attraction(pairs)
        if writes(self):
            self._write(pairs, anew, values)
        if not self.positive_in_denominator:
            return push - pull
        share = torch.sigmoid(log_sum.to(pull) - pull.detach() / self.temperature)
        return share * (push - pull)

    @torch.no_grad()
    def _scores(self, pairs: Pairs) -> Iterator[Float[Tensor, "query _"]]:
        query, labels = pairs.query.detach(), pairs.query_labels[:, None]
        size = max(1, SCORES // max(query.shape))  # queries stay whole, so that each row is normalised once
        for scores in torch.split(pairs.negative_similarity.detach(), size, dim=1):
            yield scores / self.temperature
        if self.cache.rows.shape[1] == 0:
            return
        present = query_ids(pairs)  # in the batch or among its references, where they are as they are now
        if pairs.reference_ids is not None:
            named = (pairs.reference_ids >= 0) & (pairs.reference_ids < self.num_samples)
            present = torch.cat([present, torch.where(named, pairs.reference_ids, present[0])])
        cached = self.cache.seen.index_fill(0, present, False)
        parts = (torch.split(each, size) for each in (self.cache.rows, self.cache.tags, cached))
        for rows, tags, is_candidate in zip(*parts, strict=True):
            beyond = self.distance(query, rows.to(query))
            beyond = beyond if self.distance.is_inverted else -beyond
            yield beyond.masked_fill_(~(is_candidate & (tags != labels)), -torch.inf).div_(self.temperature)

    @torch.no_grad()
    def _write(self, pairs: Pairs, anew: Int64[Tensor, " entry"], values: Float[Tensor, "entry dim"]) -> None:
        rows = pairs.valid_rows
        number = math.ceil(self.refresh * self.num_samples)
        turn = (torch.arange(number, device=rows.device) + self.turn) % self.num_samples
        turn = turn[self.cache.seen[turn]] if number else turn
        fresh = embedded_anew(self.reencode, turn, pairs, name=type(self).__name__) if number else values[:0]
        index = torch.cat([anew, turn])
        wrote = self.cache.put(
            torch.cat([index, query_ids(pairs)[rows]]),
            torch.cat([self.cache.tags[index], pairs.query_labels[rows]]),
            torch.cat([values, fresh, pairs.query[rows]]),
            is_shared=pairs.is_shared,
        )
        if wrote:
            self.random.advance()
            self.turn = (self.turn + number) % self.num_samples

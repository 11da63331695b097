"""Hierarchical average precision (HAPPIER, Ramzi et al., ECCV 2022): a mistake within the super-category costs less."""

from typing import Annotated, Any, Literal, Unpack, get_args

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from aurank.errors import UserError
from aurank.losses.core.checks import (
    Number,
    StepTemperature,
    check_width,
    is_integer,
    kind_of,
    require_choice,
    require_number,
    require_whole,
)
from aurank.losses.core.common import normalize, to_device_of
from aurank.losses.core.pair_loss import PairLoss, PairLossOptions
from aurank.losses.core.pairs import Inputs, Pairs, Positives, same_label_index
from aurank.losses.ranking.sup_rank import BoundedRanks, ascending, count_ahead
from aurank.ranges import Range

Relevance = Literal["level", "mean_ap"]


class HierarchicalAPLoss(PairLoss):
    """(1 − λ) · an upper bound of each query's 1 − H-AP + λ · a clustering term (HAPPIER).

    A reference of the query's class is of level L, one of its super-category of level L − 1, and so on; all others, of
    level 0, are irrelevant. With the relevance rel of a level,

        H-AP = Σ_k (Σ_{j: s_j ≥ s_k} min(rel_j, rel_k)) / rank_k / Σ_k rel_k,

    over the relevant references k, j among them k itself. Numerator and what is at least as relevant as k are
    counted exactly and without a gradient; each less relevant reference adds H⁻(s_j − s_k) of `SupAPLoss` to rank_k.
    So the loss is at least 1 − H-AP. Without super-labels, or where no two classes share one, H-AP is AP, and the loss
    `SupAPLoss` without its calibration. Time is O(queries · relevant · references), memory that of the similarity.

    As everywhere, queries without another reference of their class are left out. With a miner, the references that it
    kept are ranked. Batches need classes of one super-category: `sampler: {name: hierarchical}`.

    Args:
        super_labels: the super-category of each class 0 … C − 1, [class], or several levels [class, level], from the
            nearest to the widest, each within the next; −1: none, shared with no class. A configuration fills it in
            from the data set. None: one level.
        relevance: "level": (l/L)^alpha / |Ω_l| for each of the references Ω_l of exactly level l, as the paper: a level
            counts alike however many it has, but where there are few of a wide one, each of these may outweigh one of
            the query's class. "mean_ap": Σ_{p≤l} 1/|Ω_p ∪ … ∪ Ω_L|, with which H-AP is the mean of the average
            precisions of all levels, and a finer level is always more relevant.
        alpha: of "level": the greater, the less the wide levels count.
        temperature, slope, delta, jump, offset: of H⁻, as in `SupAPLoss`.
        clustering: λ, in [0, 1), of −log softmax(cos(query, proxies) / clustering_temperature) at the query's class;
            the paper takes 0.1. The proxies, one for each class, are parameters of the loss; reported as "clustering".
        embedding_size: width of the embeddings, which the proxies need.
        official: True does as the authors' code (HAPPIER): the query is relevant to itself, and H⁻ falls at `delta` as
            `SupAPLoss` says. Their option `with_hrank`, off in their configurations, is not here.

    Source: Ramzi et al., Hierarchical Average Precision Training for Pertinent Image Retrieval, ECCV 2022,
        https://arxiv.org/abs/2207.04873.

    Example:
        >>> loss = HierarchicalAPLoss(super_labels=[0, 0, 1])  # classes 0 and 1 are of one super-category
        >>> rows = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
        >>> [round(loss(rows, torch.tensor([0, 0, *others])).item(), 2) for others in ([1, 2], [2, 1])]
        [0.0, 0.32]
    """

    def __init__(
        self,
        super_labels: Any = None,
        *,
        relevance: Relevance = "level",
        alpha: Annotated[Number, Range(0.2, 5.0, log=True)] = 1.0,
        temperature: StepTemperature = 0.01,
        slope: Number = 100.0,
        delta: Number = 0.05,
        jump: Number = 0.5,
        offset: Number | None = None,
        clustering: Number = 0.0,
        clustering_temperature: Number = 0.05,
        embedding_size: int | None = None,
        official: bool = False,
        **options: Unpack[PairLossOptions],
    ) -> None:
        self.clustering = require_number("clustering", clustering, "[0, 1)")
        self.extra_names = ("clustering",) if self.clustering else ()
        super().__init__(**options)
        # no buffer: it stays on the host, where labels are looked up, and is no state
        self.super_labels = None if super_labels is None else check_super_labels(super_labels)
        self.relevance = require_choice("relevance", relevance, get_args(Relevance))
        self.alpha = require_number("alpha", alpha)
        self.ranks = BoundedRanks(temperature, slope, delta, jump, offset, official)
        self.clustering_temperature = require_number("clustering_temperature", clustering_temperature)
        self.official = official
        self.proxies: nn.Parameter | None = None
        if self.clustering:
            if self.super_labels is None or embedding_size is None:
                raise UserError(f"clustering={clustering!r} needs super_labels and embedding_size, the proxies' sizes")
            size = len(self.super_labels), require_whole("embedding_size", embedding_size)
            own = torch.Generator().manual_seed(0)  # so that all processes start alike
            self.proxies = nn.Parameter(normalize(torch.randn(size, generator=own)))

    def prepared(self, inputs: Inputs) -> Inputs:
        if self.proxies is not None:
            check_width(inputs.embeddings, "embedding_size", self.proxies.shape[1])
        return inputs

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        codes = [self._codes(labels) for labels in (pairs.host_query_labels, pairs.host_reference_labels)]
        levels = [pairs.positives_and_self if self.official else pairs.positives]
        less_relevant = [pairs.negative]
        for query, reference in zip(*codes, strict=True):
            index, mask = same_label_index(query, reference, without_self=pairs.is_self_set)
            index = to_device_of(pairs.similarity, index)
            mask = to_device_of(pairs.similarity, mask) & less_relevant[-1].gather(1, index)
            levels.append(Positives(index, mask, pairs.similarity.gather(1, index)))
            query, reference = (to_device_of(pairs.similarity, each) for each in (query, reference))
            less_relevant.append(less_relevant[-1] & (query[:, None] != reference))
        relevances = self._relevances(torch.stack([level.count for level in levels]), pairs.similarity)
        ordered, found = [ascending(level) for level in levels], torch.zeros_like(pairs.similarity[:, 0])
        for place, (level, less) in enumerate(zip(levels, less_relevant, strict=True)):
            ahead = [count_ahead(level.similarity, others) for others in ordered]
            weighed = [
                torch.minimum(relevances[place], relevance)[:, None] * count
                for relevance, count in zip(relevances, ahead, strict=True)
            ]
            behind = self.ranks.behind(level.similarity, pairs.similarity.masked_fill(~less, -torch.inf))
            rank = sum(ahead[: place + 1], behind)
            share = sum(weighed[1:], weighed[0]) / rank.clamp(min=1)  # at least 1 but for padding
            found = found + share.masked_fill(~level.mask, 0).sum(dim=1)
        possible = sum(relevance * level.count for relevance, level in zip(relevances, levels, strict=True))
        return (1 - self.clustering) * (1 - found / torch.where(pairs.valid, possible, 1))

    def extra_terms(self, pairs: Pairs) -> dict[str, Tensor]:
        if self.proxies is None:
            return {}
        self._require_known(pairs.host_query_labels)
        cosine = normalize(pairs.query) @ normalize(self.proxies.to(pairs.query.dtype)).T
        loss = cross_entropy(cosine / self.clustering_temperature, pairs.query_labels, reduction="none")
        return {"clustering": self.clustering * loss}

    def _codes(self, labels: Int64[Tensor, " row"]) -> list[Int64[Tensor, " row"]]:
        if self.super_labels is None:
            return []
        self._require_known(labels)
        alone = int(self.super_labels.max()) + 1 + labels
        return [torch.where(column < 0, alone, column) for column in self.super_labels[labels].T]

    def _require_known(self, labels: Int64[Tensor, " row"]) -> None:
        assert self.super_labels is not None
        outside = labels[(labels < 0) | (labels >= len(self.super_labels))]
        if len(outside):
            raise UserError(
                f"label {int(outside[0])} is outside super_labels, which has {len(self.super_labels)} classes "
                f"(0..{len(self.super_labels) - 1}): map the labels to 0..C-1 and pass the super-category of each class"
            )

    def _relevances(
        self, counts: Int64[Tensor, "level query"], like: Float[Tensor, "query reference"]
    ) -> Float[Tensor, "level query"]:
        number = len(counts)
        if self.relevance == "level":
            weights = torch.linspace(1, 1 / number, number, dtype=like.dtype, device=like.device) ** self.alpha
            return weights[:, None] / counts.clamp(min=1)
        together = 1 / counts.cumsum(dim=0).clamp(min=1).to(like.dtype)
        return together.flip(0).cumsum(dim=0).flip(0)


def check_super_labels(super_labels: Any) -> Int64[Tensor, "class level"]:
    """Return the table of super-categories on the host; UserError unless each level lies within the next."""
    expected = "super_labels must be the super-category of each class, [class] or [class, level], as [0, 0, 1]"
    table = torch.as_tensor(super_labels).cpu()
    if table.ndim not in (1, 2) or not table.numel() or not is_integer(table):
        raise UserError(f"{expected}; got {kind_of(table)}")
    table = table.long().reshape(len(table), -1).clone()
    for level in range(table.shape[1] - 1):
        inner = table[:, level]
        for one in torch.unique(inner[inner >= 0]).tolist():
            if len(torch.unique(table[inner == one, level + 1])) > 1:
                raise UserError(f"super_labels: {one} of level {level} lies in several of level {level + 1}")
    return table

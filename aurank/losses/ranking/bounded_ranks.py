"""Losses of bounded ranks: SupAP and SupRecall (ROADMAP), and hierarchical AP, by which near mistakes cost less."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Unpack, get_args

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from aurank.errors import UserError
from aurank.losses.core.checks import (
    Cuts,
    Number,
    RankTemperature,
    StepTemperature,
    check_labels_in_range,
    check_width,
    is_integer,
    kind_of,
    require_number,
    require_whole,
)
from aurank.losses.core.common import to_device_of
from aurank.losses.core.pair_loss import PairLoss, PairLossOptions
from aurank.losses.core.pairs import Inputs, Pairs, Positives, same_label_index
from aurank.losses.ranking.blackbox_ap import at_least
from aurank.losses.ranking.ranking_sums import ranking_sums
from aurank.losses.ranking.smooth_ranks import check_cuts, smoothed_recall, weight_ahead
from aurank.names import require_choice
from aurank.ranges import Range


def bounded_ranks(temperature: Number, slope: Number, delta: Number, jump: Number) -> Callable[..., Tensor]:
    """Return the function of scores and references that sums H⁻ over references (arXiv 2110.01445)."""
    width = require_number("temperature", temperature)
    knee, height, rise = (
        require_number(name, value, "[0, inf)") for name, value in (("delta", delta), ("jump", jump), ("slope", slope))
    )
    bound = (height, knee / width, rise * width)
    return partial(ranking_sums, surrogate="bound", temperature=width, bound=bound)


def ascending(positives: Positives) -> Float[Tensor, "query width"]:
    return positives.similarity.detach().masked_fill(~positives.mask, -torch.inf).sort(dim=1).values


def count_ahead(
    scores: Float[Tensor, "query width"], references: Float[Tensor, "query reference"]
) -> Float[Tensor, "query width"]:
    return at_least(scores.detach(), references).to(scores.dtype)


class BoundedRankOptions(PairLossOptions, total=False):
    slope: Number
    delta: Number
    jump: Number
    calibration: Number
    positive_margin: Number
    negative_margin: Number


class BoundedRankLoss(PairLoss):
    """A loss of bounded ranks; positive scores are pulled above one threshold, negative ones pushed below another."""

    # Of the paper, and of the authors' classes SupAP and CalibrationLoss, but for SupAP's tau: the paper's rho.
    aliases: ClassVar = {"rho": "slope", "margin": "delta", "start": "jump", "lambda_": "calibration"}
    aliases |= dict.fromkeys(("tau", "temp"), "temperature")
    aliases |= dict.fromkeys(("alpha", "pos_margin"), "positive_margin")
    aliases |= dict.fromkeys(("beta", "neg_margin"), "negative_margin")

    def __init__(
        self,
        temperature: StepTemperature = 0.01,
        *,
        slope: Number = 100.0,
        delta: Number = 0.05,
        jump: Number = 0.5,
        calibration: Annotated[Number, Range(0.0, 0.8)] = 0.1,
        positive_margin: Number = 0.9,
        negative_margin: Number = 0.6,
        **options: Unpack[PairLossOptions],
    ) -> None:
        self.calibration = require_number("calibration", calibration, "[0, 1)")
        self.extra_names = ("calibration",) if self.calibration else ()
        super().__init__(**options)
        self.high = require_number("positive_margin", positive_margin, "(-inf, inf)")
        self.low = require_number("negative_margin", negative_margin, "(-inf, inf)")
        self.behind = bounded_ranks(temperature, slope, delta, jump)

    def extra_terms(self, pairs: Pairs) -> dict[str, Tensor]:
        if not self.calibration:
            return {}
        short = pairs.positives.mean((self.high - pairs.positives.similarity).relu())
        over = (pairs.negative_similarity - self.low).relu().sum(dim=1) / pairs.negative_count.clamp(min=1)
        return {"calibration": self.calibration * (short + over)}


class SupAPLoss(BoundedRankLoss):
    """(1 − λ) · an upper bound of each query's 1 − average precision + λ · the calibration of its scores (ROADMAP).

    AP = weighted mean over positives i of r⁺/(r⁺ + r⁻): r⁺ adds up weights of those that score at least s_i, without a
    gradient; r⁻ adds up H⁻(s_j − s_i) over negatives j. With t = s_j − s_i, H⁻ is σ(t/temperature) for t < 0, `jump`
    more from 0 on, and beyond `delta` a line: its gradient does not fade. Time and memory are those of SmoothAP.

    Arguments may have the paper's names, `tau`, `rho` (slope), `lambda_`, `alpha` and `beta` (the margins), or those of
    the authors' classes, `temp`, `margin` (delta), `start` (jump), `pos_margin`, `neg_margin`; their `tau` is `rho`.

    Args:
        temperature: width of the sigmoid.
        slope: of the line, per unit of similarity.
        delta: where the line begins, at the sigmoid's height there.
        jump: what a negative ahead counts more than its sigmoid; from ½ on, the loss is a bound. The loss tends to
            1 − average precision as temperature, delta and slope go to 0, temperature the fastest, with jump=0 and
            calibration=0.
        calibration: λ, in [0, 1); reported as the term "calibration".
        positive_margin, negative_margin: the score above which a positive, and below which a negative, has no
            calibration loss.

    Source: Ramzi et al., Robust and Decomposable Average Precision for Image Retrieval, NeurIPS 2021,
        https://arxiv.org/abs/2110.01445. In the authors' code the query is a positive of its own, H⁻ falls by 0.05 at
        `delta`, and the calibration is a mean over the batch's pairs that are not within their margin.

    Example:
        >>> rows, labels = torch.eye(4).repeat_interleave(2, 0), torch.arange(4).repeat_interleave(2)
        >>> SupAPLoss()(rows, labels).item()
        0.0
    """

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        among = count_ahead(pairs.positives.similarity, ascending(pairs.positives))
        if pairs.positives.weight is not None:
            among = weight_ahead(pairs.positives, lambda x: (x >= 0).to(x.dtype))
        rank = among + self.behind(pairs.positives.similarity, pairs.negative_similarity)
        rank = torch.where(pairs.positives.mask, rank, 1)  # that of padding may be 0
        return (1 - self.calibration) * (1 - pairs.positives.mean(among / rank))


class SupRecallLoss(BoundedRankLoss):
    """(1 − λ) · (1 − the mean over k of each query's smoothed recall@k) + λ · the calibration of its scores.

    recall@k = 1/|P| Σ_{i∈P} σ((k − rank_i) / rank_temperature), as in `RecallAtKLoss`, with SupAP's rank r⁺ + r⁻. As H⁻
    is at least a step, no rank is taken for better than it is. Only the mean over P is weighted.

    Args:
        k: the cuts; a recall@k with k below the number of positives cannot reach 1, and the loss then not 0.
        rank_temperature: how far a rank must be from k to count as inside or outside.
        temperature, slope, delta, jump, calibration, positive_margin, negative_margin: as in `SupAPLoss`.

    Source: Ramzi et al., Optimization of Rank Losses for Image Retrieval, 2023, https://arxiv.org/abs/2309.08250. The
        authors' code differs as for `SupAPLoss`, and divides recall@k by the lesser of k and |P|.

    Example:
        >>> rows, labels = torch.eye(4).repeat_interleave(2, 0), torch.arange(4).repeat_interleave(2)
        >>> round(SupRecallLoss(k=(1, 2), rank_temperature=0.1, calibration=0)(rows, labels).item(), 4)
        0.25
    """

    def __init__(
        self,
        k: Cuts = (1, 2, 4, 8, 16),
        temperature: StepTemperature = 0.01,
        *,
        rank_temperature: RankTemperature = 1.0,
        **options: Unpack[BoundedRankOptions],
    ) -> None:
        super().__init__(temperature, **options)
        self.k = check_cuts(k)
        self.rank_temperature = require_number("rank_temperature", rank_temperature)

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        rank = count_ahead(pairs.positives.similarity, ascending(pairs.positives))
        rank = rank + self.behind(pairs.positives.similarity, pairs.negative_similarity)
        recall = smoothed_recall(pairs.positives, rank, cuts=self.k, temperature=self.rank_temperature)
        return (1 - self.calibration) * (1 - recall)


Relevance = Literal["level", "mean_ap"]


class HierarchicalAPLoss(PairLoss):
    """(1 − λ) · an upper bound of each query's 1 − H-AP + λ · a clustering term (HAPPIER).

    A reference of the query's class is of level L, one of its super-category of level L − 1, and so on; all others, of
    level 0, are irrelevant. With the relevance rel of a level, over the relevant references k, j among them k itself,

        H-AP = Σ_k (Σ_{j: s_j ≥ s_k} min(rel_j, rel_k)) / rank_k / Σ_k rel_k.

    What is at least as relevant as k is counted exactly and without a gradient; each less relevant reference adds
    H⁻(s_j − s_k) of `SupAPLoss` to rank_k. Without super-labels, or if no two classes share one, it is `SupAPLoss`
    without its calibration. Time is O(queries · relevant · references), memory that of the similarity.

    Queries without another reference of their class are left out. With a miner, the references that it kept are ranked.
    Batches need classes of one super-category: `sampler: {name: hierarchical}`.

    Args:
        super_labels: the super-category of each class 0 … C − 1, [class], or several levels [class, level], from the
            nearest to the widest, each within the next; −1: none, shared with no class. A configuration fills it in
            from the data set. None: one level.
        relevance: "level": (l/L)^alpha / |Ω_l| for each of the references Ω_l of exactly level l, as the paper: a level
            counts alike however many it has. "mean_ap": Σ_{p≤l} 1/|Ω_p ∪ … ∪ Ω_L|: H-AP is then the mean of the average
            precisions of all levels, and a finer level is always more relevant.
        alpha: of "level": the greater, the less the wide levels count.
        temperature, slope, delta, jump: of H⁻, as in `SupAPLoss`.
        clustering: λ, in [0, 1), of −log softmax(cos(query, proxies) / clustering_temperature) at the query's class;
            the paper takes 0.1. The proxies, one for each class, are parameters of the loss; reported as "clustering".
        embedding_size: width of the embeddings, which the proxies need.

    Source: Ramzi et al., Hierarchical Average Precision Training for Pertinent Image Retrieval, ECCV 2022,
        https://arxiv.org/abs/2207.04873. In the authors' code the query is relevant to itself, and H⁻ falls at `delta`.

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
        clustering: Number = 0.0,
        clustering_temperature: Number = 0.05,
        embedding_size: int | None = None,
        **options: Unpack[PairLossOptions],
    ) -> None:
        self.clustering = require_number("clustering", clustering, "[0, 1)")
        self.extra_names = ("clustering",) if self.clustering else ()
        super().__init__(**options)
        # no buffer: it stays on the host, where labels are looked up, and is no state
        self.super_labels = None if super_labels is None else check_super_labels(super_labels)
        self.one_label = "its levels are of classes; take sup_ap"
        self.relevance = require_choice("relevance", relevance, get_args(Relevance))
        self.alpha = require_number("alpha", alpha)
        self.behind = bounded_ranks(temperature, slope, delta, jump)
        self.clustering_temperature = require_number("clustering_temperature", clustering_temperature)
        self.proxies: nn.Parameter | None = None
        if self.clustering:
            if self.super_labels is None or embedding_size is None:
                raise UserError(f"clustering={clustering!r} needs super_labels and embedding_size, the proxies' sizes")
            size = len(self.super_labels), require_whole("embedding_size", embedding_size)
            generator = torch.Generator().manual_seed(0)  # so that all processes start alike
            self.proxies = nn.Parameter(normalize(torch.randn(size, generator=generator)))

    def prepared(self, inputs: Inputs) -> Inputs:
        if self.proxies is not None:
            check_width(inputs.embeddings, "embedding_size", self.proxies.shape[1])
        return inputs

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        codes: list[list[Int64[Tensor, " row"]]] = [[], []]  # of queries and references, level by level
        if self.super_labels is not None:
            for side, labels in zip(codes, (pairs.host_query_labels, pairs.host_reference_labels), strict=True):
                check_labels_in_range(labels, len(self.super_labels), ", and give super_labels an entry for each")
                alone = int(self.super_labels.max()) + 1 + labels
                side.extend(torch.where(column < 0, alone, column) for column in self.super_labels[labels].T)
        levels = [pairs.positives]
        less_relevant = [pairs.negative]
        for query, reference in zip(*codes, strict=True):
            index, mask = same_label_index(query, reference, without_self=pairs.is_self_set)
            index = to_device_of(pairs.similarity, index)
            mask = to_device_of(pairs.similarity, mask) & less_relevant[-1].gather(1, index)
            levels.append(Positives(index, mask, pairs.similarity.gather(1, index)))
            query, reference = (to_device_of(pairs.similarity, each) for each in (query, reference))
            less_relevant.append(less_relevant[-1] & (query[:, None] != reference))
        relevances = self._relevances(torch.stack([level.count for level in levels]), pairs.similarity)
        ordered, reached = [ascending(level) for level in levels], torch.zeros_like(pairs.similarity[:, 0])
        for position, (level, less) in enumerate(zip(levels, less_relevant, strict=True)):
            ahead = [count_ahead(level.similarity, scores) for scores in ordered]
            weighed = [
                torch.minimum(relevances[position], relevance)[:, None] * count
                for relevance, count in zip(relevances, ahead, strict=True)
            ]
            behind = self.behind(level.similarity, pairs.similarity.masked_fill(~less, -torch.inf))
            rank = sum(ahead[: position + 1], behind)
            share = sum(weighed[1:], weighed[0]) / rank.clamp(min=1)  # at least 1 but for padding
            reached = reached + share.masked_fill(~level.mask, 0).sum(dim=1)
        possible = sum(relevance * level.count for relevance, level in zip(relevances, levels, strict=True))
        return (1 - self.clustering) * (1 - reached / torch.where(pairs.valid, possible, 1))

    def extra_terms(self, pairs: Pairs) -> dict[str, Tensor]:
        if self.proxies is None:
            return {}
        cosine = normalize(pairs.query) @ normalize(self.proxies.to(pairs.query.dtype)).T
        loss = cross_entropy(cosine / self.clustering_temperature, pairs.query_labels, reduction="none")
        return {"clustering": self.clustering * loss}

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
        for code in torch.unique(inner[inner >= 0]).tolist():
            if len(torch.unique(table[inner == code, level + 1])) > 1:
                raise UserError(f"super_labels: {code} of level {level} lies in several of level {level + 1}")
    return table

"""Losses of smoothed ranks: SmoothAP, PNP, the recall@k surrogate, and the area under the ROC curve."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Unpack, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from aurank.errors import UserError
from aurank.losses.core.checks import Cuts, Number, RankTemperature, StepTemperature, require_number
from aurank.losses.core.common import to_device_of
from aurank.losses.core.pair_loss import PairLoss, PairLossOptions
from aurank.losses.core.pairs import Inputs, Pairs, Positives, same_label_index
from aurank.losses.core.row_table import SavedGenerator, writes
from aurank.losses.ranking.ranking_sums import Surrogate, ranking_sums
from aurank.names import require_choice
from aurank.ranges import Range


class SmoothAPLoss(PairLoss):
    """1 − smoothed average precision of each query, in [0, 1] (Eq. 5-6).

    AP = weighted mean over positives i of (1 + positives ahead of i) / (1 + references ahead of i), where j is ahead of
    i by sigmoid((s_j - s_i) / temperature), and positives, i among them, count by their weights. Time is O(queries ·
    positives · references), memory that of the similarity and a block; with weights O(queries · positives²).

    Args:
        temperature: how far apart two similarities count as ordered; towards 0 the loss becomes 1 − average precision.
        official: False (default) leaves the query out of its own ranking, as retrieval is evaluated. True ranks it, its
            own first positive, as the authors' code does for the published numbers: with 4 images per class that free
            hit is about a quarter of the average precision.

    Source: Brown et al., Smooth-AP, ECCV 2020, https://arxiv.org/abs/2007.12163.

    Example:
        >>> rows, labels = torch.eye(4).repeat_interleave(2, 0), torch.arange(4).repeat_interleave(2)
        >>> round(SmoothAPLoss()(rows, labels).item(), 4)
        0.0
    """

    def __init__(
        self, temperature: StepTemperature = 0.01, *, official: bool = False, **options: Unpack[PairLossOptions]
    ) -> None:
        super().__init__(**options)
        self.temperature = require_number("temperature", temperature)
        self.official = official

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        positives = pairs.positives_and_self if self.official else pairs.positives
        ahead = partial(ranking_sums, surrogate="sigmoid", temperature=self.temperature)
        if positives.weight is None:
            among = positives.similarity.masked_fill(~positives.mask, -torch.inf)
            rank_among = 0.5 + ahead(positives.similarity, among)  # a positive is ahead of itself by sigmoid(0) = ½
        else:
            itself = (positives.weight / 2).where(positives.mask, 0.5)  # the rank of padding must not be 0
            rank_among = itself + weight_ahead(positives, lambda x: (x / self.temperature).sigmoid())
        rank = rank_among + ahead(positives.similarity, pairs.negative_similarity)
        return 1 - positives.mean(rank_among / rank)


def weight_ahead(positives: Positives, step: Callable[[Tensor], Tensor]) -> Float[Tensor, "query width"]:
    """Return for each positive i the sum over positives j of w_j·step(s_j − s_i); memory: queries · positives²."""
    scores = positives.similarity
    return (step(scores[:, None] - scores[:, :, None]) @ positives.counted[:, :, None]).squeeze(2)


Variant = Literal["O", "I_u", "I_b", "D_s", "D_q"]
Ahead = Float[Tensor, "query width"]


class PNPLoss(PairLoss):
    """The weighted mean over each query's positives i of f(R_i), R_i = Σ_{negatives j} σ((s_j − s_i) / temperature).

    Other positives ahead of i do not matter. The variants differ in how the gradient of a positive depends on the
    number R of negatives ahead of it:

    | variant | f(R) | its derivative |
    |---|---|---|
    | O | R | 1 |
    | I_u | (1 + R)·log(1 + R) − R | log(1 + R), grows without bound |
    | I_b | (b·R − log(1 + b·R)) / b² | R / (1 + b·R), grows up to 1/b |
    | D_s | log(1 + R) | 1 / (1 + R), falls slowly |
    | D_q | 1 − (1 + R)^−alpha | alpha / (1 + R)^(alpha + 1), falls quickly |

    A falling derivative leaves alone a positive behind many negatives, which may be of another cluster of its class.
    Time and memory are those of SmoothAP.

    Args:
        variant: which f; the paper's PNP-O, PNP-I_u … without PNP-. The authors' best result has D_q.
        temperature: how far apart two similarities count as ordered; also `tau`, as in the paper, or `anneal`.
        alpha: of D_q; the authors take 4 for SOP.
        b: of I_b.

    Source: Li et al., Rethinking the Optimization of Average Precision: Only Penalizing Negative Instances before
        Positive Ones is Enough, AAAI 2022, https://arxiv.org/abs/2102.04640. In the authors' code the query is a
        positive of its own, and I_u lacks its − R.

    Example:
        >>> rows, labels = torch.eye(4).repeat_interleave(2, 0), torch.arange(4).repeat_interleave(2)
        >>> round(PNPLoss()(rows, labels).item(), 4)
        0.0
    """

    aliases: ClassVar = {"tau": "temperature", "anneal": "temperature"}

    def __init__(
        self,
        variant: Annotated[Variant, Range(choices=("O", "I_u", "I_b", "D_s", "D_q"))] = "D_q",
        temperature: StepTemperature = 0.01,
        *,
        alpha: Annotated[Number, Range(0.5, 16.0, log=True)] = 4.0,
        b: Number = 2.0,
        **options: Unpack[PairLossOptions],
    ) -> None:
        super().__init__(**options)
        self.variant = require_choice("variant", variant, get_args(Variant))
        self.temperature = require_number("temperature", temperature)
        self.alpha = require_number("alpha", alpha)
        self.b = require_number("b", b)

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        scores, negatives = pairs.positives.similarity, pairs.negative_similarity
        ahead = ranking_sums(scores, negatives, surrogate="sigmoid", temperature=self.temperature)
        return pairs.positives.mean(self.penalty(ahead))

    def penalty(self, ahead: Ahead) -> Ahead:
        """Return f of the numbers of negatives ahead."""
        penalties: dict[str, Callable[[Ahead], Ahead]] = {
            "O": torch.clone,
            "I_u": lambda ahead: (1 + ahead) * ahead.log1p() - ahead,
            "I_b": lambda ahead: (self.b * ahead - (self.b * ahead).log1p()) / self.b**2,
            "D_s": torch.log1p,
            "D_q": lambda ahead: -(-self.alpha * ahead.log1p()).expm1(),
        }
        return penalties[self.variant](ahead)


class RecallAtKLoss(PairLoss):
    """1 − the mean over k of each query's smoothed recall@k, in [0, 1] (Eq. 4-6).

    recall@k = 1/|P| Σ_{i∈P} σ((k − rank_i) / rank_temperature), rank_i = 1 + Σ_{j≠i} σ((s_j − s_i) / temperature), j
    being the query's references. At rank k exactly the outer sigmoid gives ½. Only the mean over P is weighted.

    Args:
        k: the cuts; a recall@k with k below the number of positives cannot reach 1, and the loss then not 0.
        temperature: how far apart two similarities count as ordered.
        rank_temperature: how far a rank must be from k to count as inside or outside.
        similarity_mixup: True adds a virtual sample between any two samples of a class, share · first + (1 − share) ·
            second, the share drawn from [0, 1). Virtual samples are queries and references too; half the loss of a
            virtual query is added to either parent, so that the mean over queries is the paper's. In training mode
            only, and without references or a miner, which know no virtual samples. The authors' best results have it.
        seed, generator: where the shares come from; their position in the sequence is saved.

    Source: Patel, Tolias, Matas, Recall@k Surrogate Loss, CVPR 2022, https://arxiv.org/abs/2108.11179. The authors'
        code ranks the query too, ahead of its positives, and takes no more than k of them into recall@k.

    Example:
        >>> rows, labels = torch.eye(4).repeat_interleave(2, 0), torch.arange(4).repeat_interleave(2)
        >>> round(RecallAtKLoss(k=(1, 2), rank_temperature=0.1)(rows, labels).item(), 4)
        0.25
    """

    def __init__(
        self,
        k: Cuts = (1, 2, 4, 8, 16),
        temperature: StepTemperature = 0.01,
        *,
        rank_temperature: RankTemperature = 1.0,
        similarity_mixup: bool = False,
        seed: int = 0,
        generator: torch.Generator | None = None,
        **options: Unpack[PairLossOptions],
    ) -> None:
        super().__init__(**options)
        self.k = check_cuts(k)
        self.temperature = require_number("temperature", temperature)
        self.rank_temperature = require_number("rank_temperature", rank_temperature)
        self.similarity_mixup = similarity_mixup
        self.one_label = "a mixture is of one class; set similarity_mixup=False" if similarity_mixup else ""
        self.shares = SavedGenerator(seed, generator) if similarity_mixup else None

    @property
    def takes_references(self) -> bool:
        return not self.similarity_mixup

    def compute(self, inputs: Inputs) -> Any:
        if self.similarity_mixup and writes(self) and not (inputs.is_self_set and inputs.indices_tuple is None):
            argument = "indices_tuple" if inputs.is_self_set else "ref_emb"
            raise UserError(
                f"similarity_mixup mixes the samples of the batch itself, so {argument} cannot be given with it: leave "
                "that out, or set similarity_mixup=False"
            )
        return super().compute(inputs)

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        if self.shares is not None and writes(self) and len(pairs.valid_rows):
            return self._mixed(pairs, self.shares)
        ranked = pairs.positive | pairs.negative
        return self._loss(pairs.positives, pairs.similarity.masked_fill(~ranked, -torch.inf))

    def _mixed(self, pairs: Pairs, shares: SavedGenerator) -> Float[Tensor, " query"]:
        labels, similarity = pairs.host_query_labels, pairs.similarity
        index, mask = same_label_index(labels, labels, without_self=True)
        rows = torch.arange(len(labels))[:, None].expand_as(index)
        later = mask & (index > rows)  # all unordered pairs of rows with one label
        labels = torch.cat([labels, labels[rows[later]]])
        first, second = (to_device_of(similarity, end[later]) for end in (rows, index))
        share = shares.draw(torch.rand, first.shape, like=similarity)
        # An inner product of mixtures is the mixture of inner products: no embedding is mixed, nor made of unit length.
        similarity = torch.cat([similarity, torch.lerp(similarity[second], similarity[first], share[:, None])])
        similarity = torch.cat([similarity, torch.lerp(similarity[:, second], similarity[:, first], share)], dim=1)
        index, mask = (to_device_of(similarity, each) for each in same_label_index(labels, labels, without_self=True))
        itself = torch.eye(len(labels), dtype=torch.bool, device=similarity.device)
        positives = Positives(index, mask, similarity.gather(1, index))
        losses = self._loss(positives, similarity.masked_fill(itself, -torch.inf))
        true, virtual = losses[: len(pairs.query)], losses[len(pairs.query) :]
        total = true.index_add(0, first, virtual / 2).index_add(0, second, virtual / 2)
        return total * (len(pairs.valid_rows) / (len(pairs.valid_rows) + len(first)))

    def _loss(self, positives: Positives, ranked: Float[Tensor, "query item"]) -> Float[Tensor, " query"]:
        # a positive is counted ahead of itself by σ(0) = ½
        rank = 0.5 + ranking_sums(positives.similarity, ranked, surrogate="sigmoid", temperature=self.temperature)
        return 1 - smoothed_recall(positives, rank, cuts=self.k, temperature=self.rank_temperature)


def smoothed_recall(
    positives: Positives, rank: Float[Tensor, "query width"], *, cuts: Sequence[int], temperature: float
) -> Float[Tensor, " query"]:
    """Return the mean over the cuts k of each query's recall@k, a positive counting σ((k − rank) / temperature)."""
    recalls = (positives.mean(((cut - rank) / temperature).sigmoid()) for cut in cuts)
    return sum(recalls, torch.zeros_like(rank[:, 0])) / len(cuts)


def check_cuts(k: Sequence[int]) -> tuple[int, ...]:
    cuts = tuple(k) if isinstance(k, Sequence) else ()
    if not cuts or any(not isinstance(cut, int) or isinstance(cut, bool) or cut < 1 for cut in cuts):
        raise UserError(f"k must be whole numbers > 0, as (1, 2, 4), got {k!r}")
    return cuts


class AUROCLoss(PairLoss):
    """A surrogate of 1 − AUROC of each query: the mean of ℓ((s⁻ − s⁺) / temperature), weighted over its positives.

    Args:
        surrogate: ℓ(x), "huber" (1 + 2x for x > 0, (1 + x)² down to x = −1, then 0), "logistic" log2(1 + e^x), or
            "sigmoid". The first two bound 1 − AUROC from above; "sigmoid" tends to it as the temperature falls.
        temperature: how far apart two similarities count as ordered.

    Source: Gao and Zhou, On the Consistency of AUC Pairwise Optimization, https://arxiv.org/abs/1208.0645. In the SOPRC
        repository the query is a positive of its own, and "logistic" has temperature 1.

    Example:
        >>> import torch
        >>> rows, labels = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]), torch.tensor([0, 0, 1])
        >>> AUROCLoss("sigmoid", 0.01)(rows, labels).item() < 1e-6
        True
    """

    def __init__(
        self, surrogate: Surrogate = "huber", temperature: StepTemperature = 0.1, **options: Unpack[PairLossOptions]
    ) -> None:
        super().__init__(**options)
        require_choice("surrogate", surrogate, get_args(Surrogate))
        self.surrogate: Surrogate = surrogate
        self.temperature = require_number("temperature", temperature)

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        scores, negatives = pairs.positives.similarity, pairs.negative_similarity
        sums = ranking_sums(scores, negatives, surrogate=self.surrogate, temperature=self.temperature)
        return pairs.positives.mean(sums) / pairs.negative_count.clamp(min=1)

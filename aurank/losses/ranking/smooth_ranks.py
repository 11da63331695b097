"""Losses of smoothed ranks: SmoothAP, PNP, the recall@k surrogate, and the area under the ROC curve."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, Unpack, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from aurank.errors import UserError
from aurank.losses.core.checks import Cuts, Number, RankTemperature, StepTemperature, require_choice, require_number
from aurank.losses.core.common import to_device_of
from aurank.losses.core.pair_loss import PairLoss, PairLossOptions
from aurank.losses.core.pairs import Inputs, Pairs, Positives, same_label_index
from aurank.losses.core.row_table import SavedGenerator, writes
from aurank.losses.ranking.ranking_sums import Surrogate, ranking_sums
from aurank.ranges import Range


class SmoothAPLoss(PairLoss):
    """1 − smoothed average precision of each query, in [0, 1] (Eq. 5-6).

    AP = mean over positives i of (1 + positives ahead of i) / (1 + references ahead of i), where j is ahead of i by
    sigmoid((s_j - s_i) / temperature). Time is O(queries · positives · references), memory that of the similarity and
    a block.

    Args:
        temperature: how far apart two similarities count as ordered; towards 0 the loss becomes 1 − average precision.
        include_self: False (default) leaves the query out of its own ranking, as retrieval is evaluated. True ranks it,
            its own first positive, as the authors' code does for the published numbers: with 4 images per class that
            free hit is about a quarter of the average precision.
        official: True does as the authors' code, which is include_self=True.

    Source: Brown et al., Smooth-AP, ECCV 2020, https://arxiv.org/abs/2007.12163.

    Example:
        >>> rows, labels = torch.eye(4).repeat_interleave(2, 0), torch.arange(4).repeat_interleave(2)
        >>> round(SmoothAPLoss()(rows, labels).item(), 4)
        0.0
    """

    def __init__(
        self,
        temperature: StepTemperature = 0.01,
        include_self: bool | None = None,
        *,
        official: bool = False,
        **options: Unpack[PairLossOptions],
    ) -> None:
        super().__init__(**options)
        self.temperature = require_number("temperature", temperature)
        if official and include_self is False:
            raise UserError("include_self=False contradicts official=True, which ranks the query itself")
        self.include_self = official if include_self is None else include_self

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        positives = pairs.positives_and_self if self.include_self else pairs.positives
        ahead = partial(ranking_sums, surrogate="sigmoid", temperature=self.temperature)
        among = positives.similarity.masked_fill(~positives.mask, -torch.inf)
        rank_among = 0.5 + ahead(positives.similarity, among)  # a positive is ahead of itself by sigmoid(0) = ½
        rank = rank_among + ahead(positives.similarity, pairs.negative_similarity)
        return 1 - positives.mean(rank_among / rank)


Variant = Literal["O", "I_u", "I_b", "D_s", "D_q"]
Ahead = Float[Tensor, "query width"]


class PNPLoss(PairLoss):
    """The mean over each query's positives i of f(R_i), R_i = Σ_{negatives j} σ((s_j − s_i) / temperature).

    Other positives ahead of i do not matter. The variants differ in how the gradient of a positive depends on the
    number R of negatives ahead of it:

    | variant | f(R) | its derivative |
    |---|---|---|
    | O | R | 1 |
    | I_u | (1 + R)·log(1 + R) − R | log(1 + R), grows without bound |
    | I_b | (b·R − log(1 + b·R)) / b² | R / (1 + b·R), grows up to 1/b |
    | D_s | log(1 + R) | 1 / (1 + R), falls slowly |
    | D_q | 1 − (1 + R)^−alpha | alpha / (1 + R)^(alpha + 1), falls quickly |

    Those with a falling derivative leave alone a positive behind many negatives, which may be of another cluster of its
    class; the authors' command for their best result has D_q. Time and memory are those of SmoothAP.

    Args:
        variant: which f; of the paper's names PNP-O, PNP-I_u … what follows the dash.
        temperature: how far apart two similarities count as ordered; also `tau`, as in the paper, or `anneal`.
        alpha: of D_q; 4 in that command, for SOP.
        b: of I_b.
        official: True does as the authors' code: the query is a positive of its own, and I_u lacks its − R, so that its
            derivative is 1 + log(1 + R) and does not vanish where no negative is ahead.

    Source: Li et al., Rethinking the Optimization of Average Precision: Only Penalizing Negative Instances before
        Positive Ones is Enough, AAAI 2022, https://arxiv.org/abs/2102.04640.

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
        official: bool = False,
        **options: Unpack[PairLossOptions],
    ) -> None:
        super().__init__(**options)
        self.variant = require_choice("variant", variant, get_args(Variant))
        self.temperature = require_number("temperature", temperature)
        self.alpha = require_number("alpha", alpha)
        self.b = require_number("b", b)
        self.official = official

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        positives = pairs.positives_and_self if self.official else pairs.positives
        scores, others = positives.similarity, pairs.negative_similarity
        ahead = ranking_sums(scores, others, surrogate="sigmoid", temperature=self.temperature)
        return positives.mean(self.penalty(ahead))

    def penalty(self, ahead: Ahead) -> Ahead:
        """Return f of the numbers of negatives ahead."""
        penalties: dict[str, Callable[[Ahead], Ahead]] = {
            "O": torch.clone,
            "I_u": lambda ahead: (1 + ahead) * ahead.log1p() - (0.0 if self.official else 1.0) * ahead,
            "I_b": lambda ahead: (self.b * ahead - (self.b * ahead).log1p()) / self.b**2,
            "D_s": torch.log1p,
            "D_q": lambda ahead: -(-self.alpha * ahead.log1p()).expm1(),
        }
        return penalties[self.variant](ahead)


Official: TypeAlias = bool | Literal["one_temperature"]


class RecallAtKLoss(PairLoss):
    """1 − the mean over k of each query's smoothed recall@k, in [0, 1] (Eq. 4-6).

    recall@k = 1/|P| Σ_{i∈P} σ((k − rank_i) / rank_temperature), rank_i = 1 + Σ_{j≠i} σ((s_j − s_i) / temperature), j
    being the query's references. At rank k exactly the outer sigmoid gives ½, as in the paper.

    Args:
        k: the cuts; a recall@k with k below the number of positives cannot reach 1, and the loss then not 0.
        temperature: how far apart two similarities count as ordered.
        rank_temperature: how far a rank must be from k to count as inside or outside.
        similarity_mixup: True adds a virtual sample between any two samples of a class, share · one + (1 − share) ·
            other, the share drawn from [0, 1); all samples, true and virtual, are queries and references, and the loss
            of a virtual query is added half to either parent, so that the mean over queries is the paper's. In training
            mode only, and for the batch itself: references or a miner are then refused, since neither knows virtual
            samples. False (default), as in the authors' code by default; their best results have it.
        seed, generator: where the shares come from; their place in the sequence is saved.
        official: what the repository RecallatK_surrogate does in every version, and the paper has nothing of: the query
            stays in its own ranking, ahead of its positives without being one; k is cut to the number of references;
            recall@k is cut off at k positives and divided by the lesser of k and their number. With True
            rank_temperature is multiplied by k, as by the defaults of its src/main.py (commits aa418d6, 44b7011); with
            "one_temperature" it is that of all k, which its main.py of commit c949c56 forces to 1.

    Source: Patel, Tolias, Matas, Recall@k Surrogate Loss, CVPR 2022, https://arxiv.org/abs/2108.11179.

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
        official: Official = False,
        **options: Unpack[PairLossOptions],
    ) -> None:
        super().__init__(**options)
        self.k = check_cuts(k)
        self.temperature = require_number("temperature", temperature)
        self.rank_temperature = require_number("rank_temperature", rank_temperature)
        self.similarity_mixup = similarity_mixup
        if not isinstance(official, bool) and official != "one_temperature":
            raise UserError(f'official must be True, False or "one_temperature", got {official!r}')
        self.official = official
        self.shares = SavedGenerator(seed, generator) if similarity_mixup else None

    @property
    def takes_references(self) -> bool:
        return not self.similarity_mixup

    def compute(self, inputs: Inputs) -> Any:
        if self.similarity_mixup and writes(self) and not (inputs.is_self_set and inputs.indices_tuple is None):
            given = "indices_tuple" if inputs.is_self_set else "ref_emb"
            raise UserError(
                f"similarity_mixup mixes the samples of the batch itself, so {given} cannot be given with it: leave "
                "that out, or set similarity_mixup=False"
            )
        return super().compute(inputs)

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        if self.shares is not None and writes(self) and len(pairs.valid_rows):
            return self._mixed(pairs, self.shares)
        kept = pairs.positive | pairs.negative
        kept = kept | pairs.itself if self.official else kept
        return self._loss(pairs.positives, pairs.similarity.masked_fill(~kept, -torch.inf), len(pairs.reference))

    def _mixed(self, pairs: Pairs, shares: SavedGenerator) -> Float[Tensor, " query"]:
        labels, similarity = pairs.host_query_labels, pairs.similarity
        index, mask = same_label_index(labels, labels, without_self=True)
        rows = torch.arange(len(labels))[:, None].expand_as(index)
        later = mask & (index > rows)  # all unordered pairs of rows with one label
        labels = torch.cat([labels, labels[rows[later]]])
        first, second = (to_device_of(similarity, end[later]) for end in (rows, index))
        share = shares.uniform(first.shape, like=similarity)
        # An inner product of mixtures is the mixture of inner products: no embedding is mixed, nor made of unit length.
        similarity = torch.cat([similarity, torch.lerp(similarity[second], similarity[first], share[:, None])])
        similarity = torch.cat([similarity, torch.lerp(similarity[:, second], similarity[:, first], share)], dim=1)
        index, mask = (to_device_of(similarity, each) for each in same_label_index(labels, labels, without_self=True))
        itself = torch.eye(len(labels), dtype=torch.bool, device=similarity.device)
        ranked = similarity if self.official else similarity.masked_fill(itself, -torch.inf)
        losses = self._loss(Positives(index, mask, similarity.gather(1, index)), ranked, len(pairs.reference))
        true, virtual = losses[: len(pairs.query)], losses[len(pairs.query) :]
        total = true.index_add(0, first, virtual / 2).index_add(0, second, virtual / 2)
        return total * (len(pairs.valid_rows) / (len(pairs.valid_rows) + len(first)))

    def _loss(self, positives: Positives, ranked: Float[Tensor, "query item"], batch: int) -> Float[Tensor, " query"]:
        options: dict[str, Any] = {"temperature": self.temperature}
        # a positive is counted ahead of itself by σ(0) = ½
        rank = 0.5 + ranking_sums(positives.similarity, ranked, surrogate="sigmoid", **options)
        recall = torch.zeros_like(rank[:, 0])
        for cut in self.k:
            width = self.rank_temperature * cut if self.official is True else self.rank_temperature
            cut = min(cut, batch) if self.official else cut
            hits = ((cut - rank) / width).sigmoid().masked_fill(~positives.mask, 0).sum(dim=1)
            if self.official:
                recall = recall + hits.clamp(max=cut) / positives.count.clamp(min=1, max=cut)
            else:
                recall = recall + hits / positives.count.clamp(min=1)
        return 1 - recall / len(self.k)


def check_cuts(k: Sequence[int]) -> tuple[int, ...]:
    cuts = tuple(k) if isinstance(k, Sequence) else ()
    if not cuts or any(not isinstance(cut, int) or isinstance(cut, bool) or cut < 1 for cut in cuts):
        raise UserError(f"k must be whole numbers > 0, as (1, 2, 4), got {k!r}")
    return cuts


DEFAULT_TEMPERATURE = 0.1


class AUROCLoss(PairLoss):
    """A surrogate of 1 − AUROC of each query: the mean over its positives and negatives of ℓ((s⁻ − s⁺) / temperature).

    Args:
        surrogate: ℓ(x), "huber" (1 + 2x for x > 0, (1 + x)² down to x = −1, then 0), "logistic" log2(1 + e^x), or
            "sigmoid". The first two bound 1 − AUROC from above; "sigmoid" tends to it as the temperature falls.
        temperature: how far apart two similarities count as ordered.
        official: True does as the SOPRC authors' code: the query stays in its own ranking as a positive, and "logistic"
            has temperature 1. That code averages over all triplets of equal
            classes at once; here, over each query's, then over the queries, which is the same for equal classes.

    Source: Gao and Zhou, On the Consistency of AUC Pairwise Optimization, https://arxiv.org/abs/1208.0645.

    Example:
        >>> import torch
        >>> rows, labels = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]), torch.tensor([0, 0, 1])
        >>> AUROCLoss("sigmoid", 0.01)(rows, labels).item() < 1e-6
        True
    """

    def __init__(
        self,
        surrogate: Surrogate = "huber",
        temperature: StepTemperature = DEFAULT_TEMPERATURE,
        *,
        official: bool = False,
        **options: Unpack[PairLossOptions],
    ) -> None:
        super().__init__(**options)
        require_choice("surrogate", surrogate, get_args(Surrogate))
        self.surrogate: Surrogate = surrogate
        self.temperature = require_number("temperature", temperature)
        if official and surrogate == "logistic":
            if temperature not in (DEFAULT_TEMPERATURE, 1):
                raise UserError(f'temperature={temperature} has no effect with official "logistic": leave it out')
            self.temperature = 1.0
        self.official = official

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        positives = pairs.positives_and_self if self.official else pairs.positives
        kind: dict[str, Any] = {"surrogate": self.surrogate, "temperature": self.temperature}
        sums = ranking_sums(positives.similarity, pairs.negative_similarity, **kind)
        return positives.mean(sums) / pairs.negative_count.clamp(min=1)

"""Recall@k by two sigmoids, with similarity mixup (Patel, Tolias, Matas, CVPR 2022)."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from aurank.errors import UserError
from aurank.losses.core.checks import Cuts, RankTemperature, StepTemperature, require_number
from aurank.losses.core.common import to_device_of
from aurank.losses.core.pair_loss import PairLoss, PairLossOptions
from aurank.losses.core.pairs import Inputs, Pairs, Positives, same_label_index
from aurank.losses.core.row_table import SavedGenerator, writes
from aurank.losses.ranking.ranking_sums import ranking_sums

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

"""EMC²: negatives of the whole data set, sampled by Markov chains over the batches."""

from typing import Annotated, Unpack

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from aurank.losses.core.checks import Number, SoftmaxTemperature
from aurank.losses.core.pair_loss import KeyedLoss, PairLossOptions
from aurank.losses.core.pairs import Inputs, Pairs
from aurank.losses.core.row_table import writes
from aurank.losses.core.temperature import attraction
from aurank.losses.core.training_protocols import EmbedByIds
from aurank.losses.global_contrastive.markov_chain import Chains, OutsideState, Walk
from aurank.ranges import Range


def mean_similarity(similarity: Float[Tensor, "query reference"], walk: Walk) -> Float[Tensor, " query"]:
    """Return the mean similarity of each query to the states that its chain kept: the sampled part of Eq. 11."""
    inside: Tensor = torch.linalg.vecdot(walk.steps, similarity)
    return (inside + walk.outside_steps * walk.outside) / walk.kept.clamp(min=1)


class EMC2Loss(KeyedLoss):
    """−s⁺ + the mean of s over negatives that a Markov chain of the query's sample visits.

    The chain's stationary distribution is the softmax of s/τ over all negatives of the data set, their weights in the
    gradient of the global contrastive loss (Eq. 4). So this loss has that gradient in the mean; its value is no
    estimate of that loss. In each batch the chain continues from its state Z: each negative j of the query is proposed
    once and accepted with probability min(1, exp((s_j − s_Z)/τ)) at the current weights (Alg. 1). The states after the
    burn-in count, as often as they were kept. No temperature overflows, as all is computed in logarithms.

    Several rows of one id, its views, each continue from the same state, and the last of them in the batch says where
    it is left; the authors run them one after the other. With fixed augmentations, give each view an id,
    image · views + view, and num_samples to match. References without `ref_ids` have no name, so a state among them is
    out of batch from then on.

    Args:
        num_samples: rows of the data set, which `ids` (or labels, in their absence) name: each has one chain.
        temperature: τ.
        burn_in: share of the steps of a batch that are not kept, rounded down.
        out_of_batch: how a state that is not among the query's negatives in the batch is scored. "stored" by its
            embedding when it was accepted; "restart" not at all, the first proposal is accepted; "reencode" by
            `reencode`, a function that embeds ids (`aurank train` sets it). A stored embedding is a constant; a new one
            has a gradient if the function returns it with a graph, as the authors' code does and `aurank train`, to
            save time, does not. "stored" keeps num_samples · embedding_size numbers where the loss is, and in each
            checkpoint: 5 GB for ten million samples in 128 dimensions. The other two keep 9 bytes a sample.
        embedding_size: width of the embeddings; None takes it from the first batch.
        seed: where the random numbers start; the position in the sequence is saved.
        official: as the authors' code (contrastive_emc2, commit 3641ed9) at its burn_in of 0.5; another is refused,
            since below it that code takes up some of the states that are out of batch. The state is scored by its
            similarity when it was accepted, whatever the weights and views are now; proposals come in the order of the
            batch; step r counts where r is above the burn-in, positives being steps; states outside of the batch are
            left out of the sum though they count in the mean; and the loss is 1/τ times as large, as in the paper.

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
        walk = self.chains(pairs, self.distance, reencode=self.reencode, write=writes(self))
        found = mean_similarity(pairs.similarity, walk) - attraction(pairs)
        return found / self.chains.temperature if self.chains.official else found

"""EMC²'s chains as a miner: negatives for any loss of triplets."""

from dataclasses import replace

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from aurank.losses.core.checks import Number, SoftmaxTemperature, require_whole
from aurank.losses.core.common import BaseDistance, without_autocast
from aurank.losses.core.pairs import make_pairs, read_inputs
from aurank.losses.core.row_table import check_device, writes
from aurank.losses.core.training_protocols import EmbedByIds
from aurank.losses.global_contrastive.emc2 import EMC2Loss
from aurank.losses.global_contrastive.markov_chain import OutsideState, Walk


class EMC2Miner(nn.Module):
    """Triplets (anchor, positive, negative) whose negatives are states that the anchor's chain kept, as in `EMC2Loss`.

    Called as PML's miners are, and with ids: miner(embeddings, labels, ref_emb, ref_labels, ids=ids, ref_ids=ref_ids).
    A chain that spent the steps after the burn-in at a state outside of the batch gives no triplet. The chains go on in
    training mode, unless gradients are disabled. Where losses gather the batches of several processes, the miner is
    asked in the first one only, and that one has the state.

    Args:
        per_anchor: negatives of each anchor, drawn with replacement from the references that its chain visited after
            the burn-in, as often as it was there; each comes once with each of the anchor's positives.
        num_samples, temperature, burn_in, out_of_batch, embedding_size, seed, views, distance: as in `EMC2Loss`, with
            the same memory: out_of_batch="stored" keeps num_samples · embedding_size numbers, 5 GB for ten million
            samples in 128 dimensions; "restart" and "reencode" need none.

    Source:
        Yau et al., EMC², ICML 2024. https://arxiv.org/abs/2404.10575

    Example:
        >>> miner = EMC2Miner(num_samples=2, burn_in=0)
        >>> anchor, positive, negative = miner(torch.eye(4), torch.tensor([0, 0, 1, 1]))
        >>> anchor.tolist(), positive.tolist()
        ([0, 1, 2, 3], [1, 0, 3, 2])
    """

    def __init__(
        self,
        num_samples: int,
        temperature: SoftmaxTemperature = 0.07,
        burn_in: Number = 0.5,
        *,
        per_anchor: int = 1,
        out_of_batch: OutsideState = "stored",
        embedding_size: int | None = None,
        seed: int = 0,
        views: int = 2,
        distance: BaseDistance | None = None,
    ) -> None:
        super().__init__()
        self.per_anchor = require_whole("per_anchor", per_anchor)
        self.emc2 = EMC2Loss(
            num_samples,
            temperature,
            burn_in,
            out_of_batch=out_of_batch,
            embedding_size=embedding_size,
            seed=seed,
            views=views,
            distance=distance,
        )

    @property
    def wants_reencode(self) -> bool:
        """Whether `reencode` has to be set."""
        return self.emc2.wants_reencode

    @property
    def reencode(self) -> EmbedByIds | None:
        """The function that embeds images anew by their ids, on the host; None where none was set."""
        return self.emc2.reencode

    @reencode.setter
    def reencode(self, function: EmbedByIds | None) -> None:
        self.emc2.reencode = function

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
        *,
        ids: Tensor | None = None,
        ref_ids: Tensor | None = None,
        batch_leads: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return (anchor, positive, negative), indices into the batch and the references."""
        inputs = read_inputs(embeddings, labels, None, ref_emb, ref_labels, ids=ids, ref_ids=ref_ids)
        inputs = replace(inputs, batch_leads=batch_leads)
        check_device(self, embeddings)
        write = writes(self)
        # shared: this process has all that its chains go by
        inputs = replace(self.emc2.prepared(inputs), shared=True)
        with torch.no_grad(), without_autocast(embeddings.device):  # states of earlier batches are compared with here
            pairs = make_pairs(inputs, distance=self.emc2.distance)
            walk = self.emc2.walk(pairs, write=write)
        rows = pairs.valid_rows[walk.steps[pairs.valid_rows].any(dim=1)]
        negatives = drawn(walk, rows, self.per_anchor)
        index, mask = pairs.positives.index[rows], pairs.positives.mask[rows]
        anchor, positive, negative = torch.broadcast_tensors(  # type: ignore[no-untyped-call]
            rows[:, None, None], index[:, :, None], negatives[:, None, :]
        )
        wanted = mask[:, :, None].expand_as(anchor)
        return anchor[wanted], positive[wanted], negative[wanted]


def drawn(walk: Walk, rows: Int64[Tensor, " row"], number: int) -> Int64[Tensor, "row number"]:
    """Return references for each of the queries, each as likely as the chain was at it."""
    reached = walk.steps[rows].to(torch.float64).cumsum(dim=1)
    uniform = torch.rand(len(rows), number, generator=walk.generator, device=reached.device, dtype=torch.float64)
    return torch.searchsorted(reached, uniform * reached[:, -1:], right=True).clamp(max=reached.shape[1] - 1)

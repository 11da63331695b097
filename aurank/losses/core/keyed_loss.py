"""KeyedLoss: losses that keep state per sample, and how a batch says which sample each row is."""

from dataclasses import replace
from typing import Unpack

import torch
from jaxtyping import Int64
from torch import Tensor

from aurank.errors import UserError
from aurank.losses.core.checks import require_whole
from aurank.losses.core.loss_inputs import Inputs
from aurank.losses.core.pair_loss import PairLoss, PairLossOptions
from aurank.losses.core.pairs import Pairs
from aurank.losses.core.row_table import RowTable


class KeyedLossOptions(PairLossOptions, total=False):
    """What every loss with state per sample takes beside its own arguments, and passes on to `KeyedLoss`."""

    views: int


class KeyedLoss(PairLoss):
    """A loss whose state is keyed by `ids`, rows 0 … num_samples − 1 of the data set."""

    call = "loss(embeddings, labels, ids=batch.id)"

    def __init__(self, num_samples: int, *, views: int = 2, **options: Unpack[PairLossOptions]) -> None:
        super().__init__(**options)
        self.owner = type(self).__name__
        self.num_samples = require_whole("num_samples", num_samples)
        self.views = require_whole("views", views)

    def prepared(self, inputs: Inputs) -> Inputs:
        ids = self.ids_of("labels", inputs.labels, "ids", inputs.ids)
        if not self.two_way:
            self._prefetch(ids, inputs)
            return replace(inputs, ids=ids)
        if inputs.ids is not None and inputs.ref_ids is None:
            raise UserError(f"{self.owner} with two_way=True keys the state of both sides: pass ref_ids beside ids")
        assert inputs.ref_labels is not None
        ref_ids = self.ids_of("ref_labels", inputs.ref_labels, "ref_ids", inputs.ref_ids)
        self._prefetch(torch.cat([ids, ref_ids]), inputs)
        return replace(inputs, ids=ids, ref_ids=ref_ids)

    def _prefetch(self, ids: Int64[Tensor, " row"], inputs: Inputs) -> None:
        for part in self.modules():
            if isinstance(part, RowTable):
                part.prefetch(ids, inputs.embeddings.device)

    def ids_of(
        self, labels_name: str, labels: Int64[Tensor, " row"], ids_name: str, ids: Tensor | None
    ) -> Int64[Tensor, " row"]:
        """Return the ids of one side, on the host; UserError where they are unclear, or outside of the data set."""
        found = (labels if ids is None else ids).detach().cpu()
        if ids is None:
            values, counts = torch.unique(found, return_counts=True)
            if int(counts.max()) > self.views:
                call = "loss(embeddings, labels, ids=batch.id, ref_ids=…)" if self.two_way else self.call
                raise UserError(
                    f"{labels_name}: label {int(values[counts.argmax()])} occurs {int(counts.max())} times, more than "
                    f"views={self.views}: without ids, {self.owner} takes labels for the rows of the data set that key "
                    f"its state; say which row each is, {call}, or set views (wrappers of pytorch-metric-learning drop "
                    "ids: use MultipleLosses and CrossBatchMemory of aurank.losses)"
                )
        outside = found[(found < 0) | (found >= self.num_samples)]
        if len(outside):
            what = f"{labels_name}, taken for ids," if ids is None else ids_name
            raise UserError(
                f"{what} hold {int(outside[0])}, outside the {self.num_samples} rows of {self.owner} "
                f"(0..{self.num_samples - 1}): pass rows of the training set, and its size as num_samples"
            )
        return found


def query_ids(pairs: Pairs) -> Int64[Tensor, " query"]:
    """Return the ids of the queries, which `KeyedLoss` always has."""
    assert pairs.query_ids is not None
    return pairs.query_ids

"""KeyedLoss: losses that keep state per sample, and how a batch says which sample each row is."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, Unpack, get_args

import torch
from jaxtyping import Int64
from torch import Tensor

from aurank.errors import UserError
from aurank.losses.base import PairLoss, PairLossOptions
from aurank.losses.checks import require_choice, require_whole
from aurank.losses.inputs import Inputs
from aurank.losses.pairs import Pairs
from aurank.losses.state import RowTable

Residence = Literal["device", "host"]


class KeyedLossOptions(PairLossOptions, total=False):
    """What every loss with state per sample takes beside its own arguments, and passes on to `KeyedLoss`."""

    views: int
    state_on: Residence


class KeyedLoss(PairLoss):
    """A loss whose state is keyed by `ids`, rows 0 … num_samples − 1 of the data set.

    Without `ids` the labels are the ids, which is right where each image is its own class; more than `views` rows of
    one label are then refused. Several rows of an id, its views, share its state: what they bring is averaged.

    num_samples: rows of the data set.
    views: most rows of one label in a batch that comes without ids.
    two_way: the references are another modality, whose rows are named by `ref_ids` and have a state of their own.
    state_on: "device" (default) moves the state with the loss; "host" leaves it in host memory, where there is more of
        it: a batch's rows are fetched before and written back after, without waiting.
    """

    def __init__(
        self,
        num_samples: int,
        *,
        views: int = 2,
        two_way: bool = False,
        state_on: Residence = "device",
        **options: Unpack[PairLossOptions],
    ) -> None:
        super().__init__(**options)
        self.state_on = require_choice("state_on", state_on, get_args(Residence))
        self.num_samples = require_whole("num_samples", num_samples)
        self.views = require_whole("views", views)
        self.two_way = two_way

    def prepared(self, inputs: Inputs) -> Inputs:
        """The inputs with ids, checked on the host."""
        name = type(self).__name__
        host_ids = (inputs.labels if inputs.ids is None else inputs.ids).detach().cpu().long()
        if inputs.ids is None:
            values, counts = torch.unique(host_ids, return_counts=True)
            if int(counts.max()) > self.views:
                raise UserError(
                    f"label {int(values[counts.argmax()])} occurs {int(counts.max())} times, more than "
                    f"views={self.views}: without ids, {name} takes labels for the rows of the data set that key its "
                    "state; say which row each is, loss(embeddings, labels, ids=batch.id), or set views (wrappers of "
                    "pytorch-metric-learning drop ids: use MultipleLosses and CrossBatchMemory of aurank.losses)"
                )
        self.check_range("ids" if inputs.ids is not None else "labels, taken for ids,", host_ids)
        if not self.two_way:
            self.fetch(host_ids, inputs.embeddings.device)
            return replace(inputs, ids=host_ids)
        if inputs.ids is not None and inputs.ref_ids is None:
            raise UserError(f"{name} with two_way=True keys the state of both sides: pass ref_ids beside ids")
        ref_ids = inputs.ref_labels if inputs.ref_ids is None else inputs.ref_ids
        assert ref_ids is not None
        host_ref_ids = ref_ids.detach().cpu().long()
        self.check_range("ref_ids", host_ref_ids)
        self.fetch(torch.cat([host_ids, host_ref_ids]), inputs.embeddings.device)
        return replace(inputs, ids=host_ids, ref_ids=host_ref_ids)

    def fetch(self, ids: Int64[Tensor, " row"], device: torch.device) -> None:
        """Nothing; sends for the state of these samples, where it is kept on the host."""
        for part in self.modules():
            if isinstance(part, RowTable):
                part.prefetch(ids, device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "KeyedLoss":
        for part in self.modules():
            if isinstance(part, RowTable):
                part.on_host = self.state_on == "host"
        super()._apply(fn, recurse)
        return self

    def check_range(self, name: str, ids: Int64[Tensor, " row"]) -> None:
        """Nothing; UserError naming the first id outside 0..num_samples-1."""
        outside = ids[(ids < 0) | (ids >= self.num_samples)]
        if len(outside):
            raise UserError(
                f"{name} hold {int(outside[0])}, outside the {self.num_samples} rows of {type(self).__name__} "
                f"(0..{self.num_samples - 1}): pass rows of the training set, and its size as num_samples"
            )


def keys(pairs: Pairs) -> Int64[Tensor, " query"]:
    """The ids of the queries, which `KeyedLoss` always has."""
    assert pairs.query_ids is not None
    return pairs.query_ids

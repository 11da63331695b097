"""What a loss is called with, in one piece: it travels through wrappers, memories and the gathering of processes."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from aurank.errors import UserError
from aurank.losses.core.checks import check_embeddings, check_integers
from aurank.losses.core.common import for_any_length, in_common_precision, to_device_of, without_autocast

Mined = Sequence[Tensor] | nn.Module | None  # a miner's tuple, or the miner itself


@dataclass(frozen=True, eq=False)
class Inputs:
    """The arguments of a loss: embeddings [batch, dim], labels [batch], what was mined, references, data-set ids."""

    embeddings: Tensor
    labels: Tensor
    indices_tuple: Mined = None
    ref_emb: Tensor | None = None
    ref_labels: Tensor | None = None
    ids: Tensor | None = None
    ref_ids: Tensor | None = None
    batch_leads: bool = False
    shared: bool = False

    @property
    def is_self_set(self) -> bool:
        """Whether the references are the batch itself."""
        return self.ref_emb is None or self.ref_emb is self.embeddings

    @property
    def references(self) -> Tensor:
        """The embeddings of the references."""
        return self.embeddings if self.ref_emb is None else self.ref_emb

    def itself(self, like: Tensor | None = None) -> Bool[Tensor, "query reference"] | None:
        """Return True where a reference of its own set is the query, by index or by id; None where none can be."""
        size, by_id = len(self.embeddings), self.ids is not None and self.ref_ids is not None
        if not by_id and not self.batch_leads:
            return None
        like = self.embeddings if like is None else like
        found = like.new_zeros(size, len(self.references), dtype=torch.bool)
        if self.ids is not None and self.ref_ids is not None:
            ids, ref_ids = (to_device_of(found, each) for each in (self.ids, self.ref_ids))
            found = ids[:, None] == ref_ids
        if self.batch_leads:  # others of the batch are other images, or other views of the same: both count
            found[:, :size] = False
            found.fill_diagonal_(True)
        return found

    def mined(self) -> "Inputs":
        """Return these, a miner among them replaced by what it finds in batch and references, outside of autocast."""
        if not isinstance(self.indices_tuple, nn.Module):
            return self
        query, reference = in_common_precision(self.embeddings.detach(), self.references.detach())
        given = (None, None) if self.is_self_set else (reference, self.ref_labels)
        names = ("ids",) if self.is_self_set else ("ids", "ref_ids", "batch_leads")
        taken = inspect.signature(self.indices_tuple.forward).parameters  # PML's miners know of no ids
        named = {name: getattr(self, name) for name in names if name in taken}
        with without_autocast(query.device):  # not without gradients, where a miner with a state would not write it
            found = for_any_length(self.indices_tuple)(query, self.labels, *given, **named)
        return replace(self, indices_tuple=found)

    @property
    def pml_args(self) -> tuple[Any, ...]:
        """The five arguments that PML's own losses take."""
        return self.embeddings, self.labels, self.indices_tuple, self.ref_emb, self.ref_labels


def read_inputs(
    embeddings: Tensor,
    labels: Tensor | None,
    indices_tuple: Mined = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    *,
    ids: Tensor | None = None,
    ref_ids: Tensor | None = None,
) -> Inputs:
    """Return the arguments as one, labels and ids in int64; UserError where they do not fit together."""
    check_embeddings("embeddings", embeddings, "labels", labels)
    assert labels is not None
    tensors = isinstance(indices_tuple, Sequence) and all(isinstance(part, Tensor) for part in indices_tuple)
    if indices_tuple is not None and not isinstance(indices_tuple, nn.Module) and not tensors:
        raise UserError(f"indices_tuple must be a miner's tuple of tensors, or a miner, got {indices_tuple!r}")
    if ids is not None:
        check_integers("ids", ids, "embeddings", len(embeddings))
    if ref_emb is None:
        if ref_labels is not None or ref_ids is not None:
            raise UserError("ref_labels and ref_ids describe ref_emb, which was not given")
    elif ref_labels is not None or ref_emb is not embeddings:
        check_references(embeddings, ref_emb, ref_labels, ids, ref_ids)
    whole = {id(each): each.long() for each in (labels, ref_labels, ids, ref_ids) if each is not None}  # one stays one
    ref_labels, ids, ref_ids = (whole.get(id(each)) for each in (ref_labels, ids, ref_ids))
    return Inputs(embeddings, whole[id(labels)], indices_tuple, ref_emb, ref_labels, ids, ref_ids)


def check_references(
    embeddings: Tensor, ref_emb: Tensor, ref_labels: Tensor | None, ids: Tensor | None, ref_ids: Tensor | None
) -> None:
    check_embeddings("ref_emb", ref_emb, "ref_labels", ref_labels)
    if ref_emb.shape[1] != embeddings.shape[1]:
        raise UserError(f"ref_emb must be as wide as embeddings, {embeddings.shape[1]}, got {ref_emb.shape[1]}")
    if ref_ids is not None:
        check_integers("ref_ids", ref_ids, "ref_emb", len(ref_emb))
        if ids is None:
            raise UserError("ref_ids were given without ids: a reference is left out where it has the id of the query")

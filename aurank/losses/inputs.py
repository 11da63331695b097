"""What a loss is called with, in one piece: it travels through wrappers, memories and the gathering of processes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from aurank.errors import UserError
from aurank.losses.checks import check_embeddings, check_integers

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

    @property
    def is_self_set(self) -> bool:
        """True if the references are the batch itself."""
        return self.ref_emb is None or self.ref_emb is self.embeddings

    def mined(self) -> "Inputs":
        """These, a miner among them replaced by what it finds in the batch and the references."""
        if not isinstance(self.indices_tuple, nn.Module):
            return self
        references = (None, None) if self.is_self_set else (self.ref_emb, self.ref_labels)
        with torch.no_grad():
            found = self.indices_tuple(self.embeddings.detach(), self.labels, *references)
        return replace(self, indices_tuple=found)

    @property
    def five(self) -> tuple[Any, ...]:
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
    """The arguments as one; UserError when what a loss was called with does not fit together."""
    check_embeddings("embeddings", embeddings, "labels", labels)
    assert labels is not None
    inputs = Inputs(embeddings, labels, indices_tuple, ref_emb, ref_labels, ids, ref_ids)
    if ids is not None:
        check_integers("ids", ids, "embeddings", len(embeddings))
    if ref_emb is None:
        if ref_labels is not None or ref_ids is not None:
            raise UserError("ref_labels and ref_ids describe ref_emb, which was not given")
        return inputs
    if ref_labels is None and ref_emb is embeddings:
        return inputs
    check_embeddings("ref_emb", ref_emb, "ref_labels", ref_labels)
    if ref_emb.shape[1] != embeddings.shape[1]:
        raise UserError(f"ref_emb must be as wide as embeddings, {embeddings.shape[1]}, got {ref_emb.shape[1]}")
    if ref_ids is not None:
        check_integers("ref_ids", ref_ids, "ref_emb", len(ref_emb))
    return inputs

"""Several losses as one: a weighted sum, of whole embeddings or of their first numbers (Matryoshka)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from aurank.errors import UserError
from aurank.losses.core.checks import require_number, require_whole
from aurank.losses.core.common import in_common_precision
from aurank.losses.core.distributed import Gather
from aurank.losses.core.pair_loss import TakesInputs
from aurank.losses.core.pairs import Inputs
from aurank.losses.wrappers.pml import call_loss, mined_among


class MultipleLosses(TakesInputs, nn.Module):
    """Σ weight · loss over a list or a dict of losses, PML's and aurank's mixed.

    Data-set ids reach every loss; PML's own wrapper drops them. Losses that take no references, such as those with
    proxies, see the batch alone where there are references, in a memory of earlier batches too.

    Args:
        losses: a list or a dict.
        miners: one for each loss, in a list (None: no miner) or a dict for some of the keys; the call then has none.
        weights: a finite number for each loss, in a list, or in a dict for some of the keys; 1 for the others.
        widths: a loss with a width sees the first so many numbers of each embedding, at unit length again; one for each
            loss, in a list (None: all numbers) or a dict for some of the keys.
        distributed: as in `PairLoss`, for all of them at once.

    Attributes:
        last_terms: weight · loss of each in the last call, without a gradient.

    Source:
        Kusupati et al., Matryoshka Representation Learning, NeurIPS 2022, Eq. 1, for `widths`.
        https://arxiv.org/abs/2205.13147

    Example:
        >>> from aurank.losses import SmoothAPLoss, contrastive
        >>> loss = MultipleLosses({"ap": SmoothAPLoss(), "pairs": contrastive()}, weights={"ap": 1, "pairs": 0.1})
        >>> value = loss(torch.eye(4), torch.tensor([0, 0, 1, 1]))
        >>> list(loss.last_terms)
        ['ap', 'pairs']
    """

    def __init__(
        self,
        losses: Sequence[nn.Module] | Mapping[str, nn.Module],
        miners: Sequence[nn.Module | None] | Mapping[str, nn.Module | None] | None = None,
        weights: Sequence[float | int | None] | Mapping[str, float | int | None] | None = None,
        widths: Sequence[int | None] | Mapping[str, int | None] | None = None,
        *,
        distributed: bool = False,
    ) -> None:
        super().__init__()
        self.gather = Gather(distributed)
        self.losses = nn.ModuleDict(by_name("losses", losses, losses))
        self.weights = dict.fromkeys(self.losses, 1.0) | by_name("weights", weights, losses)
        for name, weight in self.weights.items():
            require_number(f"weights[{name!r}]", weight, "(-inf, inf)")
        self.miners = nn.ModuleDict(by_name("miners", miners, losses))
        self.widths: dict[str, int] = by_name("widths", widths, losses)
        for name, width in self.widths.items():
            require_whole(f"widths[{name!r}]", width)
        self.last_terms: dict[str, Tensor] = {}

    def compute(self, inputs: Inputs) -> Tensor:
        if inputs.indices_tuple is not None and len(self.miners):
            raise UserError("indices_tuple was given, but MultipleLosses has its own miners: leave one of them out")
        inputs, terms = self.gather.batch(inputs), {}
        for name, loss in self.losses.items():
            seen = replace(inputs, indices_tuple=self.miners[name]) if name in self.miners else inputs
            if not takes_references(loss):
                seen = batch_alone(seen)
            if width := self.widths.get(name):
                size = seen.embeddings.shape[1]
                if width > size:
                    raise UserError(f"embeddings must be at least as wide as widths, {width}, got {size}")
                query, reference = in_common_precision(seen.embeddings, seen.references)
                embeddings, ref_emb = normalize(query[:, :width]), seen.ref_emb
                if ref_emb is not None:
                    ref_emb = embeddings if seen.is_self_set else normalize(reference[:, :width])
                seen = replace(seen, embeddings=embeddings, ref_emb=ref_emb)
            seen = replace(seen, positives=getattr(loss, "positives", "any"))
            terms[name] = self.weights[name] * call_loss(loss, self.gather.ask_miner(seen))
        self.last_terms = {name: term.detach() for name, term in terms.items()}
        total: Any = sum(terms.values())
        return total  # type: ignore[no-any-return]


def takes_references(loss: nn.Module) -> bool:
    """Return whether a loss takes references, so that a memory can be around it; of PML's own, each is asked itself."""
    return not isinstance(loss, TakesInputs) or loss.takes_references


def batch_alone(inputs: Inputs) -> Inputs:
    if inputs.is_self_set:
        return inputs
    mined = inputs.indices_tuple
    if isinstance(mined, Sequence):
        itself, size = inputs.itself(inputs.embeddings) if inputs.batch_leads else None, len(inputs.embeddings)
        within = torch.arange(len(inputs.references), device=inputs.embeddings.device) < size
        mined = None if itself is None else mined_among(mined, within & ~itself)
    return replace(inputs, indices_tuple=mined, ref_emb=None, ref_labels=None, ref_ids=None, batch_leads=False)


def by_name(argument: str, values: Any, losses: Any) -> dict[str, Any]:
    """Return {loss: value} without values that are None; losses in a list are named by position."""
    if values is None:
        return {}
    is_dict, fits = isinstance(losses, Mapping), False
    if isinstance(values, Mapping if is_dict else Sequence):
        named = dict(values) if is_dict else {str(position): value for position, value in enumerate(values)}
        fits = named.keys() <= losses.keys() if is_dict else len(named) == len(losses)
    if not fits:
        raise UserError(f"{argument} must be a {'dict' if is_dict else 'list'} that fits the losses, got {values!r}")
    return {name: value for name, value in named.items() if value is not None}

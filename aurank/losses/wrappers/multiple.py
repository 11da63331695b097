"""Several losses as one: a weighted sum that passes data-set ids on, which PML's own wrapper drops."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from aurank.errors import UserError
from aurank.losses.core.checks import require_loss
from aurank.losses.core.distributed import Distributed, Gather
from aurank.losses.core.loss_inputs import Inputs, TakesInputs
from aurank.losses.wrappers.pml import call_loss


class MultipleLosses(TakesInputs, nn.Module):
    """Σ weight · loss over a list or a dict of losses, PML's and aurank's mixed.

    Args:
        losses: a list or a dict.
        miners: one for each loss, in a list (None: no miner) or a dict for some of the keys; the call then has none.
        weights: one for each loss, in a list or a dict; None: 1.
        distributed: as in `PairLoss`, for all of them at once.

    Example:
        >>> import torch
        >>> from aurank.losses import SmoothAPLoss, contrastive
        >>> loss = MultipleLosses({"ap": SmoothAPLoss(), "pairs": contrastive()}, weights={"ap": 1, "pairs": 0.1})
        >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).shape
        torch.Size([])
    """

    def __init__(
        self,
        losses: Sequence[nn.Module] | Mapping[str, nn.Module],
        miners: Sequence[nn.Module | None] | Mapping[str, nn.Module] | None = None,
        weights: Sequence[float | int] | Mapping[str, float | int] | None = None,
        *,
        distributed: Distributed = None,
    ) -> None:
        super().__init__()
        self.gather = Gather(distributed)
        if not losses:
            raise UserError(f"losses must hold at least one loss, got {losses!r}")
        if not isinstance(losses, Sequence | Mapping):
            raise UserError(f"losses must be a list or a dict of losses, got {type(losses).__name__}")
        named = by_name("losses", losses, losses)
        for name, loss in named.items():
            require_loss(f"losses[{name!r}]", loss)
        self.losses = nn.ModuleDict(named)
        self.weights = dict.fromkeys(named, 1.0) if weights is None else by_name("weights", weights, losses)
        if set(self.weights) != set(named):
            raise UserError(f"weights must be one per loss, {', '.join(named)}, got {', '.join(self.weights)}")
        given = {} if miners is None else by_name("miners", miners, losses)
        if not set(given) <= set(named):
            raise UserError(f"miners must be for losses among {', '.join(named)}, got {', '.join(given)}")
        self.miners = nn.ModuleDict({name: miner for name, miner in given.items() if miner is not None})

    def compute(self, inputs: Inputs) -> Tensor:
        """Return the weighted sum, a scalar, of arguments that were read before."""
        if inputs.indices_tuple is not None and len(self.miners):
            raise UserError("indices_tuple was given, but MultipleLosses has its own miners: leave one of them out")
        total: Any = 0
        inputs = self.gather.batch(inputs)
        for name, loss in self.losses.items():
            own = replace(inputs, indices_tuple=self.miners[name]) if name in self.miners else inputs
            total = total + self.weights[name] * call_loss(loss, self.gather.ask_miner(own))
        return total  # type: ignore[no-any-return]


def by_name(argument: str, values: Any, losses: Any) -> dict[str, Any]:
    """Return the values as a dict, a list's by position; UserError unless of the losses' own kind and length."""
    if isinstance(values, Mapping) != isinstance(losses, Mapping):
        raise UserError(f"{argument} must be a {'dict' if isinstance(losses, Mapping) else 'list'}, as losses is")
    if isinstance(values, Mapping):
        return dict(values)
    if len(values) != len(losses):
        raise UserError(f"{argument} must be one per loss, {len(losses)}, got {len(values)}")
    return {str(position): value for position, value in enumerate(values)}

"""Losses of the lightly library on batches of two views, where it is installed: Barlow Twins, VICReg and others."""

import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from aurank.errors import UserError
from aurank.extras import import_library
from aurank.losses.core.checks import Number
from aurank.losses.core.common import in_common_precision, normalize, to_device_of, without_autocast
from aurank.losses.core.distributed import Gather
from aurank.losses.core.pair_loss import TakesInputs
from aurank.losses.core.pairs import Inputs
from aurank.names import accepting

# Classes of lightly 1.6.0 that were seen to take embeddings of two views; others with two arguments want other things.
TWO_VIEWS: tuple[str, ...] = ("BarlowTwinsLoss", "DCLLoss", "DCLWLoss", "DirectCLRLoss", "MACLLoss")
TWO_VIEWS += ("NTXentLoss", "NegativeCosineSimilarity", "TiCoLoss", "VICRegLoss")


class LightlyLoss(TakesInputs, nn.Module):
    """Any loss of two views that lightly has, called as aurank's losses are: the two rows of a label are its views.

    The first rows of all labels are one view, the second ones the other. It adds to lightly's: float32 inside of
    autocast; and distributed=True, the loss of all processes' batches together, with the gradient of one process
    (lightly's own `gather_distributed` is left False). A batch of a single label gives 0 with zero gradient.

    Args:
        loss: a loss of lightly that takes the embeddings of both views. What it keeps beside buffers, as TiCo's
            covariance, is not in the state.
        unit_variance: scale rows to the length √dim, at which an even spread has variance 1 in each dimension, as
            VICReg asks for: encoders here give unit length. False leaves them as they come.
        distributed: as in `PairLoss`.

    Example:
        >>> loss = LightlyLoss(nn.MSELoss())  # any loss of two views
        >>> rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
        >>> loss(rows, torch.tensor([3, 4, 3, 4])).item()
        0.5
    """

    def __init__(self, loss: nn.Module, *, unit_variance: bool = False, distributed: bool = False) -> None:
        super().__init__()
        if not isinstance(loss, nn.Module):
            known = isinstance(loss, str)  # type: ignore[unreachable]
            names = two_view_names(import_library("lightly.loss", f"the loss {loss}")) if known else TWO_VIEWS[0]
            raise UserError(
                f"loss must be a loss of lightly that was made, as lightly.loss.BarlowTwinsLoss(), got {loss!r}; "
                f"from_lightly makes one by its name: {names}"
            )
        self.loss = loss
        self.unit_variance = unit_variance
        self.gather = Gather(distributed)

    @property
    def takes_references(self) -> bool:
        return False

    def compute(self, inputs: Inputs) -> Any:
        for given, what in ((inputs.indices_tuple, "a miner"), (inputs.ref_emb, "ref_emb")):
            if given is not None:
                raise UserError(f"{type(self.loss).__name__} compares the two views of a batch: leave out {what}")
        inputs = self.gather.batch(inputs)
        rows, _ = in_common_precision(inputs.embeddings, inputs.embeddings)
        views = to_device_of(rows, two_views(inputs.labels.detach().cpu()))
        with without_autocast(rows.device):
            if views.shape[1] == 1:
                return (rows * 0).sum()
            rows = normalize(rows) * rows.shape[1] ** 0.5 if self.unit_variance else rows
            return self.loss(rows[views[0]], rows[views[1]])


def two_views(labels: Int64[Tensor, " row"]) -> Int64[Tensor, "two label"]:
    """Return the first and the second row of each label; UserError unless each occurs exactly twice."""
    values, counts = torch.unique(labels, return_counts=True)
    if (counts != 2).any():
        wrong = int((counts != 2).nonzero()[0])
        raise UserError(
            f"label {int(values[wrong])} occurs {int(counts[wrong])} times in the batch, where losses of lightly need "
            "exactly two rows of a label, its two views: set data.views=2 and data.train_labels=image"
        )
    return labels.argsort(stable=True).view(-1, 2).T


@accepting()
def barlow_twins(lambda_param: Number = 5e-3, *, distributed: bool = False) -> LightlyLoss:
    """Return lightly's Barlow Twins, Σ (1 − C_ii)² + λ·Σ C_ij², C the cross-correlation of both views' dimensions.

    Source: Zbontar et al., Barlow Twins, ICML 2021. https://arxiv.org/abs/2103.03230

    Example:
        >>> from importlib.util import find_spec
        >>> isinstance(barlow_twins(0.01), LightlyLoss) if find_spec("lightly") else True
        True
    """
    return from_lightly("BarlowTwinsLoss", {"lambda_param": lambda_param}, distributed=distributed)


@accepting()
def vicreg(
    lambda_param: Number = 25.0,
    mu_param: Number = 25.0,
    nu_param: Number = 1.0,
    *,
    unit_variance: bool = True,
    distributed: bool = False,
) -> LightlyLoss:
    """Return lightly's VICReg: λ · invariance + μ · variance + ν · covariance.

    Args:
        unit_variance: as in `LightlyLoss`; False is lightly's own, for embeddings of any length.

    Source: Bardes et al., VICReg, ICLR 2022. https://arxiv.org/abs/2105.04906

    Example:
        >>> from importlib.util import find_spec
        >>> vicreg().unit_variance if find_spec("lightly") else True
        True
    """
    given = {"lambda_param": lambda_param, "mu_param": mu_param, "nu_param": nu_param}
    return from_lightly("VICRegLoss", given, unit_variance=unit_variance, distributed=distributed)


@accepting()
def from_lightly(
    loss: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    unit_variance: bool = False,
    distributed: bool = False,
) -> LightlyLoss:
    """Return a loss of lightly by the name of its class in `lightly.loss`.

    Args:
        loss: name of the class.
        arguments: of its constructor.

    Raises:
        UserError: lightly is not installed, has no such class, or the class does not take two views.

    Example:
        >>> from importlib.util import find_spec
        >>> loss = from_lightly("NTXentLoss", {"temperature": 0.2}) if find_spec("lightly") else None
    """
    classes = import_library("lightly.loss", f"the loss {loss}")
    kind: Any = getattr(classes, loss, None)
    if not (inspect.isclass(kind) and issubclass(kind, nn.Module)):
        raise UserError(f"loss must name a class of lightly.loss, {two_view_names(classes)}, got {loss!r}")
    parameters = list(inspect.signature(kind.forward).parameters.values())[1:]
    plain = [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD and each.default is each.empty]
    if len(plain) != 2:
        raise UserError(
            f"loss must be one of two views, but {loss} of lightly takes {', '.join(each.name for each in plain)}: "
            f"take one of {two_view_names(classes)}"
        )
    try:
        own = kind(**(arguments or {}))
    except (TypeError, ValueError) as error:
        raise UserError(f"{loss} of lightly cannot be made with arguments={dict(arguments or {})}: {error}") from error
    return LightlyLoss(own, unit_variance=unit_variance, distributed=distributed)


def two_view_names(classes: ModuleType) -> str:
    """Name the installed losses that are known to take the embeddings of two views."""
    return ", ".join(name for name in TWO_VIEWS if hasattr(classes, name))

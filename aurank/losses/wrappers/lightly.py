"""Losses of the lightly library on batches of two views, where it is installed: Barlow Twins, VICReg and others."""

import importlib
import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn
from torch.nn.functional import normalize

from aurank.errors import UserError
from aurank.losses.core.checks import Number
from aurank.losses.core.distributed import Distributed, Gather
from aurank.losses.core.dtypes import in_common_precision, to_device_of, without_autocast
from aurank.losses.core.loss_inputs import Inputs, TakesInputs

INSTALL = "pip install lightly"
# Classes of lightly 1.6.0 that were seen to take embeddings of two views; others with two arguments want other things.
TWO_VIEWS = (
    "BarlowTwinsLoss",
    "DCLLoss",
    "DCLWLoss",
    "DirectCLRLoss",
    "MACLLoss",
    "NTXentLoss",
    "NegativeCosineSimilarity",
    "TiCoLoss",
    "VICRegLoss",
)


class LightlyLoss(TakesInputs, nn.Module):
    """Any loss of two views that lightly has, called as aurank's losses are: the two rows of a label are its views.

    The first rows of all labels are one view, the second ones the other. It adds to lightly's: float32 inside of
    autocast; and distributed="auto", the loss of all processes' batches together, with the gradient of one process
    (lightly's own `gather_distributed` is left False). A batch of a single label gives 0 with zero gradient.

    loss: a loss of lightly that takes the embeddings of both views. What it keeps beside buffers, as TiCo's covariance,
        is not in the state.
    unit_variance: True brings rows to the length √dim before, at which an even spread has variance 1 in each dimension,
        as VICReg asks for: encoders here give unit length. False leaves them as they come.
    """

    def __init__(self, loss: nn.Module, *, unit_variance: bool = False, distributed: Distributed = None) -> None:
        super().__init__()
        require_made(loss)
        self.loss = loss
        self.unit_variance = unit_variance
        self.gather = Gather(distributed)

    @property
    def takes_references(self) -> bool:
        """False: the two views of a batch are compared with each other alone."""
        return False

    def compute(self, inputs: Inputs) -> Any:
        """The loss of arguments that were read before; ids are not needed."""
        for given, what in ((inputs.indices_tuple, "a miner"), (inputs.ref_emb, "ref_emb")):
            if given is not None:
                raise UserError(f"{type(self.loss).__name__} compares the two views of a batch: leave out {what}")
        inputs = self.gather.batch(inputs)
        rows, _ = in_common_precision(inputs.embeddings, inputs.embeddings)
        views = to_device_of(rows, two_views(inputs.labels.detach().cpu().long()))
        with without_autocast(rows.device):
            if views.shape[1] == 1:
                return (rows * 0).sum()
            rows = normalize(rows, dim=1) * rows.shape[1] ** 0.5 if self.unit_variance else rows
            return self.loss(rows[views[0]], rows[views[1]])


def two_views(labels: Int64[Tensor, " row"]) -> Int64[Tensor, "two label"]:
    """The first and the second row of each label; UserError unless each occurs exactly twice."""
    values, counts = torch.unique(labels, return_counts=True)
    if (counts != 2).any():
        wrong = int((counts != 2).nonzero()[0])
        raise UserError(
            f"label {int(values[wrong])} occurs {int(counts[wrong])} times in the batch, where losses of lightly need "
            "exactly two rows of a label, its two views: set data.views=2 and data.train_labels=image"
        )
    return labels.argsort(stable=True).view(-1, 2).T


def barlow_twins(lambda_param: Number = 5e-3, *, distributed: Distributed = None) -> LightlyLoss:
    """Barlow Twins (Zbontar et al., ICML 2021) of lightly: Σ (1 − C_ii)² + λ·Σ C_ij².

    C is the cross-correlation of the dimensions of one view with those of the other.
    """
    return from_lightly("BarlowTwinsLoss", {"lambda_param": lambda_param}, distributed=distributed)


def vicreg(
    lambda_param: Number = 25.0,
    mu_param: Number = 25.0,
    nu_param: Number = 1.0,
    *,
    unit_variance: bool = True,
    distributed: Distributed = None,
) -> LightlyLoss:
    """VICReg (Bardes et al., ICLR 2022) of lightly: λ · invariance + μ · variance + ν · covariance.

    unit_variance: as in `LightlyLoss`; False is lightly's own, for embeddings of any length.
    """
    given = {"lambda_param": lambda_param, "mu_param": mu_param, "nu_param": nu_param}
    return from_lightly("VICRegLoss", given, unit_variance=unit_variance, distributed=distributed)


def from_lightly(
    loss: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    unit_variance: bool = False,
    distributed: Distributed = None,
) -> LightlyLoss:
    """A loss of lightly by the name of its class in `lightly.loss`, made with its own arguments.

    Errors: UserError where lightly is not installed, has no such class, or the class does not take two views.
    """
    classes = imported(loss)
    made: Any = getattr(classes, loss, None)
    if not is_loss(made):
        raise UserError(f"loss must name a class of lightly.loss, {', '.join(of_two_views(classes))}, got {loss!r}")
    if len(names := taken(made)) != 2:
        raise UserError(
            f"loss must be one of two views, but {loss} of lightly takes {', '.join(names)}: "
            f"take one of {', '.join(of_two_views(classes))}"
        )
    try:
        own = made(**(arguments or {}))
    except (TypeError, ValueError) as error:
        raise UserError(f"{loss} of lightly cannot be made with arguments={dict(arguments or {})}: {error}") from error
    return LightlyLoss(own, unit_variance=unit_variance, distributed=distributed)


def require_made(loss: object) -> None:
    """Nothing; UserError unless it is a loss that was made, not its class or its name."""
    if not isinstance(loss, nn.Module):
        names = of_two_views(imported(loss)) if isinstance(loss, str) else ["BarlowTwinsLoss"]
        raise UserError(
            f"loss must be a loss of lightly that was made, as lightly.loss.BarlowTwinsLoss(), got {loss!r}; "
            f"from_lightly makes one by its name: {', '.join(names)}"
        )


def imported(loss: str) -> ModuleType:
    """lightly's module of losses; UserError, naming the loss that was asked for, where it is not installed."""
    try:
        return importlib.import_module("lightly.loss")
    except ImportError as error:
        raise UserError(f"{loss} is lightly's, which cannot be imported ({error}): {INSTALL}") from error


def is_loss(made: Any) -> bool:
    """True for the class of a loss."""
    return inspect.isclass(made) and issubclass(made, nn.Module)


def taken(made: Any) -> list[str]:
    """The names of what a loss has to be called with."""
    parameters = list(inspect.signature(made.forward).parameters.values())[1:]
    plain = [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD and each.default is each.empty]
    return [each.name for each in plain]


def of_two_views(classes: ModuleType) -> list[str]:
    """The names of the losses that are known to take the embeddings of two views, of those that are installed."""
    return [name for name in TWO_VIEWS if is_loss(getattr(classes, name, None))]

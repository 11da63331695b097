"""PML's losses that learn a vector or several of each class: proxies, centres, weights of a classifier."""

from typing import Annotated, Any

import torch
from torch import Tensor, nn

from aurank.errors import UserError
from aurank.losses.core.checks import (
    Margin,
    Number,
    Sharpness,
    SoftmaxTemperature,
    check_labels_in_range,
    check_width,
    require_whole,
)
from aurank.losses.core.common import CosineSimilarity, pml_losses
from aurank.losses.core.pairs import Inputs
from aurank.losses.wrappers.pml import PMLLoss
from aurank.names import accepting
from aurank.ranges import Range

_NEARLY_ONE = 1 - 5e-7  # cos 1e-3


class ProxyLoss(PMLLoss):
    """A PML loss of embeddings against learnt vectors of the classes, called as aurank's losses are.

    The vectors are parameters of the loss: give them to the optimiser, as a configuration does (`loss.lr_multiplier`).
    There are no references to rank, so neither a memory nor texts can be beside it.

    Args:
        loss: of PML.
        num_classes: labels are 0 … num_classes − 1.
        embedding_size: width of the embeddings.
        distributed: as in `PairLoss`.

    Raises:
        UserError: references, embeddings of another width, or a label that is none of 0 … num_classes − 1.

    Example:
        >>> from pytorch_metric_learning.losses import CosFaceLoss
        >>> loss = ProxyLoss(CosFaceLoss(num_classes=3, embedding_size=2), num_classes=3, embedding_size=2)
        >>> [tuple(parameter.shape) for parameter in loss.parameters()]
        [(2, 3)]
    """

    def __init__(self, loss: nn.Module, num_classes: int, embedding_size: int, *, distributed: bool = False) -> None:
        super().__init__(loss, distributed=distributed)
        self.num_classes = require_whole("num_classes", num_classes)
        self.embedding_size = require_whole("embedding_size", embedding_size)

    @property
    def takes_references(self) -> bool:
        return False

    def compute(self, inputs: Inputs) -> Any:
        if not inputs.is_self_set:
            raise UserError(f"{type(self.loss).__name__} compares embeddings with its proxies: leave out ref_emb")
        check_width(inputs.embeddings, "embedding_size", self.embedding_size)
        if inputs.labels.device.type == "cpu":  # elsewhere the host would wait for the device
            check_labels_in_range(inputs.labels, self.num_classes)
        return super().compute(inputs)


class _SafeAngles:
    """Angles away from 0 and π by 1e-3: PML's have no finite gradient where an embedding lies on its class's vector."""

    def get_angles(self, cosine_of_target_classes: Tensor) -> Tensor:
        return torch.acos(cosine_of_target_classes.clamp(-_NEARLY_ONE, _NEARLY_ONE))


class SafeArcFaceLoss(_SafeAngles, pml_losses.ArcFaceLoss):  # type: ignore[misc]  # PML ships no types
    """PML's ArcFace whose gradient stays finite."""


class SafeSubCenterArcFaceLoss(_SafeAngles, pml_losses.SubCenterArcFaceLoss):  # type: ignore[misc]
    """PML's sub-center ArcFace whose gradient stays finite."""


@accepting()
def arcface(
    num_classes: int,
    embedding_size: int,
    margin: Annotated[Number, Range(2.0, 50.0)] = 28.6,
    scale: Sharpness = 64.0,
    *,
    distributed: bool = False,
) -> ProxyLoss:
    """Return ArcFace: a softmax over s · cos θ of the classes, with s · cos(θ + m) for the right one.

    Args:
        margin: m, in degrees.
        scale: s.

    Source: Deng et al., ArcFace, CVPR 2019, Eq. 3. https://arxiv.org/abs/1801.07698

    Example:
        >>> import torch
        >>> arcface(3, 2)(torch.eye(2), torch.tensor([0, 2])).isfinite().item()
        True
    """
    return _with_proxies("arcface", SafeArcFaceLoss, locals(), margin=margin, scale=scale)


@accepting()
def subcenter_arcface(
    num_classes: int,
    embedding_size: int,
    margin: Annotated[Number, Range(2.0, 50.0)] = 28.6,
    scale: Sharpness = 64.0,
    sub_centers: int = 3,
    *,
    distributed: bool = False,
) -> ProxyLoss:
    """Return sub-center ArcFace: `arcface` with several vectors of each class, of which the nearest counts.

    Args:
        margin: in degrees.
        scale: of the cosines.
        sub_centers: vectors of each class.

    Source: Deng et al., Sub-center ArcFace, ECCV 2020, Sec. 3.2.

    Example:
        >>> subcenter_arcface(4, 2).loss.W.shape
        torch.Size([2, 12])
    """
    own = {"margin": margin, "scale": scale}
    return _with_proxies("subcenter_arcface", SafeSubCenterArcFaceLoss, locals(), **own, sub_centers=sub_centers)


@accepting()
def cosface(
    num_classes: int,
    embedding_size: int,
    margin: Margin = 0.35,
    scale: Sharpness = 64.0,
    *,
    distributed: bool = False,
) -> ProxyLoss:
    """Return CosFace: a softmax over s · cos θ of the classes, with s · (cos θ − m) for the right one.

    Args:
        margin: m.
        scale: s.

    Source: Wang et al., CosFace, CVPR 2018, Eq. 4. https://arxiv.org/abs/1801.09414

    Example:
        >>> cosface(3, 2).num_classes
        3
    """
    return _with_proxies("cosface", pml_losses.CosFaceLoss, locals(), margin=margin, scale=scale)


@accepting()
def normalized_softmax(
    num_classes: int, embedding_size: int, temperature: SoftmaxTemperature = 0.05, *, distributed: bool = False
) -> ProxyLoss:
    """Return the softmax over cos θ / τ of the classes.

    Args:
        temperature: τ.

    Source: Zhai and Wu, Classification is a Strong Baseline for Deep Metric Learning, BMVC 2019.
        https://arxiv.org/abs/1811.12649

    Example:
        >>> normalized_softmax(3, 2).loss.temperature
        0.05
    """
    loss = pml_losses.NormalizedSoftmaxLoss
    own = {"temperature": temperature, "distance": CosineSimilarity()}
    return _with_proxies("normalized_softmax", loss, locals(), **own)


@accepting()
def proxy_anchor(
    num_classes: int,
    embedding_size: int,
    margin: Margin = 0.1,
    alpha: Sharpness = 32.0,
    *,
    distributed: bool = False,
) -> ProxyLoss:
    """Return Proxy-Anchor: a class's vector draws its embeddings near and pushes the others away, the hard ones most.

    Args:
        margin: δ, added to and taken off the cosines.
        alpha: sharpness.

    Source: Kim et al., Proxy Anchor Loss for Deep Metric Learning, CVPR 2020, Eq. 4. https://arxiv.org/abs/2003.13911
        Its repository trains the proxies at 100 times the rate of the network.

    Example:
        >>> proxy_anchor(3, 2).loss.proxies.shape
        torch.Size([3, 2])
    """
    return _with_proxies("proxy_anchor", pml_losses.ProxyAnchorLoss, locals(), margin=margin, alpha=alpha)


@accepting()
def proxy_nca(
    num_classes: int, embedding_size: int, softmax_scale: Sharpness = 9.0, *, distributed: bool = False
) -> ProxyLoss:
    """Return ProxyNCA++: a softmax over −s · ‖x − p‖² of the classes' vectors p, all at unit length.

    Args:
        softmax_scale: s, the paper's 1 / T with T = 1/9; PML's default is 1.

    Source: Teh et al., ProxyNCA++, ECCV 2020, Eq. 8. https://arxiv.org/abs/2004.01113

    Example:
        >>> proxy_nca(3, 2).loss.softmax_scale
        9.0
    """
    return _with_proxies("proxy_nca", pml_losses.ProxyNCALoss, locals(), softmax_scale=softmax_scale)


@accepting()
def soft_triple(
    num_classes: int,
    embedding_size: int,
    centers_per_class: int = 10,
    la: Sharpness = 20.0,
    gamma: SoftmaxTemperature = 0.1,
    margin: Annotated[Number, Range(0.0, 0.2)] = 0.01,
    *,
    distributed: bool = False,
) -> ProxyLoss:
    """Return SoftTriple: a softmax over the classes, each the soft maximum of the cosines with its centres.

    Args:
        centers_per_class: K.
        la: λ, which the cosines are multiplied by.
        gamma: γ, the temperature of the soft maximum.
        margin: δ, taken off the right class.

    Source: Qian et al., SoftTriple Loss, ICCV 2019, Eq. 7 and 8, without its regulariser of the centres.
        https://arxiv.org/abs/1909.05235

    Example:
        >>> soft_triple(3, 2).loss.fc.shape
        torch.Size([2, 30])
    """
    own = {"la": la, "gamma": gamma, "margin": margin}
    return _with_proxies("soft_triple", pml_losses.SoftTripleLoss, locals(), **own, centers_per_class=centers_per_class)


def _with_proxies(name: str, loss: type[nn.Module], given: dict[str, Any], **own: Any) -> ProxyLoss:
    classes, dim = (require_whole(f"{name}: {key}", given[key]) for key in ("num_classes", "embedding_size"))
    made = loss(num_classes=classes, embedding_size=dim, **own)
    return ProxyLoss(made, classes, dim, distributed=given["distributed"])

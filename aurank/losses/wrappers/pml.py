"""PML's losses, called as aurank's are: of pairs and triplets, and those that learn vectors of each class."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Unpack, get_args

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from aurank.errors import UserError
from aurank.losses.core.checks import (
    Margin,
    Number,
    Sharpness,
    SoftmaxTemperature,
    check_labels_in_range,
    check_width,
    require_choice,
    require_module,
    require_number,
    require_whole,
)
from aurank.losses.core.common import (
    AvgNonZeroReducer,
    BaseDistance,
    BaseReducer,
    BaseRegularizer,
    CosineSimilarity,
    MeanReducer,
    SumReducer,
    in_common_precision,
    pml_losses,
    to_device_of,
    without_autocast,
)
from aurank.losses.core.distributed import Gather
from aurank.losses.core.pair_loss import PairLossOptions, TakesInputs
from aurank.losses.core.pairs import Inputs, check_mined
from aurank.names import accepting
from aurank.ranges import Range

Reduction = Literal["sum", "batch", "pml"]


class PMLLoss(TakesInputs, nn.Module):
    """Any PML loss, called as aurank's losses are.

    It adds to PML's: `ids` and `ref_ids`, which leave a query out of references that hold it; a miner in place of its
    tuple; float32 inside of autocast; and distributed=True, the loss of all processes' batches together, references
    too, with the gradient of one process.

    Args:
        loss: of PML.
        distributed: as in `PairLoss`.

    Example:
        >>> from pytorch_metric_learning.losses import ContrastiveLoss
        >>> loss, rows, labels = PMLLoss(ContrastiveLoss()), torch.eye(2), torch.tensor([0, 1])
        >>> loss(rows, labels, ref_emb=rows.clone(), ref_labels=labels, ids=labels, ref_ids=labels).item()
        0.0
    """

    def __init__(self, loss: nn.Module, *, distributed: bool = False) -> None:
        super().__init__()
        require_module("loss", loss, "a loss, as SmoothAPLoss()")
        self.loss = loss
        self.gather = Gather(distributed)

    @property
    def distance(self) -> BaseDistance:
        """The distance of PML's loss."""
        return self.loss.distance

    @property
    def reducer(self) -> BaseReducer:
        """The reducer of PML's loss."""
        return self.loss.reducer

    @property
    def collect_stats(self) -> bool:
        """Whether PML's loss keeps statistics of its last call as attributes."""
        return bool(self.loss.collect_stats)

    def compute(self, inputs: Inputs) -> Any:
        return call_loss(self.loss, self.gather(inputs))


def call_loss(loss: nn.Module, inputs: Inputs) -> Any:
    if isinstance(loss, TakesInputs):
        return loss.compute(inputs)
    if "ids" in inspect.signature(loss.forward).parameters:
        return loss(*inputs.pml_args, ids=inputs.ids, ref_ids=inputs.ref_ids)
    if isinstance(inputs.indices_tuple, Sequence):
        check_mined(inputs.indices_tuple, (len(inputs.embeddings), len(inputs.references)))
    if inputs.is_self_set:
        query, _ = in_common_precision(inputs.embeddings, inputs.embeddings)
        inputs = replace(inputs, embeddings=query, ref_emb=None, ref_labels=None)
    else:
        query, reference = in_common_precision(inputs.embeddings, inputs.references)
        mined, itself = inputs.indices_tuple, inputs.itself()
        assert not isinstance(mined, nn.Module)
        if itself is not None:
            mined = all_pairs(inputs, ~itself) if mined is None else mined_among(mined, ~itself)
        inputs = replace(inputs, embeddings=query, indices_tuple=mined, ref_emb=reference)
        if inputs.ref_labels is inputs.labels:  # one tensor for two sets: PML would take both for the same set
            inputs = replace(inputs, ref_labels=inputs.labels.clone())
    with without_autocast(query.device):
        return loss(*inputs.pml_args)


def mined_among(mined: Sequence[Tensor], wanted: Bool[Tensor, "query reference"]) -> Sequence[Tensor]:
    mined = [to_device_of(wanted, part) for part in mined]
    if len(mined) == 3:
        anchor, positive, negative = mined
        kept = wanted[anchor, positive] & wanted[anchor, negative]
        return anchor[kept], positive[kept], negative[kept]
    plus, minus = (wanted[mined[side], mined[side + 1]] for side in (0, 2))
    return mined[0][plus], mined[1][plus], mined[2][minus], mined[3][minus]


def all_pairs(inputs: Inputs, wanted: Bool[Tensor, "query reference"]) -> tuple[Tensor, ...]:
    given = inputs.labels if inputs.ref_labels is None else inputs.ref_labels
    labels, ref_labels = (to_device_of(wanted, each) for each in (inputs.labels, given))
    same = labels[:, None] == ref_labels
    return *torch.nonzero(same & wanted, as_tuple=True), *torch.nonzero(~same & wanted, as_tuple=True)


class SumPerQueryReducer(SumReducer):  # type: ignore[misc]  # PML ships no types
    """The sum of all pairs' or triplets' losses, divided by the number of embeddings in the batch."""

    def element_reduction(self, losses: Tensor, indices: Any, embeddings: Tensor, labels: Tensor) -> Tensor:
        return losses.sum() / len(embeddings)


class NonZeroMeanReducer(AvgNonZeroReducer):  # type: ignore[misc]
    """PML's mean of what is above 0, which would leave out NaN, and let training go on."""

    def element_reduction_helper(self, losses: Tensor, embeddings: Tensor) -> Tensor:
        return losses.sum() if losses.isnan().any() else super().element_reduction_helper(losses, embeddings)


REDUCERS: dict[str, Callable[[], BaseReducer]] = {
    "sum": SumReducer,
    "batch": SumPerQueryReducer,
    "pml": NonZeroMeanReducer,
}


@accepting()
def contrastive(
    pos_margin: Annotated[Number, Range(0.6, 1.0)] = 1.0,
    neg_margin: Annotated[Number, Range(0.0, 0.9)] = 0.5,
    *,
    reduction: Reduction = "sum",
    **options: Unpack[PairLossOptions],
) -> PMLLoss:
    """Return PML's ContrastiveLoss on cosine similarity: Σ (pos_margin − s⁺)₊ + Σ (s⁻ − neg_margin)₊ over all pairs.

    Args:
        pos_margin: similarity at which a positive costs nothing more.
        neg_margin: similarity up to which a negative costs nothing.
        reduction: "sum", as the SOPRC repository; "batch", the sum divided by the batch size; "pml", PML's own mean.

    Example:
        >>> contrastive()(torch.eye(2), torch.tensor([0, 0])).item()
        2.0
    """
    return _wrap(
        "contrastive", pml_losses.ContrastiveLoss, options, reduction, pos_margin=pos_margin, neg_margin=neg_margin
    )


@accepting()
def triplet(
    margin: Annotated[Number, Range(0.02, 0.5, log=True)] = 0.1,
    *,
    reduction: Reduction = "batch",
    **options: Unpack[PairLossOptions],
) -> PMLLoss:
    """Return PML's TripletMarginLoss on cosine similarity: Σ (s⁻ − s⁺ + margin)₊ over triplets, over the batch size.

    Args:
        margin: by how much a positive has to be closer than a negative.
        reduction: "batch", the sum divided by the batch size, as the SOPRC repository; "sum"; "pml", PML's own mean.

    Example:
        >>> round(triplet()(torch.ones(3, 2), torch.tensor([0, 0, 1])).item(), 4)  # 2 triplets, 3 anchors
        0.0667
    """
    return _wrap("triplet", pml_losses.TripletMarginLoss, options, reduction, margin=margin)


@accepting()
def multi_similarity(
    alpha: Annotated[Number, Range(0.5, 20.0, log=True)] = 2.0,
    beta: Sharpness = 40.0,
    base: Annotated[Number, Range(0.0, 0.9)] = 0.5,
    **options: Unpack[PairLossOptions],
) -> PMLLoss:
    """Return PML's MultiSimilarityLoss without mining, its mean over the batch.

    Args:
        alpha: sharpness for positives.
        beta: sharpness for negatives; 40 as in the SOPRC repository.
        base: similarity that positives should be above and negatives below.

    Source: Wang et al., Multi-Similarity Loss with General Pair Weighting, CVPR 2019. https://arxiv.org/abs/1904.06627

    Example:
        >>> round(multi_similarity()(torch.ones(2, 2), torch.tensor([0, 0])).item(), 4)  # ½·log(1 + exp(−1))
        0.1566
    """
    name = "multi_similarity"
    options["reducer"] = options.get("reducer") or MeanReducer()
    return _wrap(name, pml_losses.MultiSimilarityLoss, options, alpha=alpha, beta=beta, base=base)


@accepting()
def circle(
    m: Annotated[Number, Range(0.05, 0.7)] = 0.4,
    gamma: Annotated[Number, Range(8.0, 256.0, log=True)] = 80.0,
    *,
    reducer: BaseReducer | None = None,
    embedding_regularizer: BaseRegularizer | None = None,
    embedding_reg_weight: Number = 1.0,
    distributed: bool = False,
) -> PMLLoss:
    """Return PML's CircleLoss on cosine similarity: pairs weigh more, the farther they are from where they should be.

    Args:
        m: relaxation; positives should be above 1 − m, negatives below m.
        gamma: scale of the cosines; 80, as PML has it for fine-grained retrieval.

    Source: Sun et al., Circle Loss, CVPR 2020, Eq. 6. https://arxiv.org/abs/2002.10857

    Example:
        >>> circle()(torch.eye(2), torch.tensor([0, 0])).item()  # no negative
        0.0
    """
    options: PairLossOptions = {"reducer": reducer, "embedding_regularizer": embedding_regularizer}
    options |= {"embedding_reg_weight": embedding_reg_weight, "distributed": distributed}
    return _wrap("circle", pml_losses.CircleLoss, options, m=m, gamma=gamma)


def _wrap(
    name: str, loss: type[nn.Module], options: PairLossOptions, reduction: Reduction = "pml", **own: Number
) -> PMLLoss:
    require_choice(f"{name}: reduction", reduction, get_args(Reduction))
    _check_numbers(name, own)
    distance, reducer = options.get("distance"), options.get("reducer")
    regularizer, weight = options.get("embedding_regularizer"), options.get("embedding_reg_weight", 1.0)
    wrapped = loss(
        **own,
        distance=distance or CosineSimilarity(),
        reducer=reducer or REDUCERS[reduction](),
        embedding_regularizer=regularizer,
        embedding_reg_weight=weight,
    )
    return PMLLoss(wrapped, distributed=options.get("distributed", False))


def _check_numbers(name: str, own: Mapping[str, Any]) -> None:
    for option, value in own.items():
        if option in ("sub_centers", "centers_per_class"):
            require_whole(f"{name}: {option}", value)
        elif option != "distance":
            require_number(f"{name}: {option}", value, "(0, inf)" if option in _POSITIVE else "(-inf, inf)")


_POSITIVE = ("alpha", "beta", "gamma", "la", "scale", "softmax_scale", "temperature")
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
    _check_numbers(name, own)
    made = loss(num_classes=classes, embedding_size=dim, **own)
    return ProxyLoss(made, classes, dim, distributed=given["distributed"])

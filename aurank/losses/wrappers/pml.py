"""PML's losses, called as aurank's are: of pairs and triplets, and those that learn vectors of each class."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Bool
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning.distances import BaseDistance, CosineSimilarity
from pytorch_metric_learning.reducers import AvgNonZeroReducer, BaseReducer, MeanReducer, SumReducer
from pytorch_metric_learning.regularizers import BaseRegularizer
from torch import Tensor, nn

from aurank.losses.core.checks import (
    Margin,
    Number,
    Sharpness,
    SoftmaxTemperature,
    check_labels_in_range,
    check_width,
    require_number,
    require_whole,
)
from aurank.losses.core.common import in_common_precision, to_device_of, without_autocast
from aurank.losses.core.distributed import Gather
from aurank.losses.core.pair_loss import TakesInputs
from aurank.losses.core.pairs import Inputs, check_mined
from aurank.losses.core.sets import Relation, check_relation
from aurank.names import named, require_choice
from aurank.ranges import Range


class PMLLoss(TakesInputs, nn.Module):
    """Any PML loss, called as aurank's losses are.

    It adds to PML's: `ids` and `ref_ids`, which leave a query out of references that hold it; a miner in place of its
    tuple; float32 inside of autocast; and distributed=True, the loss of all processes' batches together, references
    too, with the gradient of one process.

    Args:
        loss: of PML; where labels are sets it must only compare them, and what has a weight is positive.
        positives, distributed: as in `PairLoss`.

    Example:
        >>> from pytorch_metric_learning.losses import ContrastiveLoss
        >>> loss, rows, labels = PMLLoss(ContrastiveLoss()), torch.eye(2), torch.tensor([0, 1])
        >>> loss(rows, labels, ref_emb=rows.clone(), ref_labels=labels, ids=labels, ref_ids=labels).item()
        0.0
    """

    def __init__(self, loss: nn.Module, *, positives: Relation = "any", distributed: bool = False) -> None:
        super().__init__()
        self.loss = loss
        self.positives = check_relation(positives)
        self.gather = Gather(distributed)

    def compute(self, inputs: Inputs) -> Any:
        return call_loss(self.loss, self.gather(replace(inputs, positives=self.positives)))


def call_loss(loss: nn.Module, inputs: Inputs) -> Any:
    if isinstance(loss, TakesInputs):
        return loss.compute(inputs)
    if "ids" in inspect.signature(loss.forward).parameters:
        sides = inputs.embeddings, inputs.labels, inputs.indices_tuple, inputs.ref_emb, inputs.ref_labels
        return loss(*sides, ids=inputs.ids, ref_ids=inputs.ref_ids)
    if isinstance(inputs.indices_tuple, Sequence):
        check_mined(inputs.indices_tuple, (len(inputs.embeddings), len(inputs.references)))
    if inputs.is_self_set:
        query, _ = in_common_precision(inputs.embeddings, inputs.embeddings)
        inputs = replace(inputs, embeddings=query, ref_emb=None, ref_labels=None)
    else:
        query, reference = in_common_precision(inputs.embeddings, inputs.references)
        mined, itself = inputs.indices_tuple, inputs.itself(query)
        assert not isinstance(mined, nn.Module)
        if itself is not None:
            mined = all_pairs(inputs, ~itself) if mined is None else mined_among(mined, ~itself)
        inputs = replace(inputs, embeddings=query, indices_tuple=mined, ref_emb=reference)
        if inputs.ref_labels is inputs.labels:  # one tensor for two sets: PML would take both for the same set
            inputs = replace(inputs, ref_labels=inputs.labels.clone())
    labels, ref_labels = inputs.labels_for_pml()
    with without_autocast(query.device):
        return loss(query, labels, inputs.indices_tuple, inputs.ref_emb, ref_labels)


def mined_among(mined: Sequence[Tensor], eligible: Bool[Tensor, "query reference"]) -> Sequence[Tensor]:
    mined = [to_device_of(eligible, part) for part in mined]
    if len(mined) == 3:
        anchor, positive, negative = mined
        remain = eligible[anchor, positive] & eligible[anchor, negative]
        return anchor[remain], positive[remain], negative[remain]
    plus, minus = (eligible[mined[side], mined[side + 1]] for side in (0, 2))
    return mined[0][plus], mined[1][plus], mined[2][minus], mined[3][minus]


def all_pairs(inputs: Inputs, eligible: Bool[Tensor, "query reference"]) -> tuple[Tensor, ...]:
    if (relation := inputs.relation()) is not None:
        same = to_device_of(eligible, relation > 0)
    else:
        ref_labels = inputs.labels if inputs.ref_labels is None else inputs.ref_labels
        labels, ref_labels = (to_device_of(eligible, each) for each in (inputs.labels, ref_labels))
        same = labels[:, None] == ref_labels
    return *torch.nonzero(same & eligible, as_tuple=True), *torch.nonzero(~same & eligible, as_tuple=True)


class SumPerQueryReducer(SumReducer):  # type: ignore[misc]  # PML ships no types
    """The sum of all pairs' or triplets' losses, divided by the number of embeddings in the batch."""

    def element_reduction(self, losses: Tensor, indices: Any, embeddings: Tensor, labels: Any) -> Tensor:
        return losses.sum() / len(embeddings)


class NonZeroMeanReducer(AvgNonZeroReducer):  # type: ignore[misc]
    """PML's mean of what is above 0, but NaN stays NaN: PML's would leave it out, and training would go on."""

    def element_reduction_helper(self, losses: Tensor, embeddings: Tensor) -> Tensor:
        return losses.sum() if losses.isnan().any() else super().element_reduction_helper(losses, embeddings)


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
        check_width(inputs.embeddings, "embedding_size", self.embedding_size)
        if inputs.labels.device.type == "cpu":  # elsewhere the host would wait for the device
            check_labels_in_range(inputs.labels, self.num_classes)
        return super().compute(inputs)


NEARLY_ONE = 1 - 5e-7  # cos 1e-3


class SafeArcFaceLoss(pml_losses.ArcFaceLoss):  # type: ignore[misc]  # PML ships no types
    """Angles away from 0 and π by 1e-3: PML's have no finite gradient where an embedding lies on its class's vector."""

    def get_angles(self, cosine_of_target_classes: Tensor) -> Tensor:
        return torch.acos(cosine_of_target_classes.clamp(-NEARLY_ONE, NEARLY_ONE))


class SafeSubCenterArcFaceLoss(pml_losses.SubCenterArcFaceLoss):  # type: ignore[misc]
    get_angles = SafeArcFaceLoss.get_angles


# -- the table: names, arguments, and what is ours ----

Reduction = Literal["sum", "batch", "mean", "pml"]
REDUCERS: dict[str, Callable[[], BaseReducer]] = {
    "sum": SumReducer,
    "batch": SumPerQueryReducer,
    "mean": MeanReducer,
    "pml": NonZeroMeanReducer,
}
Argument = tuple[Number, Any, str]  # default, type or the range that aurank tune searches, meaning


def _of_pairs(
    name: str, loss: type[nn.Module], text: str, default: Reduction, **arguments: Argument
) -> Callable[..., PMLLoss]:
    def make(
        *,
        reduction: Reduction = default,
        positives: Relation = "any",
        distance: BaseDistance | None = None,
        reducer: BaseReducer | None = None,
        embedding_regularizer: BaseRegularizer | None = None,
        embedding_reg_weight: Number = 1.0,
        distributed: bool = False,
        **numbers: Number,
    ) -> PMLLoss:
        require_choice(f"{name}: reduction", reduction, REDUCERS)
        made = loss(
            **numbers,
            distance=distance or CosineSimilarity(),
            reducer=reducer or REDUCERS[reduction](),
            embedding_regularizer=embedding_regularizer,
            embedding_reg_weight=embedding_reg_weight,
        )
        return PMLLoss(made, positives=positives, distributed=distributed)

    meaning = """
    reduction: "sum", "batch" (the sum over the batch size), "mean", or "pml" (the mean of what is above 0).
    positives, distance, reducer, embedding_regularizer, embedding_reg_weight, distributed: as in `PairLoss`."""
    return _listed(name, make, text, arguments, meaning, f"{name}()")


def _with_proxies(
    name: str, loss: Callable[..., nn.Module], text: str, **arguments: Argument
) -> Callable[..., ProxyLoss]:
    def make(num_classes: int, embedding_size: int, *, distributed: bool = False, **numbers: Number) -> ProxyLoss:
        made = loss(num_classes=num_classes, embedding_size=embedding_size, **numbers)
        return ProxyLoss(made, num_classes, embedding_size, distributed=distributed)

    meaning = "\n    num_classes, embedding_size, distributed: as in `ProxyLoss`."
    return _listed(name, make, text, arguments, meaning, f"{name}(num_classes=2, embedding_size=2)")


_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
_POSITIVE = ("alpha", "beta", "gamma", "la", "scale", "softmax_scale", "temperature")  # these must be above 0


def _listed(
    name: str, make: Callable[..., Any], text: str, arguments: dict[str, Argument], more: str, example: str
) -> Callable[..., Any]:
    parameters = [each for each in inspect.signature(make).parameters.values() if each.kind is not each.VAR_KEYWORD]
    for key, (default, kind, _) in arguments.items():
        annotation = Annotated[Number, kind] if isinstance(kind, Range) else kind
        parameters.append(inspect.Parameter(key, _POSITIONAL, default=default, annotation=annotation))
    signature = inspect.Signature(sorted(parameters, key=lambda each: each.kind))

    def function(*args: Any, **options: Any) -> Any:
        bound = signature.bind(*args, **named(function, options))
        bound.apply_defaults()
        for key, value in bound.arguments.items():
            if signature.parameters[key].annotation is int:
                require_whole(f"{name}: {key}", value)
            elif key in arguments:
                require_number(f"{name}: {key}", value, "(0, inf)" if key in _POSITIVE else "(-inf, inf)")
        return make(**bound.arguments)

    meanings = "".join(f"\n    {key}: {meaning}." for key, (_, _, meaning) in arguments.items())
    example = f">>> {example}(torch.eye(2), torch.tensor([0, 1])).shape\n    torch.Size([])"
    function.__doc__ = f"Return {text}\n\nArgs:{meanings}{more}\n\nExample:\n    {example}"
    function.__name__ = function.__qualname__ = name
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


contrastive = _of_pairs(
    "contrastive",
    pml_losses.ContrastiveLoss,
    "PML's ContrastiveLoss: Σ (pos_margin − s⁺)₊ + Σ (s⁻ − neg_margin)₊ over all pairs, as in the SOPRC repository.",
    "sum",
    pos_margin=(1.0, Range(0.6, 1.0), "similarity at which a positive costs nothing more"),
    neg_margin=(0.5, Range(0.0, 0.9), "similarity up to which a negative costs nothing"),
)
triplet = _of_pairs(
    "triplet",
    pml_losses.TripletMarginLoss,
    "PML's TripletMarginLoss: Σ (s⁻ − s⁺ + margin)₊ over triplets, over the batch size as in the SOPRC repository.",
    "batch",
    margin=(0.1, Range(0.02, 0.5, log=True), "by how much a positive has to be closer than a negative"),
)
multi_similarity = _of_pairs(
    "multi_similarity",
    pml_losses.MultiSimilarityLoss,
    "PML's MultiSimilarityLoss without mining (Wang et al., CVPR 2019, https://arxiv.org/abs/1904.06627).",
    "mean",
    alpha=(2.0, Range(0.5, 20.0, log=True), "sharpness for positives"),
    beta=(40.0, Sharpness, "sharpness for negatives; 40 as in the SOPRC repository, 50 in PML"),
    base=(0.5, Range(0.0, 0.9), "similarity that positives should be above and negatives below"),
)
circle = _of_pairs(
    "circle",
    pml_losses.CircleLoss,
    "PML's CircleLoss (Sun et al., CVPR 2020, Eq. 6, https://arxiv.org/abs/2002.10857).",
    "pml",
    m=(0.4, Range(0.05, 0.7), "relaxation; positives should be above 1 − m, negatives below m"),
    gamma=(80.0, Range(8.0, 256.0, log=True), "scale of the cosines; 80, as PML has it for fine-grained retrieval"),
)
arcface = _with_proxies(
    "arcface",
    SafeArcFaceLoss,
    "ArcFace: softmax of s · cos θ, for the right class s · cos(θ + m) (CVPR 2019, https://arxiv.org/abs/1801.07698).",
    margin=(28.6, Range(2.0, 50.0), "m, in degrees"),
    scale=(64.0, Sharpness, "s"),
)
subcenter_arcface = _with_proxies(
    "subcenter_arcface",
    SafeSubCenterArcFaceLoss,
    "sub-center ArcFace, of a class's several vectors the nearest counts (Deng et al., ECCV 2020, Sec. 3.2).",
    margin=(28.6, Range(2.0, 50.0), "in degrees"),
    scale=(64.0, Sharpness, "of the cosines"),
    sub_centers=(3, int, "vectors of each class"),
)
cosface = _with_proxies(
    "cosface",
    pml_losses.CosFaceLoss,
    "CosFace: softmax of s · cos θ, for the right class s · (cos θ − m) (CVPR 2018, https://arxiv.org/abs/1801.09414).",
    margin=(0.35, Margin, "m"),
    scale=(64.0, Sharpness, "s"),
)
normalized_softmax = _with_proxies(
    "normalized_softmax",
    lambda **options: pml_losses.NormalizedSoftmaxLoss(**options, distance=CosineSimilarity()),
    "the softmax of cos θ / τ (Zhai and Wu, BMVC 2019, https://arxiv.org/abs/1811.12649).",
    temperature=(0.05, SoftmaxTemperature, "τ"),
)
proxy_anchor = _with_proxies(
    "proxy_anchor",
    pml_losses.ProxyAnchorLoss,
    "Proxy-Anchor (Kim et al., CVPR 2020, Eq. 4, https://arxiv.org/abs/2003.13911), whose authors train the proxies at "
    "100 times the rate of the network.",
    margin=(0.1, Margin, "δ, added to and taken off the cosines"),
    alpha=(32.0, Sharpness, "sharpness"),
)
proxy_nca = _with_proxies(
    "proxy_nca",
    pml_losses.ProxyNCALoss,
    "ProxyNCA++: softmax of −s · ‖x − p‖², all of unit length (ECCV 2020, Eq. 8, https://arxiv.org/abs/2004.01113).",
    softmax_scale=(9.0, Sharpness, "s, 1 / T of the paper; 1 in PML"),
)
soft_triple = _with_proxies(
    "soft_triple",
    pml_losses.SoftTripleLoss,
    "SoftTriple without its regulariser (Qian et al., ICCV 2019, Eq. 7 and 8, https://arxiv.org/abs/1909.05235).",
    centers_per_class=(10, int, "K"),
    la=(20.0, Sharpness, "λ, which the cosines are multiplied by"),
    gamma=(0.1, SoftmaxTemperature, "γ, the temperature of the soft maximum over a class's centres"),
    margin=(0.01, Range(0.0, 0.2), "δ, taken off the right class"),
)

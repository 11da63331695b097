"""PML's losses without what makes the host wait for a device: masks in place of shapes that depend on values."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from aurank.losses.core.common import AvgNonZeroReducer, DivisorReducer, convert_to_weights, pml_losses


class NonZeroMeanReducer(AvgNonZeroReducer):  # type: ignore[misc]  # PML ships no types
    """The mean of what is above 0, and 0 where nothing is; NaN, and so is its gradient, with embeddings that are."""

    def element_reduction_helper(self, losses: Tensor, embeddings: Tensor) -> Tensor:
        if losses.device.type != "cpu":
            return mean_of_positive(losses).add(self.zero_loss(embeddings))
        counted = is_counted(losses)
        kept = losses[counted]
        self.set_stats(counted, None, len(kept))
        return kept.mean() if len(kept) else self.zero_loss(embeddings)


def mean_of_positive(losses: Float[Tensor, " loss"]) -> Float[Tensor, ""]:
    counted = is_counted(losses)
    return losses.masked_fill(~counted, 0).sum() / counted.sum().clamp(min=1)


def is_counted(losses: Float[Tensor, " loss"]) -> Bool[Tensor, " loss"]:
    return ~(losses <= 0)


class PlainDivisorReducer(DivisorReducer):  # type: ignore[misc]
    """PML's, for float32 and float64, and a divisor above 0."""

    def sum_and_divide(self, losses: Tensor, embeddings: Tensor, divisor: Tensor | int) -> Tensor:
        return losses.sum() / divisor


class _Masks:
    """Leaves out the check of masks that are not on the host."""

    @staticmethod
    def _assert_either_pos_or_neg(positive: Tensor, negative: Tensor) -> None:
        if positive.device.type == "cpu":
            pml_losses.GenericPairLoss._assert_either_pos_or_neg(positive, negative)


class MaskedMultiSimilarityLoss(_Masks, pml_losses.MultiSimilarityLoss):  # type: ignore[misc]
    """PML's multi-similarity loss."""


class MaskedCircleLoss(_Masks, pml_losses.CircleLoss):  # type: ignore[misc]
    """PML's circle loss."""

    def _compute_loss(self, mat: Tensor, positive: Tensor, negative: Tensor) -> dict[str, Any]:
        positive, negative = positive.bool(), negative.bool()
        drawn = -self.gamma * (self.op - mat.detach()).relu() * (mat - self.delta_p)
        pushed = self.gamma * (mat.detach() - self.on).relu() * (mat - self.delta_n)
        nothing = torch.finfo(mat.dtype).min  # of a row without any, infinity would have no gradient
        sums = [
            torch.logsumexp(values.masked_fill(~mask, nothing), dim=1)
            for values, mask in ((drawn, positive), (pushed, negative))
        ]
        ranked = positive.any(dim=1) & negative.any(dim=1)
        losses = self.soft_plus(sum(each.masked_fill(~ranked, 0) for each in sums)) * ranked
        rows = torch.arange(len(mat), device=mat.device)
        return {"loss": {"losses": losses, "indices": rows, "reduction_type": "element"}}


class _TargetCosine:
    """A margin softmax that picks each row's cosine with its own class by the label."""

    def compute_loss(
        self: Any, embeddings: Float[Tensor, "row dim"], labels: Int64[Tensor, " row"], indices_tuple: Any, *_: object
    ) -> dict[str, Any]:
        self.cast_types(embeddings.dtype, embeddings.device)
        weights = convert_to_weights(indices_tuple, labels, dtype=embeddings.dtype)
        cosine, own = self.get_cosine(embeddings), labels[:, None]
        target = cosine.gather(1, own)
        margin = self.modify_cosine_of_target_classes(target) - target
        logits = self.scale_logits(cosine.scatter_add(1, own, margin), embeddings)
        losses = self.cross_entropy(logits, labels) * weights
        rows = torch.arange(len(labels), device=embeddings.device)
        found = {"loss": {"losses": losses, "indices": rows, "reduction_type": "element"}}
        self.add_weight_regularization_to_loss_dict(found, self.W.t())
        return found


class SafeArcFaceLoss(_TargetCosine, pml_losses.ArcFaceLoss):  # type: ignore[misc]
    """PML's ArcFace whose gradient stays finite where an embedding lies on its class's vector."""

    def get_angles(self, cosine_of_target_classes: Tensor) -> Tensor:
        """Return the angles in radians, away from 0 and π by 1e-3, within which the slope is at most 1,000."""
        return torch.acos(cosine_of_target_classes.clamp(-_NEARLY_ONE, _NEARLY_ONE))


class SafeSubCenterArcFaceLoss(_TargetCosine, pml_losses.SubCenterArcFaceLoss):  # type: ignore[misc]
    """PML's sub-center ArcFace, its angles those of `SafeArcFaceLoss`."""

    get_angles = SafeArcFaceLoss.get_angles


_NEARLY_ONE = 1 - 5e-7  # cos 1e-3


class TargetCosFaceLoss(_TargetCosine, pml_losses.CosFaceLoss):  # type: ignore[misc]
    """PML's CosFace."""


class MaskedProxyAnchorLoss(pml_losses.ProxyAnchorLoss):  # type: ignore[misc]
    """PML's Proxy-Anchor."""

    def compute_loss(self, embeddings: Tensor, labels: Tensor, indices_tuple: Any, *_: object) -> dict[str, Any]:
        self.cast_types(embeddings.dtype, embeddings.device)
        weights = convert_to_weights(indices_tuple, labels, dtype=embeddings.dtype)[:, None] - 1
        cosine = self.get_logits(embeddings)
        own = labels[:, None] == torch.arange(self.num_classes, device=labels.device)
        near, far = self.distance.margin(cosine, self.margin), self.distance.margin(-self.margin, cosine)
        classes = torch.arange(self.num_classes, device=labels.device)
        present = own.any(dim=0).sum()
        found = {
            f"{name}_loss": {
                "losses": _softplus_of_sums(self.alpha * values + weights, mask),
                "indices": classes,
                "reduction_type": "element",
                "divisor": divisor,
            }
            for name, values, mask, divisor in (("pos", near, own, present), ("neg", far, ~own, self.num_classes))
        }
        self.add_weight_regularization_to_loss_dict(found, self.proxies)
        return found

    def get_default_reducer(self) -> DivisorReducer:
        return PlainDivisorReducer()


def _softplus_of_sums(values: Float[Tensor, "row column"], kept: Tensor) -> Float[Tensor, " column"]:
    known = values.masked_fill(~kept, -torch.inf)
    sums = torch.logsumexp(torch.cat([known, known.new_zeros(1, known.shape[1])]), dim=0)
    return sums.masked_fill(~kept.any(dim=0), 0)


class MaskedProxyNCALoss(pml_losses.ProxyNCALoss):  # type: ignore[misc]
    """PML's ProxyNCA, its mean over the rows whose probability is above 0."""

    def nca_computation(
        self, query: Tensor, reference: Tensor, labels: Tensor, proxy_labels: Tensor, indices_tuple: Any
    ) -> dict[str, Any]:
        weights = convert_to_weights(indices_tuple, labels, dtype=query.dtype, using_ref=True)
        sign = 1 if self.distance.is_inverted else -1
        logits = self.softmax_scale * (sign * self.distance(query, reference))
        own = labels[:, None] == proxy_labels
        probability = (logits.softmax(dim=1) * own).sum(dim=1)
        counted = probability != 0
        losses = -probability.masked_fill(~counted, 1).log() * weights
        return {"loss": {"losses": losses.sum() / counted.sum(), "indices": None, "reduction_type": "already_reduced"}}

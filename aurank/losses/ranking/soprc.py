"""The SOPRC estimator of AUPRC with its moving averages (Eq. 8-10), and its semi-variance (Eq. 9)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, Unpack, get_args

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from aurank.errors import UserError
from aurank.losses.core.checks import (
    Number,
    check_labels_in_range,
    is_integer,
    kind_of,
    require_number,
    require_pair,
    require_whole,
)
from aurank.losses.core.pair_loss import PairLoss, PairLossOptions
from aurank.losses.core.pairs import Pairs
from aurank.losses.core.row_table import RowTable, writes
from aurank.losses.ranking.ranking_sums import ranking_sums
from aurank.names import require_choice
from aurank.ranges import Range


def semi_variance_per_query(pairs: Pairs, *, weights: tuple[float, float]) -> Float[Tensor, " query"]:
    """Return for each query λ1/n⁺ Σ_{s<μ⁺} (s − μ⁺)² + λ2/n⁻ Σ_{s>μ⁻} (s − μ⁻)², the means μ being its own."""
    positives = pairs.positives
    positive_mean = positives.mean(positives.similarity)
    below = (positive_mean[:, None] - positives.similarity).relu().square()
    negative_count = pairs.negative_count.clamp(min=1)
    negative_mean = pairs.similarity.masked_fill(~pairs.negative, 0).sum(dim=1) / negative_count
    above = (pairs.negative_similarity - negative_mean[:, None]).relu().square()
    return weights[0] * positives.mean(below) + weights[1] * above.sum(dim=1) / negative_count


def semi_variance_pooled(pairs: Pairs, *, weights: tuple[float, float]) -> Float[Tensor, ""]:
    """Return λ1·mean_{s<μ⁺} (s − μ⁺)² + λ2·mean_{s>μ⁻} (s − μ⁻)² over the pairs of all valid queries together."""
    positive = pairs.positive & pairs.valid[:, None]
    negative = pairs.negative & pairs.valid[:, None]
    below = (_masked_mean(pairs.similarity, positive) - pairs.similarity).relu()
    above = (pairs.similarity - _masked_mean(pairs.similarity, negative)).relu()
    # "not <= 0" selects NaN too, so that it shows in the loss
    low, high = positive & ~(below <= 0), negative & ~(above <= 0)
    return weights[0] * _masked_mean(below.square(), low) + weights[1] * _masked_mean(above.square(), high)


def _masked_mean(values: Float[Tensor, "query reference"], mask: Bool[Tensor, "query reference"]) -> Float[Tensor, ""]:
    return values.masked_fill(~mask, 0).sum() / mask.sum().clamp(min=1)


class SemiVarianceLoss(PairLoss):
    """λ1 · semi-variance of each query's positive scores below their mean + λ2 · that of its negatives above theirs.

    Combine it with another loss by `MultipleLosses`: alone it is least where all scores are equal. Means are weighted.

    Args:
        weights: λ1 and λ2.
        official: True does as the authors' code: one mean for the scores of all queries, and each sum divided by the
            number of scores on its side of the mean. That is one value for the batch, given to every query.

    Source: Eq. 9 of Wen et al., NeurIPS 2022, https://arxiv.org/abs/2209.13262.

    Example:
        >>> rows, labels = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0, 1])
        >>> SemiVarianceLoss()(rows, labels).item()
        0.0
    """

    def __init__(
        self, weights: Sequence[Number] = (1.0, 5.0), official: bool = False, **options: Unpack[PairLossOptions]
    ) -> None:
        super().__init__(**options)
        self.weights = require_pair("weights", weights, "[0, inf)")
        self.official = official
        self.takes_weights = not official

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        if self.official:
            return semi_variance_pooled(pairs, weights=self.weights).expand(len(pairs.query))
        return semi_variance_per_query(pairs, weights=self.weights)


Prior = Literal["scaled", "frequency", "batch"]
Interpolation = Literal["quantile", "paper", "official"]  # the names of INTERPOLATIONS
Ascending: TypeAlias = Float[Tensor, "query width"]  # a query's own `count` scores come first, padding is +inf
Count: TypeAlias = Int64[Tensor, " query"]
Quantiles: TypeAlias = Float[Tensor, "query quantile"]
Bounds: TypeAlias = tuple[float, float]


def true_positive_rate(
    scores: Float[Tensor, "query width"], quantiles: Quantiles, *, tau2: float
) -> Float[Tensor, "query width"]:
    """Return (1 + Σ_k ℓ2(score − v_k)) / (K + 1) for each score; ℓ2(x) = tanh(−x / 2τ2) for x < 0, else 0."""
    sums = ranking_sums(scores, quantiles, surrogate="tanh", temperature=tau2)
    return (1 + sums) / (quantiles.shape[1] + 1)


class SOPRCLoss(PairLoss):
    """Per query the weighted mean over positives of σ((1−π)/π · FPR/TPR), σ(r) = r/(1+r), in [0, 1): Eq. 8; plus Eq. 9.

    FPR compares a positive with the batch's negatives; TPR with `v`, a moving average of the quantiles of its class's
    positive scores (Eq. 10), updated in training mode before it is used. A batch's quantiles are averaged over a
    class's queries (of all ranks, which must all call); the first are copied into v, later ones blended in by `beta`.
    In evaluation mode nothing is written, and a query of a class not seen yet uses the quantiles of its own positives.

    Eq. 8 is an unbiased estimate of 1 − AUPRC at one π only, the frequency of the class. The default π is larger, and
    then it is a ranking loss, not that estimate. Where scores are all alike, σ is near 1 and the gradient falls as π;
    at a π of 0.001 a few queries have most of it (docs/claims.md).

    The defaults suit random weights. Heads on features of a pretrained network rank better by `semi_variance=None`: λ2
    evens out the scores of classes that the features already order (docs/results.md).

    Args:
        class_counts: images of each class in the training set; labels are 0..C-1.
        tau1, tau2: widths of the surrogates of FPR and TPR.
        num_quantiles: columns of v; the paper has one for each positive of the data set, the authors' code 100.
        prior: π of a class. "scaled": prior_max · count / greatest count, as the code; "frequency": count / sum of
            counts, at which the estimate is unbiased; "batch": the weights' share in the query's batch, the biased one
            (ablation).
        interpolation: how a batch's positive scores become quantiles, "quantile", "paper" or "official"; they are
            clamped to [-1, 1] for cosine similarity.
        tpr_gradient: True lets the gradient through TPR as Eq. 8 has it; False (default), as the code. At tau2 = 0.001
            TPR is a step and its gradient is almost always 0.
        semi_variance: weights λ1, λ2 of Eq. 9, reported as the term "semi_variance"; None leaves it out.
        moving_average: False takes the query's own quantiles of this batch instead of v (ablation).
        official: True does as the authors' code: its interpolation, v starting at 0, 0.01 … 0.99 with no first copy and
            the last query of a class overwriting the others', and the semi-variance over the pooled pairs of the batch.

    Source: Wen et al., Exploring the Algorithm-Dependent Generalization of AUPRC Optimization with List Stability,
        NeurIPS 2022, https://arxiv.org/abs/2209.13262.

    Example:
        >>> rows, labels = torch.eye(2).repeat_interleave(2, 0), torch.tensor([0, 0, 1, 1])
        >>> SOPRCLoss(class_counts=[20, 20])(rows, labels).item()
        0.0
    """

    class_counts: Tensor
    unused: ClassVar = {("official", True): ("interpolation",)}

    def __init__(
        self,
        class_counts: Tensor | Iterable[Any],
        *,
        tau1: Annotated[Number, Range(0.01, 0.5, log=True)] = 0.1,
        tau2: Number = 0.001,
        beta: Number = 0.1,
        num_quantiles: int = 100,
        prior: Prior = "scaled",
        prior_max: Annotated[Number, Range(0.05, 0.8)] = 0.1,
        interpolation: Interpolation = "quantile",
        tpr_gradient: bool = False,
        semi_variance: Annotated[Sequence[Number] | None, Range(choices=(None, (1.0, 1.0), (1.0, 5.0)))] = (1.0, 5.0),
        moving_average: bool = True,
        official: bool = False,
        **options: Unpack[PairLossOptions],
    ) -> None:
        self.extra_names = () if semi_variance is None else ("semi_variance",)
        super().__init__(**options)
        self.tau1 = require_number("tau1", tau1)
        self.tau2 = require_number("tau2", tau2)
        self.beta = require_number("beta", beta, "(0, 1]")
        self.prior = require_choice("prior", prior, get_args(Prior))
        self.prior_max = require_number("prior_max", prior_max, "(0, 1)")
        self.interpolation = require_choice("interpolation", interpolation, INTERPOLATIONS)
        self.tpr_gradient = tpr_gradient
        self.semi_variance = None if semi_variance is None else require_pair("semi_variance", semi_variance, "[0, inf)")
        self.moving_average = moving_average
        self.official = official
        self.takes_weights = semi_variance is None or not official
        by_class = moving_average or prior != "batch"
        self.one_label = "v and π are of classes; set moving_average=False and prior='batch'" if by_class else ""
        if official:
            self.interpolation = "official"
        require_whole("num_quantiles", num_quantiles)
        expected = "one whole number per class, images of class 0, 1, …, such as np.bincount(labels)"
        if isinstance(class_counts, Mapping):
            raise UserError(f"class_counts must be {expected}; got {class_counts!r}")
        counts = torch.as_tensor(class_counts if hasattr(class_counts, "__len__") else list(class_counts)).cpu()
        if counts.ndim != 1 or not is_integer(counts) or not len(counts) or counts.min() < 0 or counts.max() == 0:
            raise UserError(f"class_counts must be {expected}; got {kind_of(counts)}")
        self.num_classes = len(counts)
        self.register_buffer("class_counts", counts.long().clone())
        start = torch.arange(num_quantiles) / num_quantiles if official else None
        self.table = RowTable(self.num_classes, num_quantiles, start=start)

    @property
    def v(self) -> Float[Tensor, "class quantile"]:
        """The quantiles of each class's positive scores; zero for a class not seen yet."""
        return self.table.rows

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        # A graph cannot depend on a value. There, torch refuses labels too large, and takes -1 for the last class.
        if pairs.host_positive is None and not torch.compiler.is_compiling():
            check_labels_in_range(pairs.host_query_labels, self.num_classes)
        write, scores = writes(self), pairs.positives.similarity
        with torch.no_grad():
            quantiles = self._class_quantiles(pairs, write=write)
        with torch.set_grad_enabled(self.tpr_gradient and torch.is_grad_enabled()):
            true_positives = true_positive_rate(scores, quantiles, tau2=self.tau2)
        prior = self._class_prior(pairs)[:, None]
        # the mean over the query's negatives of ℓ1(s⁺ − s⁻), at least the true rate
        false_positives = ranking_sums(scores, pairs.negative_similarity, surrogate="huber", temperature=self.tau1)
        false_positives = false_positives / pairs.negative_count.clamp(min=1)[:, None]
        numerator = (1 - prior) * false_positives
        return pairs.positives.mean(numerator / (numerator + prior * true_positives))

    def extra_terms(self, pairs: Pairs) -> dict[str, Tensor]:
        if self.semi_variance is None:
            return {}
        form = semi_variance_pooled if self.official else semi_variance_per_query
        return {"semi_variance": form(pairs, weights=self.semi_variance)}

    def _class_quantiles(self, pairs: Pairs, *, write: bool) -> Float[Tensor, "query quantile"]:
        positives = pairs.positives
        ascending = positives.similarity.masked_fill(~positives.mask, torch.inf).sort(dim=1).values
        interpolate = INTERPOLATIONS[self.interpolation]
        quantiles = interpolate(ascending, positives.count, num_quantiles=self.table.rows.shape[1], bounds=pairs.bounds)
        quantiles = quantiles.masked_fill(positives.count[:, None] == 0, 0)
        if not self.moving_average:
            return quantiles
        if write:
            rows = pairs.valid_rows
            labels = pairs.query_labels[rows]
            if self.official and len(rows):  # of a class's queries the last, as an indexed assignment leaves behind
                rows = torch.where(labels[:, None] == labels, rows, -1).amax(dim=1)
            self.table.update(labels, quantiles[rows], rate=self.beta, is_shared=pairs.is_shared)
        stored, seen = self.table.read(pairs.query_labels)
        return torch.where(seen[:, None], stored.to(quantiles.dtype), quantiles)

    def _class_prior(self, pairs: Pairs) -> Float[Tensor, " query"]:
        if self.prior == "batch":
            positives = pairs.positives.total.to(pairs.similarity.dtype)
            return positives / (positives + pairs.negative_count)
        counts = self.class_counts.to(pairs.similarity.dtype)
        count = counts[pairs.query_labels].clamp(min=1)  # a class counted 0 is here after all
        return self.prior_max * count / counts.max() if self.prior == "scaled" else count / counts.sum()


# How a class's few positive scores in a batch are spread out to a fixed number of quantiles.


def quantile_scores(scores: Ascending, count: Count, *, num_quantiles: int, bounds: Bounds) -> Quantiles:
    """Return quantiles at k/(K+1), k = 1..K: linear through (i/(n+1), u_i), extrapolated at both ends, clamped."""
    number = count[:, None]
    step = torch.arange(1, num_quantiles + 1, device=scores.device, dtype=scores.dtype)
    position = step * (number + 1) / (num_quantiles + 1)  # score i, counted from 1, is at i
    lower = position.floor().long().clamp(min=1).minimum((number - 1).clamp(min=1))
    left = scores.gather(1, lower - 1)
    right = scores.gather(1, (lower + 1).minimum(number.clamp(min=1)) - 1)
    return torch.lerp(left, right, position - lower).clamp(*bounds)


def paper_scores(scores: Ascending, count: Count, *, num_quantiles: int, bounds: Bounds) -> Quantiles:
    """Return what Algorithm 2 must mean: ascending, u_{n+1} = 2u_n − u_{n−1}, half-open steps t = jn/K in [i−1, i)."""
    step = torch.arange(num_quantiles, device=scores.device)
    position = step * count[:, None]
    block = position // num_quantiles
    within = (position - block * num_quantiles).to(scores.dtype) / num_quantiles
    return _blend_neighbours(scores, count, block, within, bounds)


def block_scores(scores: Ascending, count: Count, *, num_quantiles: int, bounds: Bounds) -> Quantiles:
    """Return what the authors' code does: ceil(K/n) steps per score, cut off after K: the top may be missing."""
    step = torch.arange(num_quantiles, device=scores.device)
    length = (num_quantiles + count - 1).div(count.clamp(min=1), rounding_mode="floor").clamp(min=1)[:, None]
    block = step.div(length, rounding_mode="floor")
    within = (step - block * length).to(scores.dtype) / length
    return _blend_neighbours(scores, count, block, within, bounds)


INTERPOLATIONS: dict[str, Callable[..., Tensor]] = {
    "quantile": quantile_scores,
    "paper": paper_scores,
    "official": block_scores,
}


def _blend_neighbours(
    scores: Ascending, count: Count, block: Int64[Tensor, "query quantile"], within: Quantiles, bounds: Bounds
) -> Quantiles:
    last = (count - 1).clamp(min=0)[:, None]
    low, high = scores[:, :1], scores.gather(1, last)
    second, second_last = scores.gather(1, last.clamp(max=1)), scores.gather(1, (last - 1).clamp(min=0))
    before_first = (2 * low - second).clamp(min=bounds[0])
    after_last = (2 * high - second_last).clamp(max=bounds[1])
    middle = scores.gather(1, block.minimum(last))
    before = torch.where(block == 0, before_first, scores.gather(1, (block - 1).clamp(min=0).minimum(last)))
    after = torch.where(block >= last, after_last, scores.gather(1, (block + 1).minimum(last)))
    return (torch.lerp(before, middle, within) + torch.lerp(middle, after, within)) / 2

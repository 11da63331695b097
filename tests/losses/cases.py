"""The table of test_contract.py: how each loss is made, and the oracle it must equal.

Variants of a loss are further lines, named after it. FastAP's official one is the same but for a factor of the
gradient, and BlackBox AP's ranks what is no list of anything: their own tests have them.
"""

from collections.abc import Callable
from typing import NamedTuple

import oracles
import oracles_binned
import oracles_contrastive
from torch import Tensor

from aurank.losses import (
    AUROCLoss,
    BlackBoxAPLoss,
    FastAPLoss,
    ListwiseAPLoss,
    PairLoss,
    RecallAtKLoss,
    SemiVarianceLoss,
    SmoothAPLoss,
    SogCLRLoss,
    SOPRCLoss,
)

COUNTS = [9, 4, 20, 1, 6, 3]


class Case(NamedTuple):
    make: Callable[..., PairLoss]  # takes the keyword arguments of PML
    # (similarity, positive, negative, labels) -> terms of a new loss, a tensor where a term is one value for the batch
    oracle: Callable[..., dict[str, oracles.PerQuery | Tensor]]
    # a query is ranked among its own references where it is one of them: the oracle takes include_self too
    ranks_itself: bool = False


def auroc(surrogate: str) -> Case:
    return Case(
        lambda **given: AUROCLoss(surrogate, **given),
        lambda s, p, n, y: {"loss": oracles.auroc(s, p, n, surrogate=surrogate, temperature=0.1)},
    )


def recall_at_k(official: bool) -> Case:
    cuts = {"cuts": (1, 2, 4, 8, 16), "temperature": 0.01, "rank_temperature": 1.0, "official": official}
    return Case(
        lambda **given: RecallAtKLoss(official=official, **given),
        lambda s, p, n, y, **itself: {"loss": oracles.recall_at_k(s, p, n, **cuts, **itself)},
        ranks_itself=official,
    )


SAMPLES = 40  # rows of the data set; classes may stand in for them, so a label may occur as often


def sogclr(positives: bool = False, **own: object) -> Case:
    """On its first batch, when a sample's normaliser is the batch's own."""
    denominator = {"temperature": 0.1, "positive_in_denominator": positives}
    return Case(
        lambda **given: SogCLRLoss(SAMPLES, views=SAMPLES, positive_in_denominator=positives, **own, **given),
        lambda s, p, n, y: {"loss": oracles_contrastive.decoupled(s, p, n, **denominator)},
    )


TABLE = {
    "auroc": auroc("huber"),
    "auroc logistic": auroc("logistic"),
    "auroc sigmoid": auroc("sigmoid"),
    "blackbox_ap": Case(
        lambda **given: BlackBoxAPLoss(margin=0, **given),  # a margin is random
        lambda s, p, n, y: oracles.blackbox_ap(s, p, n),
    ),
    "blackbox_ap without flat": Case(
        lambda **given: BlackBoxAPLoss(margin=0, flat_weight=0, **given),
        lambda s, p, n, y: {"loss": oracles.blackbox_ap(s, p, n, flat_weight=0)["loss"]},
    ),
    "fast_ap": Case(FastAPLoss, lambda s, p, n, y: {"loss": oracles_binned.binned_ap(s, p, n, number=11)}),
    "listwise_ap": Case(ListwiseAPLoss, lambda s, p, n, y: {"loss": oracles_binned.binned_ap(s, p, n, number=20)}),
    "listwise_ap official": Case(
        lambda **given: ListwiseAPLoss(official=True, **given),
        lambda s, p, n, y, **itself: {"loss": oracles_binned.binned_ap(s, p, n, number=20, **itself)},
        ranks_itself=True,
    ),
    "listwise_ap tie_aware": Case(
        lambda **given: ListwiseAPLoss(tie_aware=True, **given),
        lambda s, p, n, y: {"loss": oracles_binned.tie_aware_ap(s, p, n, number=20)},
    ),
    "recall_at_k": recall_at_k(official=False),
    "recall_at_k official": recall_at_k(official=True),
    "semi_variance": Case(
        SemiVarianceLoss, lambda s, p, n, y: {"loss": oracles.semi_variance(s, p, n, weights=(1.0, 5.0))}
    ),
    "smooth_ap": Case(SmoothAPLoss, lambda s, p, n, y: {"loss": oracles.smooth_ap(s, p, n, temperature=0.01)}),
    "smooth_ap official": Case(
        lambda **given: SmoothAPLoss(official=True, **given),
        lambda s, p, n, y, **itself: {"loss": oracles.smooth_ap(s, p, n, temperature=0.01, **itself)},
        ranks_itself=True,
    ),
    "sogclr": sogclr(),
    "sogclr previous": sogclr(previous_normalizer=True),
    "sogclr with positive": sogclr(positives=True),
    "soprc": Case(
        lambda **given: SOPRCLoss(COUNTS, **given),
        lambda s, p, n, y: oracles.soprc_first_batch(s, p, n, y, class_counts=COUNTS),
    ),
    "soprc official": Case(
        lambda **given: SOPRCLoss(COUNTS, official=True, **given),
        lambda s, p, n, y: oracles.official_soprc_first_batch(s, p, n, y, class_counts=COUNTS),
    ),
}

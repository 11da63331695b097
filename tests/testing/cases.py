"""The table of test_contract.py: how each loss is made, and the oracle it must equal.

Variants of a loss are further lines, named after it. FastAP's official one is the same but for a factor of the
gradient, and BlackBox AP's ranks what is no list of anything: their own tests have them.
"""

from collections.abc import Callable
from typing import NamedTuple

import oracles
import oracles_binned
import torch
from testing import oracles_chains, oracles_contrastive, oracles_neuclip, oracles_sup, oracles_temperatures
from torch import Tensor, nn

from aurank.losses import (
    MINERS,
    AUROCLoss,
    BlackBoxAPLoss,
    CLIPLoss,
    CyCLIPLoss,
    DCLLoss,
    EMC2Loss,
    EMC2Miner,
    FastAPLoss,
    FastCLIPLoss,
    FlatNCELoss,
    HierarchicalAPLoss,
    InfoNCELoss,
    ISogCLRLoss,
    ListwiseAPLoss,
    NegativeCacheLoss,
    NeuCLIPLoss,
    PairLoss,
    PNPLoss,
    RecallAtKLoss,
    SemiVarianceLoss,
    SigLIPLoss,
    SimCoLoss,
    SiMoLoss,
    SmoothAPLoss,
    SogCLRLoss,
    SOPRCLoss,
    SpectralContrastiveLoss,
    SupAPLoss,
    SupConLoss,
    SupRecallLoss,
)

COUNTS = [9, 4, 20, 1, 6, 3]


class Case(NamedTuple):
    make: Callable[..., PairLoss]  # takes the keyword arguments of PML
    # (similarity, positive, negative, labels) -> terms of a new loss, a tensor where a term is one value for the batch
    oracle: Callable[..., dict[str, oracles.PerQuery | Tensor]]
    # a query is ranked among its own references where it is one of them: the oracle takes include_self too
    ranks_itself: bool = False
    # its state names references, so that without ids of theirs it is another loss from the second batch on
    names_references: bool = False
    # from the second batch on, a query's value depends on the other queries
    joins_queries: bool = False


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


def calibrated(make: Callable[..., PairLoss], oracle: Callable[..., oracles.PerQuery], *, official: bool) -> Case:
    def terms(
        s: Tensor, p: oracles.Mask, n: oracles.Mask, y: object, **itself: bool
    ) -> dict[str, oracles.PerQuery | Tensor]:
        beside = oracles_sup.pooled_calibration if official else oracles_sup.calibration
        return {"loss": oracle(s, p, n, official=official, **itself), "calibration": beside(s, p, n)}

    return Case(lambda **given: make(official=official, **given), terms, ranks_itself=official)


def pnp(variant: str, official: bool = False) -> Case:
    return Case(
        lambda **given: PNPLoss(variant, official=official, **given),
        lambda s, p, n, y, **itself: {"loss": oracles_sup.pnp(s, p, n, variant=variant, official=official, **itself)},
        ranks_itself=official,
    )


OF_LIGHTLY = {"barlow_twins", "lightly", "vicreg"}  # of a batch's two views, and of a library that may be missing

SAMPLES = 40  # rows of the data set; classes may stand in for them, so a label may occur as often

MADE_MINERS: dict[str, Callable[[], nn.Module]] = {**MINERS, "emc2": lambda: EMC2Miner(SAMPLES, views=SAMPLES)}


def sogclr(positives: bool = False, **own: object) -> Case:
    """On its first batch, when a sample's normaliser is the batch's own."""
    denominator = {"temperature": 0.1, "positive_in_denominator": positives}
    return Case(
        lambda **given: SogCLRLoss(SAMPLES, views=SAMPLES, positive_in_denominator=positives, **own, **given),
        lambda s, p, n, y: {"loss": oracles_contrastive.decoupled(s, p, n, **denominator)},
        joins_queries="average" not in own,
    )


def emc2(out_of_batch: str) -> Case:
    """On its first batch, when no chain has a state."""
    return Case(
        lambda **given: EMC2Loss(SAMPLES, views=SAMPLES, out_of_batch=out_of_batch, **given),
        lambda s, p, n, y: {"loss": oracles_chains.emc2_first_batch(s, p, n, temperature=0.07)},
        names_references=True,
    )


def negative_cache(weighted: bool) -> Case:
    """On its first batch, when the cache is empty."""
    settings = {"temperature": 0.07, "samples": SAMPLES, "weighted": weighted}
    return Case(
        lambda **given: NegativeCacheLoss(SAMPLES, views=SAMPLES, positive_in_denominator=weighted, **given),
        lambda s, p, n, y: {"loss": oracles_chains.negative_cache_first_batch(s, p, n, **settings)},
    )


LEARNT = float(torch.tensor(0.07).log().double().exp())  # a learnable temperature as its parameter holds it, in float32


def isogclr(**own: object) -> Case:
    """On its first batch, when a sample's normaliser is the batch's own."""
    return Case(
        lambda **given: ISogCLRLoss(SAMPLES, views=SAMPLES, temperature=0.5, **own, **given),
        lambda s, p, n, y: {"loss": oracles_temperatures.robust(s, p, n, temperature=0.5, rho=0.3)},
        joins_queries="average" not in own,
    )


def fastclip(version: str, temperature: float, rho: float) -> Case:
    """On its first batch, too."""
    given_rho = {"rho": rho} if rho else {}
    return Case(
        lambda **given: FastCLIPLoss(
            SAMPLES, version, two_way=False, views=SAMPLES, gamma_schedule="constant", **given_rho, **given
        ),
        lambda s, p, n, y: {
            "loss": oracles_temperatures.robust(
                s, p, n, temperature=temperature, rho=rho, epsilon=1e-14, factor=version != "v0"
            )
        },
    )


def clip(make: Callable[..., PairLoss], **terms: Callable[..., Tensor]) -> Case:
    return Case(
        lambda **given: make(two_way=False, **given),
        lambda s, p, n, y: {
            "loss": oracles_temperatures.cross_entropy(s, p, n, temperature=LEARNT),
            **{name: term(s, p, n) for name, term in terms.items()},
        },
    )


def neuclip() -> Case:
    """On its first batch, when the prototypes are the references; of their steps the oracle cannot know."""
    settings = {"temperature": 0.125, "epsilon": 1e-8, "rho": 6.5}
    return Case(
        lambda **given: NeuCLIPLoss(6, two_way=False, inner_steps=0, **settings, **given),
        lambda s, p, n, y: {"loss": oracles_neuclip.first_batch(s, p, n, **settings)},
    )


def in_batch(make: Callable[..., PairLoss], oracle: Callable[..., oracles.PerQuery], **settings: float) -> Case:
    """A loss without state, whose oracle takes the same settings."""
    return Case(lambda **given: make(**settings, **given), lambda s, p, n, y: {"loss": oracle(s, p, n, **settings)})


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
    "clip": clip(CLIPLoss),
    # what "in_modal" adds does not follow from the similarity alone: test_cyclip.py
    "cyclip": clip(
        lambda **given: CyCLIPLoss(in_modal=0, **given),
        cross_modal=lambda *given: 0.25 * oracles_temperatures.cross_modal(*given),
    ),
    "dcl": in_batch(DCLLoss, oracles_contrastive.dcl, temperature=0.1),
    "emc2": emc2("stored"),
    "emc2 restart": emc2("restart"),
    "fast_ap": Case(FastAPLoss, lambda s, p, n, y: {"loss": oracles_binned.binned_ap(s, p, n, number=11)}),
    "fastclip": fastclip("v3", LEARNT, rho=0.3),
    "fastclip v0": fastclip("v0", LEARNT, rho=0),
    "fastclip v1": fastclip("v1", 0.07, rho=0),
    "fastclip v2": fastclip("v2", float(torch.tensor(0.03)), rho=0.3),
    "flat_nce": in_batch(FlatNCELoss, oracles_contrastive.flat_nce, temperature=0.1),
    # with super-labels its value needs the references' labels too: test_hierarchical_ap.py
    "hierarchical_ap": Case(HierarchicalAPLoss, lambda s, p, n, y: {"loss": oracles_sup.sup_ap(s, p, n, share=1.0)}),
    "info_nce": in_batch(InfoNCELoss, oracles_contrastive.info_nce, temperature=0.1),
    "isogclr": isogclr(),
    "isogclr global": isogclr(individual=False),
    "isogclr official": isogclr(official=True),
    "isogclr plain": isogclr(average="plain"),
    "isogclr weighted_pull": isogclr(weighted_pull=True),
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
    "negative_cache": negative_cache(weighted=True),
    "negative_cache unweighted": negative_cache(weighted=False),
    "neuclip": neuclip(),
    "pnp": pnp("D_q"),
    "pnp O": pnp("O"),
    "pnp I_u": pnp("I_u"),
    "pnp I_b": pnp("I_b"),
    "pnp D_s": pnp("D_s"),
    "pnp official": pnp("I_u", official=True),
    "recall_at_k": recall_at_k(official=False),
    "recall_at_k official": recall_at_k(official=True),
    "semi_variance": Case(
        SemiVarianceLoss, lambda s, p, n, y: {"loss": oracles.semi_variance(s, p, n, weights=(1.0, 5.0))}
    ),
    "siglip": Case(
        lambda **given: SigLIPLoss(two_way=False, **given),
        lambda s, p, n, y: {
            "loss": oracles_temperatures.sigmoid(
                s, p, n, temperature=float(torch.tensor(0.1).log().double().exp()), bias=-10.0
            )
        },
    ),
    "simco": in_batch(SimCoLoss, oracles_contrastive.simco, temperature=0.1, inter_temperature=1.0),
    "simo": in_batch(SiMoLoss, oracles_contrastive.simo, temperature=0.2, alpha=65536.0),
    "smooth_ap": Case(SmoothAPLoss, lambda s, p, n, y: {"loss": oracles.smooth_ap(s, p, n, temperature=0.01)}),
    "smooth_ap official": Case(
        lambda **given: SmoothAPLoss(official=True, **given),
        lambda s, p, n, y, **itself: {"loss": oracles.smooth_ap(s, p, n, temperature=0.01, **itself)},
        ranks_itself=True,
    ),
    "sogclr": sogclr(),
    "sogclr official": sogclr(official=True),
    "sogclr plain": sogclr(average="plain"),
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
    "spectral": in_batch(SpectralContrastiveLoss, oracles_contrastive.spectral, mu=2.0),
    "sup_ap": calibrated(SupAPLoss, oracles_sup.sup_ap, official=False),
    "sup_ap official": calibrated(SupAPLoss, oracles_sup.sup_ap, official=True),
    "sup_con": in_batch(SupConLoss, oracles_contrastive.sup_con, temperature=0.1),
    "sup_recall": calibrated(SupRecallLoss, oracles_sup.sup_recall, official=False),
    "sup_recall official": calibrated(SupRecallLoss, oracles_sup.sup_recall, official=True),
}


def no_oracle(*_: object) -> dict[str, oracles.PerQuery | Tensor]:
    raise AssertionError("this variant has tests of its own for its values")


# What holds for every loss holds for these too; their values are in their own tests.
FURTHER = {
    name: Case(make, no_oracle)
    for name, make in {
        "cyclip in_modal": lambda **given: CyCLIPLoss(two_way=False, **given),
        "dcl weighted": lambda **given: DCLLoss(weight_sigma=0.5, **given),
        "dcl weight_gradient": lambda **given: DCLLoss(weight_sigma=0.5, weight_gradient=True, **given),
        "emc2 official": lambda **given: EMC2Loss(SAMPLES, views=SAMPLES, official=True, **given),
        "fastclip official": lambda **given: FastCLIPLoss(
            SAMPLES, two_way=False, views=SAMPLES, gamma_schedule="constant", rho=0.3, official=True, **given
        ),
        "hierarchical_ap clustering": lambda **given: HierarchicalAPLoss(
            [0, 0, 1, 1, 0, -1], clustering=0.1, embedding_size=6, **given
        ),
        "hierarchical_ap levels": lambda **given: HierarchicalAPLoss([0, 0, 1, 1, 0, -1], **given),
        "isogclr adam": lambda **given: ISogCLRLoss(SAMPLES, views=SAMPLES, temperature_update="adam", **given),
        "neuclip steps": lambda **given: NeuCLIPLoss(6, two_way=False, num_prototypes=16, **given),
        "sogclr shared": lambda **given: SogCLRLoss(SAMPLES, views=SAMPLES, normalizer="shared", **given),
    }.items()
}

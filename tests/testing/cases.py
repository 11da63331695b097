"""How each loss is made, its oracle, and batches to call it with."""

import math
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any, NamedTuple

import oracles
import torch
from oracles import binned as oracles_binned
from oracles import chains as oracles_chains
from oracles import contrastive as oracles_contrastive
from oracles import neuclip as oracles_neuclip
from oracles import sup as oracles_sup
from oracles import temperatures as oracles_temperatures
from torch import Tensor

from aurank import losses
from aurank.losses.ranking.ranking_sums import block_gradients, block_sums

COUNTS = [9, 4, 20, 1, 6, 3]


class Case(NamedTuple):
    make: Callable[..., losses.PairLoss]  # takes the keyword arguments of PML
    # (similarity, positive, negative, labels) -> terms of a new loss, a tensor where a term is one value for the batch
    oracle: Callable[..., dict[str, oracles.PerQuery | Tensor]]
    # a query is ranked among its own references where it is one of them: the oracle takes include_self too
    ranks_itself: bool = False
    # its state names references, so that without ids of theirs it is another loss from the second batch on
    names_references: bool = False
    # from the second batch on, a query's value depends on the other queries
    joins_queries: bool = False


def calibrated(make: Callable[..., losses.PairLoss], oracle: Callable[..., oracles.PerQuery]) -> Case:
    return Case(make, lambda s, p, n, y: {"loss": oracle(s, p, n), "calibration": oracles_sup.calibration(s, p, n)})


SAMPLES = 40  # rows of the data set; classes may stand in for them, so a label may occur as often


def sogclr(**own: object) -> Case:
    """On its first batch, when a sample's normaliser is the batch's own."""
    return Case(
        lambda **given: losses.SogCLRLoss(SAMPLES, views=SAMPLES, **own, **given),
        lambda s, p, n, y: {"loss": oracles_contrastive.decoupled(s, p, n, temperature=0.1)},
        joins_queries="average" not in own,
    )


def emc2(out_of_batch: str) -> Case:
    """On its first batch, when no chain has a state; labels name the rows, but not references beside the batch."""
    return Case(
        lambda **given: losses.EMC2Loss(SAMPLES, views=SAMPLES, out_of_batch=out_of_batch, **given),
        lambda s, p, n, y: {
            "loss": oracles_chains.emc2_first_batch(s, p, n, None if p[0][0] or n[0][0] else y, temperature=0.07)
        },
        names_references=True,
    )


def negative_cache(weighted: bool) -> Case:
    """On its first batch, when the cache is empty."""
    settings = {"temperature": 0.07, "samples": SAMPLES, "weighted": weighted}
    return Case(
        lambda **given: losses.NegativeCacheLoss(SAMPLES, views=SAMPLES, positive_in_denominator=weighted, **given),
        lambda s, p, n, y: {"loss": oracles_chains.negative_cache_first_batch(s, p, n, **settings)},
    )


LEARNT = float(torch.tensor(0.07).log().double().exp())  # a learnable temperature as its parameter holds it, in float32


def isogclr(**own: object) -> Case:
    """On its first batch, when a sample's normaliser is the batch's own."""
    return Case(
        lambda **given: losses.ISogCLRLoss(SAMPLES, views=SAMPLES, temperature=0.5, **own, **given),
        lambda s, p, n, y: {"loss": oracles_temperatures.robust(s, p, n, temperature=0.5, rho=0.3)},
        joins_queries="average" not in own,
    )


def fastclip(version: str, temperature: float, rho: float) -> Case:
    """On its first batch, too."""
    given_rho = {"rho": rho} if rho else {}
    return Case(
        lambda **given: losses.FastCLIPLoss(
            SAMPLES, version, two_way=False, views=SAMPLES, gamma_schedule="constant", **given_rho, **given
        ),
        lambda s, p, n, y: {
            "loss": oracles_temperatures.robust(
                s, p, n, temperature=temperature, rho=rho, epsilon=1e-14, factor=version != "v0"
            )
        },
    )


def clip(make: Callable[..., losses.PairLoss], **terms: Callable[..., Tensor]) -> Case:
    return Case(
        lambda **given: make(two_way=False, **given),
        lambda s, p, n, y: {
            "loss": oracles_contrastive.sup_con(s, p, n, temperature=LEARNT),
            **{name: term(s, p, n) for name, term in terms.items()},
        },
    )


def neuclip() -> Case:
    """On its first batch, when the prototypes are the references; of their steps the oracle cannot know."""
    settings = {"temperature": 0.125, "epsilon": 1e-8, "rho": 6.5}
    return Case(
        lambda **given: losses.NeuCLIPLoss(6, two_way=False, inner_steps=0, **settings, **given),
        lambda s, p, n, y: {"loss": oracles_neuclip.first_batch(s, p, n, **settings)},
    )


def in_batch(make: Callable[..., losses.PairLoss], oracle: Callable[..., oracles.PerQuery], **settings: object) -> Case:
    """A loss without state, whose oracle takes the same settings."""
    return Case(lambda **given: make(**settings, **given), lambda s, p, n, y: {"loss": oracle(s, p, n, **settings)})


TABLE = {
    "auroc": in_batch(losses.AUROCLoss, oracles.auroc, surrogate="huber", temperature=0.1),
    "auroc logistic": in_batch(losses.AUROCLoss, oracles.auroc, surrogate="logistic", temperature=0.1),
    "auroc sigmoid": in_batch(losses.AUROCLoss, oracles.auroc, surrogate="sigmoid", temperature=0.1),
    "blackbox_ap": Case(
        lambda **given: losses.BlackBoxAPLoss(margin=0, **given),  # a margin is random
        lambda s, p, n, y: oracles.blackbox_ap(s, p, n),
    ),
    "blackbox_ap without flat": Case(
        lambda **given: losses.BlackBoxAPLoss(margin=0, flat_weight=0, **given),
        lambda s, p, n, y: {"loss": oracles.blackbox_ap(s, p, n, flat_weight=0)["loss"]},
    ),
    "clip": clip(losses.CLIPLoss),
    # what "in_modal" adds does not follow from the similarity alone: test_cyclip.py
    "cyclip": clip(
        lambda **given: losses.CyCLIPLoss(in_modal=0, **given),
        cross_modal=lambda *given: 0.25 * oracles_temperatures.cross_modal(*given),
    ),
    "dcl": in_batch(losses.DCLLoss, oracles_contrastive.dcl, temperature=0.1),
    "dcl weighted": in_batch(losses.DCLLoss, oracles_contrastive.dcl, temperature=0.1, weight_sigma=0.5),
    "emc2": emc2("stored"),
    "emc2 restart": emc2("restart"),
    "fast_ap": Case(losses.FastAPLoss, lambda s, p, n, y: {"loss": oracles_binned.binned_ap(s, p, n, number=11)}),
    "fastclip": fastclip("v3", LEARNT, rho=0.3),
    "fastclip v0": fastclip("v0", LEARNT, rho=0),
    "fastclip v1": fastclip("v1", 0.07, rho=0),
    "fastclip v2": fastclip("v2", float(torch.tensor(0.03)), rho=0.3),
    "flat_nce": in_batch(losses.FlatNCELoss, oracles_contrastive.flat_nce, temperature=0.1),
    # with super-labels its value needs the references' labels too: test_hierarchical_ap.py
    "hierarchical_ap": Case(
        losses.HierarchicalAPLoss, lambda s, p, n, y: {"loss": oracles_sup.sup_ap(s, p, n, share=1.0)}
    ),
    "info_nce": in_batch(losses.InfoNCELoss, oracles_contrastive.info_nce, temperature=0.1),
    "isogclr": isogclr(),
    "isogclr global": isogclr(individual=False),
    "isogclr official": isogclr(official=True),
    "isogclr plain": isogclr(average="plain"),
    "isogclr weighted_pull": isogclr(weighted_pull=True),
    "listwise_ap": Case(
        losses.ListwiseAPLoss, lambda s, p, n, y: {"loss": oracles_binned.binned_ap(s, p, n, number=20)}
    ),
    "listwise_ap tie_aware": Case(
        lambda **given: losses.ListwiseAPLoss(tie_aware=True, **given),
        lambda s, p, n, y: {"loss": oracles_binned.tie_aware_ap(s, p, n, number=20)},
    ),
    "negative_cache": negative_cache(weighted=True),
    "negative_cache unweighted": negative_cache(weighted=False),
    "neuclip": neuclip(),
    "pnp": in_batch(losses.PNPLoss, oracles_sup.pnp, variant="D_q"),
    "pnp O": in_batch(losses.PNPLoss, oracles_sup.pnp, variant="O"),
    "pnp I_u": in_batch(losses.PNPLoss, oracles_sup.pnp, variant="I_u"),
    "pnp I_b": in_batch(losses.PNPLoss, oracles_sup.pnp, variant="I_b"),
    "pnp D_s": in_batch(losses.PNPLoss, oracles_sup.pnp, variant="D_s"),
    "recall_at_k": in_batch(
        losses.RecallAtKLoss, oracles.recall_at_k, k=(1, 2, 4, 8, 16), temperature=0.01, rank_temperature=1.0
    ),
    "semi_variance": Case(
        losses.SemiVarianceLoss, lambda s, p, n, y: {"loss": oracles.semi_variance(s, p, n, weights=(1.0, 5.0))}
    ),
    "siglip": Case(
        lambda **given: losses.SigLIPLoss(two_way=False, **given),
        lambda s, p, n, y: {
            "loss": oracles_temperatures.sigmoid(
                s, p, n, temperature=float(torch.tensor(0.1).log().double().exp()), bias=-10.0
            )
        },
    ),
    "simco": in_batch(losses.SimCoLoss, oracles_contrastive.simco, temperature=0.1, inter_temperature=1.0),
    "simo": in_batch(losses.SiMoLoss, oracles_contrastive.simo, temperature=0.2, alpha=65536.0),
    "smooth_ap": Case(losses.SmoothAPLoss, lambda s, p, n, y: {"loss": oracles.smooth_ap(s, p, n, temperature=0.01)}),
    "smooth_ap wide": in_batch(losses.SmoothAPLoss, oracles.smooth_ap, temperature=1.0),
    "smooth_ap official": Case(
        lambda **given: losses.SmoothAPLoss(official=True, **given),
        lambda s, p, n, y, **itself: {"loss": oracles.smooth_ap(s, p, n, temperature=0.01, **itself)},
        ranks_itself=True,
    ),
    "sogclr": sogclr(),
    "sogclr official": sogclr(official=True),
    "sogclr plain": sogclr(average="plain"),
    "sogclr previous": sogclr(previous_normalizer=True),
    "soprc": Case(
        lambda **given: losses.SOPRCLoss(COUNTS, **given),
        lambda s, p, n, y: oracles.soprc_first_batch(s, p, n, y, class_counts=COUNTS),
    ),
    "soprc official": Case(
        lambda **given: losses.SOPRCLoss(COUNTS, official=True, **given),
        lambda s, p, n, y: oracles.official_soprc_first_batch(s, p, n, y, class_counts=COUNTS),
    ),
    "spectral": in_batch(losses.SpectralContrastiveLoss, oracles_contrastive.spectral, mu=2.0),
    "sup_ap": calibrated(losses.SupAPLoss, oracles_sup.sup_ap),
    "sup_con": in_batch(losses.SupConLoss, oracles_contrastive.sup_con, temperature=0.1),
    "sup_recall": calibrated(losses.SupRecallLoss, oracles_sup.sup_recall),
}


def no_oracle(*_: object) -> dict[str, oracles.PerQuery | Tensor]:
    raise AssertionError("this variant has tests of its own for its values")


# What holds for every loss holds for these too; their values are in their own tests.
FURTHER = {
    name: Case(make, no_oracle)
    for name, make in {
        "cyclip in_modal": lambda **given: losses.CyCLIPLoss(two_way=False, **given),
        "emc2 official": lambda **given: losses.EMC2Loss(SAMPLES, views=SAMPLES, official=True, **given),
        "fastclip official": lambda **given: losses.FastCLIPLoss(
            SAMPLES, two_way=False, views=SAMPLES, gamma_schedule="constant", rho=0.3, official=True, **given
        ),
        "hierarchical_ap clustering": lambda **given: losses.HierarchicalAPLoss(
            [0, 0, 1, 1, 0, -1], clustering=0.1, embedding_size=6, **given
        ),
        "hierarchical_ap levels": lambda **given: losses.HierarchicalAPLoss([0, 0, 1, 1, 0, -1], **given),
        "isogclr adam": lambda **given: losses.ISogCLRLoss(SAMPLES, views=SAMPLES, temperature_update="adam", **given),
        "neuclip steps": lambda **given: losses.NeuCLIPLoss(6, two_way=False, num_prototypes=16, **given),
        "sogclr shared": lambda **given: losses.SogCLRLoss(SAMPLES, views=SAMPLES, normalizer="shared", **given),
    }.items()
}


def soft_step(x: Tensor) -> Tensor:
    return 1 / (1 + (-x).exp())


SOFT_STEP_OF_5 = 1 / (1 + math.exp(-5))

# value and slope, from the formulas of the papers; a branch that is not taken may overflow
DEFINITIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "sigmoid": (soft_step, lambda x: soft_step(x) * soft_step(-x)),
    "huber": (
        lambda x: torch.where(x <= -1, 0, torch.where(x <= 0, (1 + x) ** 2, 1 + 2 * x)),
        lambda x: torch.where(x <= -1, 0, torch.where(x <= 0, 2 * (1 + x), 2)),
    ),
    "logistic": (lambda x: torch.logaddexp(x, torch.zeros_like(x)) / math.log(2), lambda x: soft_step(x) / math.log(2)),
    "tanh": (
        lambda x: torch.where(x <= 0, 0, torch.tanh(x / 2)),
        lambda x: torch.where(x <= 0, 0, 2 * soft_step(x) * soft_step(-x)),
    ),
    "bound": (  # of its default constants
        lambda x: torch.where(x < 0, soft_step(x), torch.where(x <= 5, soft_step(x) + 0.5, x - 4.5 + SOFT_STEP_OF_5)),
        lambda x: torch.where(x <= 5, soft_step(x) * soft_step(-x), 1),
    ),
}


def sides(
    queries: int, width: int, references: int, *, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor, Tensor]:
    """A gradient, scores and others; some others are left out as −∞, some equal a score."""
    random = torch.Generator().manual_seed(queries + width + references)
    gradient, scores = (torch.randn(queries, width, generator=random, dtype=dtype) for _ in range(2))
    others = torch.rand(queries, references, generator=random, dtype=dtype) * 2 - 1
    scores = scores.tanh()
    others[torch.rand(queries, references, generator=random) < 0.2] = -torch.inf
    same = min(width, references) // 2
    others[:, :same] = scores[:, :same]
    return gradient.to(device), scores.to(device), others.to(device)


def defined(
    gradient: Tensor, scores: Tensor, others: Tensor, *, surrogate: str, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The sums and the gradients of scores and others, in float64 over all triples."""
    value, slope = DEFINITIONS[surrogate]
    x = (others.double()[:, None, :] - scores.double()[:, :, None]) / temperature
    pull = gradient.double()[:, :, None] * slope(x) / temperature
    return value(x).sum(dim=2), -pull.sum(dim=2), pull.sum(dim=1)


def sums_and_gradients(gradient: Tensor, scores: Tensor, others: Tensor, **named: Any) -> tuple[Tensor, Tensor, Tensor]:
    named = {"constants": (), **named}
    return block_sums(scores, others, **named), *block_gradients(gradient, scores, others, **named)


def compare(gradient: Tensor, scores: Tensor, others: Tensor, **named: Any) -> None:
    """Nothing; raises unless sums and gradients are those of the definition, to the type's precision."""
    # In float32 a gradient may be off by a rounding of x, which the temperature magnifies.
    found = sums_and_gradients(gradient, scores, others, **named)
    for each, wanted, like in zip(
        found, defined(gradient, scores, others, **named), (scores, scores, others), strict=True
    ):
        assert each.dtype == like.dtype
        assert each.device == like.device
        size = max(1.0, float(wanted.abs().amax()) if wanted.numel() else 0.0)
        tolerance = {torch.float32: 1e-5, torch.float64: 1e-10}[each.dtype]
        torch.testing.assert_close(each.double(), wanted, rtol=tolerance, atol=tolerance * size)
    compare_not_a_number(gradient, scores, others, **named)


def compare_not_a_number(gradient: Tensor, scores: Tensor, others: Tensor, **named: Any) -> None:
    """Nothing; raises unless what is made of a score or other that is not a number is none, in its query alone."""
    for left, right in ((spoilt(scores), others), (scores, spoilt(others))):
        found = sums_and_gradients(gradient, left, right, **named)
        for each, wanted in zip(found, defined(gradient, left, right, **named), strict=True):
            assert each[wanted.isnan()].isnan().all()
            assert not each[1:].isnan().any()


def spoilt(values: Tensor) -> Tensor:
    """The values with one of the first query's, where it has any, that is not a number."""
    values = values.clone()
    values[:1, -1:] = torch.nan
    return values


class Elements(HTMLParser):
    """The start tags of a page, and its visible text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


IMAGES = [0, 1, 2, 3, 4, 1]  # labels: two images of 1
TEXTS = [3, 0, 0, 1, 4, 2, 5, 0]  # three texts of 0, one without an image


def batch(seed: int = 0) -> dict[str, Tensor]:
    """The arguments of a loss; sample ids differ from labels and between rows of one label."""
    random = torch.Generator().manual_seed(seed)
    images, texts = torch.tensor(IMAGES), torch.tensor(TEXTS)
    orders = [torch.randperm(len(rows), generator=random) for rows in (images, texts)]
    embeddings = [torch.randn(len(rows), 5, generator=random, dtype=torch.float64) for rows in (images, texts)]
    return {
        "embeddings": embeddings[0].requires_grad_(),
        "labels": images[orders[0]],
        "ref_emb": embeddings[1].requires_grad_(),
        "ref_labels": texts[orders[1]],
        "ids": (torch.arange(len(images)) + 10)[orders[0]],
        "ref_ids": (torch.arange(len(texts)) + 10)[orders[1]],
    }


def both_directions(given: dict[str, Tensor], oracle: Callable[..., oracles.PerQuery]) -> Tensor:
    """The sum over both directions of an oracle's mean over the rows with a positive and a negative."""
    similarity = oracles.cosine(given["embeddings"], given["ref_emb"])
    labels = given["labels"].tolist(), given["ref_labels"].tolist()
    total = similarity.new_zeros(())
    for scores, own, other in ((similarity, *labels), (similarity.T, *labels[::-1])):
        total = total + oracles.mean(oracle(scores, *oracles.masks(own, other)))
    return total

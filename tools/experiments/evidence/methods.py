"""What is compared: a row each, as changes of a shipped configuration, and the learning rates to choose of."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from global_miniatures.store import Run

from aurank.losses import LOSSES


@dataclass(frozen=True)
class Method:
    """A loss by its family, and what a configuration changes for it."""

    title: str
    family: str
    changes: tuple[str, ...]


@dataclass(frozen=True)
class Experiment:
    """A shipped configuration that every method is tried in, and how much is run."""

    title: str
    config: str
    rates: tuple[float, ...]
    seeds: int
    choosing: int  # how many seeds choose the learning rate; 0 where there is but one
    features: str | None  # file of the published network's embeddings, which heads are trained on
    held_out: tuple[str, ...] = ()  # changes in runs that choose the rate alone; without, these count as others do
    weights: bool = False  # whether the network itself is trained, from a file of weights


@dataclass(frozen=True)
class Features:
    """What the published network makes of which images, at how many pixels."""

    size: int
    images: tuple[str, ...]


FEATURES = {
    "grocery_lite0_128.npz": Features(
        128,
        (
            "lists:grocery_128.zip",
            "data.params.train=grocery/derived_disjoint_train.txt",
            "data.params.test=grocery/derived_disjoint_test.txt",
            "data.params.images=grocery/images",
        ),
    ),
    "omniglot_lite0_64.npz": Features(64, ("omniglot:", "data.params.path=omniglot_full.zip")),
}
_GROCERY, _OMNIGLOT = FEATURES
_HEAD = partial(Experiment, rates=(3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2), seeds=10, choosing=2)
EXPERIMENTS = {
    "grocery": _HEAD("grocery: linear heads on saved features", "grocery/head", features=_GROCERY),
    "omniglot": _HEAD("omniglot: linear heads on saved features", "omniglot/head", features=_OMNIGLOT),
    "grocery_tuned": Experiment(
        "grocery: the network fine-tuned",
        "grocery/finetuned",
        rates=(1e-4, 3e-4, 1e-3),
        seeds=3,
        choosing=2,
        features=_GROCERY,
        held_out=("data.validation_fraction=0.4", "data.validation_by=super_category"),
        weights=True,
    ),
    "omniglot_random": Experiment(
        "omniglot: 32 pixels, from random weights",
        "omniglot/soprc",
        rates=(1e-3, 3e-3, 1e-2),
        seeds=3,
        choosing=1,
        features=None,
    ),
}


def _loss(title: str, family: str, name: str, *changes: str) -> Method:
    return Method(title, family, (f"loss.name={name}", *(f"loss.params.{change}" for change in changes)))


_NEUCLIP = ("num_prototypes=1024", "restart_every=50", "inner_lr=0.01", "two_way=false", "learn_temperature=false")
_FASTER = "loss.lr_multiplier=100"  # of the proxies, as their papers' repositories have it
_ALL = {
    "soprc": _loss("SOPRC", "ranking", "soprc"),
    "smooth_ap": _loss("SmoothAP", "ranking", "smooth_ap"),
    "sup_ap": _loss("SupAP", "ranking", "sup_ap"),
    "listwise_ap": _loss("list-wise AP", "ranking", "listwise_ap"),
    "fast_ap": _loss("FastAP", "ranking", "fast_ap"),
    "blackbox_ap": _loss("BlackBox AP", "ranking", "blackbox_ap"),
    "recall_at_k": _loss("Recall@k surrogate", "ranking", "recall_at_k"),
    "sup_recall": _loss("SupRecall", "ranking", "sup_recall"),
    "auroc": _loss("AUROC", "ranking", "auroc"),
    "pnp": _loss("PNP", "ranking", "pnp"),
    "contrastive": _loss("Contrastive", "pair", "contrastive"),
    "triplet": _loss("Triplet", "pair", "triplet"),
    "multi_similarity": _loss("Multi-Similarity", "pair", "multi_similarity"),
    "circle": _loss("Circle", "pair", "circle"),
    "xbm": Method(
        "Contrastive, XBM",
        "pair",
        ("loss.name=contrastive", "loss.params.reduction=batch", "memory.size=2048", "memory.start_at=75"),
    ),
    "sup_con": _loss("SupCon", "pair", "sup_con", "temperature=0.1"),
    "dcl": _loss("DCL", "pair", "dcl", "temperature=0.1"),
    "proxy_anchor": Method("ProxyAnchor", "proxy", ("loss.name=proxy_anchor", _FASTER)),
    "proxy_nca": Method("ProxyNCA++", "proxy", ("loss.name=proxy_nca", _FASTER)),
    "soft_triple": Method("SoftTriple", "proxy", ("loss.name=soft_triple", _FASTER)),
    "normalized_softmax": _loss("NormalizedSoftmax", "proxy", "normalized_softmax"),
    "arcface": _loss("ArcFace", "margin", "arcface"),
    "subcenter_arcface": _loss("sub-center ArcFace", "margin", "subcenter_arcface"),
    "cosface": _loss("CosFace", "margin", "cosface"),
    "sogclr": _loss("SogCLR", "global", "sogclr", "temperature=0.1", "gamma=0.9"),
    "isogclr": _loss("iSogCLR", "global", "isogclr", "temperature=0.1", "rho=2.0", "gamma=0.9"),
    "emc2": _loss("EMC²", "global", "emc2", "temperature=0.1"),
    "neuclip": _loss("NeuCLIP", "global", "neuclip", "temperature=0.1", *_NEUCLIP),
}
METHODS = {name: one for name, one in _ALL.items() if one.changes[0].removeprefix("loss.name=") in LOSSES}
"""Those whose loss there is."""


def training_run(experiment: str, name: str, rate: float, seed: int, *further: str) -> Run:
    """A training by a method at a learning rate, and with further changes."""
    config, changes = EXPERIMENTS[experiment].config, METHODS[name].changes
    settings = {"config": config, "overrides": [*changes, f"optim.lr={rate:g}", *further], "lr": rate}
    return Run(experiment, name, settings | ({"changed": " ".join(further)} if further else {}), seed)


def grid(experiment: str, name: str, *, rates: Sequence[float], choosing: int) -> Iterator[Run]:
    """The runs that choose the learning rate, on validation classes."""
    for seed in range(choosing):
        for rate in rates:
            yield training_run(experiment, name, rate, seed, *EXPERIMENTS[experiment].held_out)

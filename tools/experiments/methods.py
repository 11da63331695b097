"""What the experiments compare: methods as changes of a shipped configuration, with learning rates to choose from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from experiments.runs import Run


@dataclass(frozen=True)
class Method:
    """A row of a table; without rates of its own it has those of the experiment."""

    title: str
    family: str
    changes: tuple[str, ...]
    rates: tuple[float, ...] | None = None


def _loss(title: str, family: str, name: str, *changes: str) -> Method:
    return Method(title, family, (f"loss.name={name}", *(f"loss.params.{change}" for change in changes)))


_NEUCLIP = ("num_prototypes=1024", "restart_every=50", "inner_lr=0.01", "two_way=false", "learn_temperature=false")
_FASTER = "loss.lr_multiplier=100"  # of the proxies, as their papers' repositories have it
_XBM = ("loss.name=contrastive", "loss.params.reduction=batch")
METHODS = {
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
    "xbm": Method("Contrastive, XBM", "pair", (*_XBM, "memory.size=2048", "memory.start_at=75")),
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


def _steps(steps: int, *changes: str) -> tuple[str, ...]:
    budget = [f"train.{key}={steps}" for key in ("steps", "validate_every", "checkpoint_every")]
    return (*changes, *budget, f"optim.warmup_steps={steps // 20}")


def _ablation(title: str, *changes: str) -> Method:
    return Method(title, "ablation", (*changes, "optim.name=sgd"), rates=(1.0, 0.3))


_NO_AVERAGE = ("loss.params.moving_average=false", "loss.params.semi_variance=null")
_TABLE_1 = (
    *("soprc", "smooth_ap", "contrastive", "triplet", "multi_similarity", "xbm", "listwise_ap", "fast_ap", "auroc"),
    *("blackbox_ap", "recall_at_k"),
)
# Tables 1 and 2 and Fig. 2 of the SOPRC paper in miniature.
TABLE_1 = {name: METHODS[name] for name in _TABLE_1} | {
    "xbm": replace(METHODS["xbm"], changes=(*_XBM, "memory.size=8192", "memory.start_at=50"))
}
ABLATION = {
    "soprc": replace(METHODS["soprc"], title="SOPRC, batch 112, AdamW"),
    "ablation_1": _ablation("SOPRC by SGD: none", "loss.params.prior=batch", *_NO_AVERAGE),
    "ablation_2": _ablation("SOPRC by SGD: prior", *_NO_AVERAGE),
    "ablation_2_frequency": _ablation("SOPRC by SGD: class frequency", "loss.params.prior=frequency", *_NO_AVERAGE),
    "ablation_3": _ablation("SOPRC by SGD: prior, v", "loss.params.semi_variance=null"),
    "ablation_4": _ablation("SOPRC by SGD: prior, v, semi-variance"),
    "batch_56": Method("SOPRC, batch 56, as many steps", "batch", ("sampler.batch=56",)),
    "batch_56_images": Method("SOPRC, batch 56, as many images", "batch", _steps(400, "sampler.batch=56")),
    "batch_224": Method("SOPRC, batch 224, as many steps", "batch", ("sampler.batch=224",)),
    "batch_224_images": Method("SOPRC, batch 224, as many images", "batch", _steps(100, "sampler.batch=224")),
}


@dataclass(frozen=True)
class Experiment:
    """A shipped configuration that every method is tried in, and how much is run.

    `choosing` seeds choose the learning rate, of `held_out` classes if given; `features` are those that heads are
    trained on; `weights`: the network itself is trained, from a file of weights.
    """

    title: str
    config: str
    rates: tuple[float, ...]
    seeds: int
    choosing: int
    features: str | None = None
    held_out: tuple[str, ...] = ()
    weights: bool = False
    changes: tuple[str, ...] = ()
    methods: Mapping[str, Method] = field(default_factory=lambda: METHODS)


@dataclass(frozen=True)
class Features:
    """What the published network makes of which images, at how many pixels."""

    size: int
    images: tuple[str, ...]


FEATURES = {
    "grocery_lite0_128.npz": Features(128, ("grocery:",)),
    "omniglot_lite0_64.npz": Features(64, ("omniglot:", "data.params.path=omniglot_full.zip")),
}
_GROCERY, _OMNIGLOT = FEATURES
_HEAD = partial(Experiment, rates=(3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2), seeds=10, choosing=2)
_SHORT = partial(Experiment, config="omniglot/soprc", rates=(1e-3, 3e-4), seeds=3, choosing=1, changes=_steps(200))
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
        "omniglot: 32 pixels, from random weights", "omniglot/soprc", rates=(1e-3, 3e-3, 1e-2), seeds=3, choosing=1
    ),
    "omniglot_200": _SHORT("omniglot: 32 pixels, from random weights, 200 steps", methods=TABLE_1),
    "soprc_parts": _SHORT("SOPRC on omniglot, 200 steps: its parts, and the batch", methods=ABLATION),
}


def training_run(experiment: str, name: str, rate: float, seed: int, *further: str) -> Run:
    """A training by a method at a learning rate, and with further changes."""
    about = EXPERIMENTS[experiment]
    overrides = [*about.changes, *about.methods[name].changes, f"optim.lr={rate:g}", *further]
    settings = {"config": about.config, "overrides": overrides, "lr": rate}
    return Run(experiment, name, settings | ({"changed": " ".join(further)} if further else {}), seed)


def grid(experiment: str, name: str, *, rates: Sequence[float], choosing: int) -> Iterator[Run]:
    """The runs that choose the learning rate, on validation classes."""
    for seed in range(choosing):
        for rate in rates:
            yield training_run(experiment, name, rate, seed, *EXPERIMENTS[experiment].held_out)

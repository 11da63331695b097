"""What the training miniature compares: a row of a table each, as a shipped configuration and what is changed in it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

ADAM = (1e-3, 3e-4)
SGD = (1.0, 0.3)
STEPS = 200
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Method:
    """A shipped configuration, dotted changes of it, and the learning rates of which validation chooses one."""

    title: str
    config: str
    changes: tuple[str, ...] = ()
    rates: tuple[float, float] = ADAM
    step_factor: float = 1.0  # times the steps of the others, where images and not steps are to be equal

    def overrides(self, *, rate: float, seed: int, steps: int) -> list[str]:
        """All that a run changes in the configuration; two runs with the same list are the same run."""
        steps = round(steps * self.step_factor)
        budget = [f"train.{key}={steps}" for key in ("steps", "validate_every", "checkpoint_every")]
        return [*self.changes, *budget, f"optim.warmup_steps={steps // 20}", f"optim.lr={rate:g}", f"seed={seed}"]


def _loss(title: str, name: str, *changes: str) -> Method:
    return Method(title, "omniglot/soprc", (f"loss.name={name}", *changes))


# The memory joins after a quarter of the steps.
_XBM = ("loss.params.reduction=batch", "memory.size=8192", "memory.start_at=50")

TABLE_1 = {
    "contrastive": _loss("Contrastive", "contrastive"),
    "triplet": _loss("Triplet", "triplet"),
    "multi_similarity": _loss("Multi-Similarity", "multi_similarity"),
    "xbm": _loss("XBM", "contrastive", *_XBM),
    "smooth_ap": Method("SmoothAP", "omniglot/smooth_ap"),
    "listwise_ap": _loss("DIR (list-wise AP)", "listwise_ap"),
    "fast_ap": _loss("FastAP", "fast_ap"),
    "auroc": _loss("AUROC", "auroc"),
    "blackbox_ap": _loss("BlackBox", "blackbox_ap"),
    "recall_at_k": _loss("Recall@k surrogate (not in the paper's table)", "recall_at_k"),
    "soprc": Method("SOPRC", "omniglot/soprc"),
}


def _ablation(title: str, *changes: str) -> Method:
    return Method(title, "omniglot/soprc", (*changes, "optim.name=sgd"), rates=SGD)


_NO_AVERAGE = ("loss.params.moving_average=false", "loss.params.semi_variance=null")

TABLE_2 = {
    "ablation_1": _ablation("1: none", "loss.params.prior=batch", *_NO_AVERAGE),
    "ablation_2": _ablation("2: prior", *_NO_AVERAGE),
    "ablation_2_frequency": _ablation("2′: true class frequency", "loss.params.prior=frequency", *_NO_AVERAGE),
    "ablation_3": _ablation("3: prior, v", "loss.params.semi_variance=null"),
    "ablation_4": _ablation("4: prior, v, semi-variance"),
    "soprc": replace(TABLE_1["soprc"], title="5: the same, AdamW"),
}

BATCHES = {
    "batch_56": Method("56, as many steps", "omniglot/soprc", ("sampler.batch=56",)),
    "batch_56_images": Method("56, as many images", "omniglot/soprc", ("sampler.batch=56",), step_factor=2),
    "soprc": replace(TABLE_1["soprc"], title="112"),
    "batch_224": Method("224, as many steps", "omniglot/soprc", ("sampler.batch=224",)),
    "batch_224_images": Method("224, as many images", "omniglot/soprc", ("sampler.batch=224",), step_factor=0.5),
}

METHODS = TABLE_2 | BATCHES | TABLE_1


@dataclass(frozen=True)
class Run:
    """One training."""

    method: str
    rate: float
    seed: int
    steps: int

    @property
    def overrides(self) -> list[str]:
        """Its changes of the configuration."""
        return METHODS[self.method].overrides(rate=self.rate, seed=self.seed, steps=self.steps)


def grid(name: str, *, seeds: Sequence[int], steps: int) -> list[Run]:
    """The runs of the first seed, among which validation chooses the learning rate."""
    return [Run(name, rate, seeds[0], steps) for rate in METHODS[name].rates]

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


TABLE_1 = {
    name: Method(title, f"omniglot/{name}")
    for name, title in {
        "contrastive": "Contrastive",
        "triplet": "Triplet",
        "multi_similarity": "Multi-Similarity",
        "xbm": "XBM",
        "smooth_ap": "SmoothAP",
        "listwise_ap": "DIR (list-wise AP)",
        "fast_ap": "FastAP",
        "auroc": "AUROC",
        "blackbox_ap": "BlackBox",
        "recall_at_k": "Recall@k surrogate (not in the paper's table)",
        "soprc": "SOPRC",
    }.items()
}

# The memory joins after a quarter of the steps; in the shipped configuration, which is longer, after a sixth.
TABLE_1["xbm"] = replace(TABLE_1["xbm"], changes=("memory.start_at=50",))

TABLE_2 = {
    "ablation_1": Method("1: none", "omniglot/ablation_1", rates=SGD),
    "ablation_2": Method("2: prior", "omniglot/ablation_2", rates=SGD),
    "ablation_2_frequency": Method(
        "2′: true class frequency", "omniglot/ablation_2", ("loss.params.prior=frequency",), rates=SGD
    ),
    "ablation_3": Method("3: prior, v", "omniglot/ablation_3", rates=SGD),
    "ablation_4": Method("4: prior, v, semi-variance", "omniglot/ablation_4", rates=SGD),
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

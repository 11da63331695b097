"""A run small enough for tests: digits at 16 pixels, eight steps of a network of 0.4 million weights."""

from typing import Any

STEPS = 8


SUM: list[dict[str, Any]] = [
    {"name": "soprc", "matryoshka": [4, 8], "matryoshka_weights": [0.5, 1.0]},
    {"name": "proxy_anchor", "weight": 0.1, "lr_multiplier": 100.0, "weight_decay": 0.01},
    {"name": "multi_similarity", "weight": 0.3, "miner": {"name": "multi_similarity"}},
]


def tiny_config(loss: Any = "soprc", **sections: dict[str, Any]) -> dict[str, Any]:
    """A plain configuration; ``sections`` override single keys, ``tiny_config(train={"steps": 4})``.

    ``loss``: its name, or a list of terms such as ``SUM``.
    """
    config: dict[str, Any] = {
        "seed": 3,
        "data": {
            "name": "digits",
            "image_size": 16,
            "channels": 1,
            "validation_fraction": 0.2,
            "train_transform": {"name": "affine", "params": {"fill": 0}},
            "test_transform": {"name": "resize"},
        },
        "sampler": {"name": "pk", "batch": 16, "params": {"per_class": 4}},
        "model": {"backbone": "test_resnet", "pretrained": False, "dim": 8, "params": {"drop_rate": 0.1}},
        "loss": {"name": loss} if isinstance(loss, str) else loss,
        "optim": {"name": "adamw", "lr": 1e-3, "schedule": {"name": "cosine"}, "warmup_steps": 2},
        "train": {"steps": STEPS, "validate_every": 4, "checkpoint_every": 3, "log_every": 1},
        "evaluate": {"recall_at": [1, 10]},
    }
    for name, values in sections.items():
        config[name] = {**config.get(name, {}), **values}
    return config

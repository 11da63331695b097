"""Training from a configuration, and loading what was trained."""

from typing import TYPE_CHECKING

from aurank.lazy import lazy_attributes

if TYPE_CHECKING:
    from aurank.embedding.stored.trained_model import load, load_pairs
    from aurank.training.components import read_config
    from aurank.training.dry_run import rehearse
    from aurank.training.gradient_cache import GradientCache
    from aurank.training.profile import TrainingProfile, profile_training
    from aurank.training.run import TrainResult, train

__all__ = [
    "GradientCache",
    "TrainResult",
    "TrainingProfile",
    "load",
    "load_pairs",
    "profile_training",
    "read_config",
    "rehearse",
    "train",
]

if not TYPE_CHECKING:  # reading a configuration needs neither accelerate nor matplotlib
    _HOMES = {
        "GradientCache": "gradient_cache:GradientCache",
        "TrainingProfile": "profile:TrainingProfile",
        "TrainResult": "run:TrainResult",
        "load": ".embedding.stored.trained_model:load",
        "load_pairs": ".embedding.stored.trained_model:load_pairs",
        "profile_training": "profile:profile_training",
        "read_config": "components:read_config",
        "rehearse": "dry_run:rehearse",
        "train": "run:train",
    }
    __getattr__, __dir__ = lazy_attributes("aurank.training", _HOMES)

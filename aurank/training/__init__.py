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
else:
    __getattr__, __dir__ = lazy_attributes(__name__)

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

"""Training from a configuration, and loading what was trained."""

from aurank.embedding.trained_model import load, load_pairs
from aurank.training.components import read_config
from aurank.training.dry_run import rehearse
from aurank.training.gradient_cache import GradientCache
from aurank.training.run import TrainResult, train

__all__ = [
    "GradientCache",
    "TrainResult",
    "load",
    "load_pairs",
    "read_config",
    "rehearse",
    "train",
]

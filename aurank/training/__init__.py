"""Training from a configuration, and loading what was trained."""

from aurank.training.build import asks_about_classes, build_manifest
from aurank.training.components import read_config
from aurank.training.dry_run import rehearse
from aurank.training.gradient_cache import GradientCache
from aurank.training.run import TrainResult, load, train
from aurank.training.towers import load_pairs

__all__ = [
    "GradientCache",
    "TrainResult",
    "asks_about_classes",
    "build_manifest",
    "load",
    "load_pairs",
    "read_config",
    "rehearse",
    "train",
]

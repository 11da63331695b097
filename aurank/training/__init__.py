"""Training from a configuration, and applying what was trained."""

from aurank.training.apply import Running, embed_model, evaluate_model
from aurank.training.apply_pairs import PairsResult, evaluate_pairs
from aurank.training.baselines import demo, measure_baselines, require_images
from aurank.training.build import asks_about_classes, build_manifest
from aurank.training.components import read_config
from aurank.training.dry_run import rehearse
from aurank.training.gradient_cache import GradientCache
from aurank.training.pairs import describe_groups
from aurank.training.probing import probe_model
from aurank.training.run import TrainResult, load, train
from aurank.training.selecting import Images, read_data
from aurank.training.towers import load_pairs

__all__ = [
    "GradientCache",
    "Images",
    "PairsResult",
    "Running",
    "TrainResult",
    "asks_about_classes",
    "build_manifest",
    "demo",
    "describe_groups",
    "embed_model",
    "evaluate_model",
    "evaluate_pairs",
    "load",
    "load_pairs",
    "measure_baselines",
    "probe_model",
    "read_config",
    "read_data",
    "rehearse",
    "require_images",
    "train",
]

"""Training from a configuration, and applying what was trained."""

from aurank.training.apply import Running, embed_model, evaluate_model
from aurank.training.baselines import demo
from aurank.training.build import build_manifest
from aurank.training.components import read_config
from aurank.training.dry_run import rehearse
from aurank.training.gradient_cache import GradientCache
from aurank.training.probing import probe_model
from aurank.training.run import TrainResult, load, train
from aurank.training.selecting import Images

__all__ = [
    "GradientCache",
    "Images",
    "Running",
    "TrainResult",
    "build_manifest",
    "demo",
    "embed_model",
    "evaluate_model",
    "load",
    "probe_model",
    "read_config",
    "rehearse",
    "train",
]

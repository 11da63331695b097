"""What the commands of aurank do, one file a command, to be called from Python too."""

from aurank.commands.demo import demo, measure_baselines, require_images
from aurank.commands.evaluate import Running, embed_model, evaluate_model
from aurank.commands.pairs import PairsResult, evaluate_pairs
from aurank.commands.probe import probe_model

__all__ = [
    "PairsResult",
    "Running",
    "demo",
    "embed_model",
    "evaluate_model",
    "evaluate_pairs",
    "measure_baselines",
    "probe_model",
    "require_images",
]

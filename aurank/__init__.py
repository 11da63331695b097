"""aurank: train image-retrieval embeddings for average precision, and measure any embedding exactly."""

from typing import TYPE_CHECKING

from aurank.lazy import lazy_attributes

if TYPE_CHECKING:
    from aurank.commands import average_models
    from aurank.embedding import load, load_pairs
    from aurank.evaluation import Report, compare, evaluate
    from aurank.training import TrainResult, train

__version__ = "0.1.0"
__all__ = ["Report", "TrainResult", "average_models", "compare", "evaluate", "load", "load_pairs", "train"]

if not TYPE_CHECKING:  # `aurank ls` and `import aurank.losses` need neither timm nor accelerate
    _HOMES = {name: f"evaluation:{name}" for name in ("Report", "compare", "evaluate")}
    _HOMES |= {name: f"training:{name}" for name in ("TrainResult", "train")}
    _HOMES |= {name: f"embedding:{name}" for name in ("load", "load_pairs")}
    _HOMES["average_models"] = "commands:average_models"
    __getattr__, __dir__ = lazy_attributes("aurank", _HOMES)

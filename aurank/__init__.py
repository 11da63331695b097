"""aurank: train image-retrieval embeddings for average precision, and measure any embedding exactly."""

import logging
from typing import TYPE_CHECKING

from aurank.lazy import lazy_attributes

if TYPE_CHECKING:
    from aurank.commands import average_models
    from aurank.embedding import load, load_pairs
    from aurank.evaluation import Report, compare, evaluate
    from aurank.training import TrainResult, train
else:  # `aurank ls` and `import aurank.losses` need neither timm nor accelerate
    __getattr__, __dir__ = lazy_attributes(__name__)

__version__ = "0.1.0"
__all__ = ["Report", "TrainResult", "average_models", "compare", "evaluate", "load", "load_pairs", "train"]

logging.getLogger("aurank").addHandler(logging.NullHandler())  # silent until somebody asks, as libraries are

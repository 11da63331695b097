"""aurank: train image-retrieval embeddings for average precision, and measure any embedding exactly."""

import logging
from typing import TYPE_CHECKING

from aurank.lazy import lazy_names

__version__ = "0.1.0"

if TYPE_CHECKING:
    from aurank.commands import average_models as average_models
    from aurank.embedding import load as load
    from aurank.embedding import load_pairs as load_pairs
    from aurank.evaluation import Report as Report
    from aurank.evaluation import compare as compare
    from aurank.evaluation import evaluate as evaluate
    from aurank.models import explain as explain
    from aurank.training import TrainResult as TrainResult
    from aurank.training import train as train
else:  # `aurank ls` and `import aurank.losses` need neither timm nor accelerate
    NAMES = {
        "commands": ["average_models"],
        "embedding": ["load", "load_pairs"],
        "evaluation": ["Report", "compare", "evaluate"],
        "models": ["explain"],
        "training": ["TrainResult", "train"],
    }
    __getattr__, __dir__, __all__ = lazy_names(__name__, NAMES)

logging.getLogger("aurank").addHandler(logging.NullHandler())  # silent until somebody asks, as libraries are

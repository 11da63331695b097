"""aurank: train image-retrieval embeddings for average precision, and measure any embedding exactly."""

import importlib
import os
from typing import TYPE_CHECKING, Any

# albumentations asks the network for its newest version when it is imported.
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")

if TYPE_CHECKING:
    from aurank.evaluation import Report, compare, evaluate
    from aurank.training import TrainResult, load, load_pairs, train

__version__ = "0.1.0"
__all__ = ["Report", "TrainResult", "compare", "evaluate", "load", "load_pairs", "train"]

_HOMES = {
    "Report": "aurank.evaluation",
    "compare": "aurank.evaluation",
    "evaluate": "aurank.evaluation",
    "TrainResult": "aurank.training",
    "load": "aurank.training",
    "load_pairs": "aurank.training",
    "train": "aurank.training",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    # Imported on first use: `aurank ls` and `import aurank.losses` need neither timm nor accelerate.
    if name not in _HOMES:
        raise AttributeError(f"module 'aurank' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)

"""Models that turn images, and texts, into embeddings."""

from typing import TYPE_CHECKING

from aurank.lazy import lazy_names

if TYPE_CHECKING:  # the names of these files
    from aurank.models.encoder import *
    from aurank.models.explanation import *
    from aurank.models.image_model import *
    from aurank.models.text_encoder import *
else:
    NAMES = {
        "encoder": ["Encoder", "GeneralisedMean", "POOLINGS"],
        "explanation": ["Explanation", "explain"],
        "image_model": ["ImageModel"],
        "text_encoder": ["TextTower", "TwoTower"],
    }
    __getattr__, __dir__, __all__ = lazy_names(__name__, NAMES)

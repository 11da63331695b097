"""Models that turn images, and texts, into embeddings."""

from typing import TYPE_CHECKING

from aurank.lazy import lazy_attributes

if TYPE_CHECKING:
    from aurank.models.encoder import POOLINGS, Encoder, GeneralisedMean
    from aurank.models.image_model import ImageModel
    from aurank.models.text_encoder import TextTower, TwoTower
else:
    __getattr__, __dir__ = lazy_attributes(__name__)

__all__ = ["POOLINGS", "Encoder", "GeneralisedMean", "ImageModel", "TextTower", "TwoTower"]

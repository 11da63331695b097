"""Models that turn images, and texts, into embeddings."""

from aurank.models.encoder import POOLINGS, Encoder, GeneralisedMean
from aurank.models.text_encoder import TextTower, TwoTower

__all__ = ["POOLINGS", "Encoder", "GeneralisedMean", "TextTower", "TwoTower"]

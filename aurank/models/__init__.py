"""Models that turn images, and texts, into embeddings."""

from aurank.models.encoder import POOLINGS, EachSize, Encoder, GeneralisedMean, Pooling, parameter_groups
from aurank.models.text_encoder import EachSide, ProjectedText, TextTower, TwoTower

__all__ = [
    "POOLINGS",
    "EachSide",
    "EachSize",
    "Encoder",
    "GeneralisedMean",
    "Pooling",
    "ProjectedText",
    "TextTower",
    "TwoTower",
    "parameter_groups",
]

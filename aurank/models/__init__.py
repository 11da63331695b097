"""Models that turn images into embeddings."""

from aurank.models.encoder import POOLINGS, EachSize, Encoder, GeneralisedMean, Pooling, parameter_groups
from aurank.models.lars import Lars

__all__ = ["POOLINGS", "EachSize", "Encoder", "GeneralisedMean", "Lars", "Pooling", "parameter_groups"]

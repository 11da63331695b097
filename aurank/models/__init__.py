"""Models that turn images into embeddings."""

from aurank.models.encoder import POOLINGS, Encoder, GeneralisedMean, Pooling, parameter_groups

__all__ = ["POOLINGS", "Encoder", "GeneralisedMean", "Pooling", "parameter_groups"]

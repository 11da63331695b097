"""Which images make each batch; SAMPLERS names all samplers."""

from aurank.data.samplers._base import Sampler
from aurank.data.samplers.hard_negative import HardNegativeSampler
from aurank.data.samplers.hierarchical import HierarchicalSampler
from aurank.data.samplers.pk import PKSampler
from aurank.data.samplers.shuffled import ShuffledSampler

SAMPLERS: dict[str, type[Sampler]] = {
    "pk": PKSampler,
    "hard_negative": HardNegativeSampler,
    "hierarchical": HierarchicalSampler,
    "shuffled": ShuffledSampler,
}

__all__ = ["SAMPLERS", "HardNegativeSampler", "HierarchicalSampler", "PKSampler", "Sampler", "ShuffledSampler"]

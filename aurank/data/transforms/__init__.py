"""What is done to images before a model sees them; TRANSFORMS names all transforms."""

from aurank.data.transforms.base import Pipeline
from aurank.data.transforms.standard import TEST_TRANSFORMS, TRANSFORMS

__all__ = ["TEST_TRANSFORMS", "TRANSFORMS", "Pipeline"]

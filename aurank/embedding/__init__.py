"""Images and a model to embeddings: which images, embedded how, kept where."""

from typing import TYPE_CHECKING

from aurank.lazy import lazy_attributes

if TYPE_CHECKING:
    from aurank.embedding.named import ImageSelection
    from aurank.embedding.select_images import read_manifest
    from aurank.embedding.stored.trained_model import load, load_pairs
else:
    __getattr__, __dir__ = lazy_attributes(__name__)

__all__ = ["ImageSelection", "load", "load_pairs", "read_manifest"]

"""Images and a model to embeddings: which images, embedded how, kept where."""

from typing import TYPE_CHECKING

from aurank.lazy import lazy_attributes

if TYPE_CHECKING:
    from aurank.embedding.select_images import ImageSelection, read_manifest
    from aurank.embedding.stored.trained_model import load, load_pairs

__all__ = ["ImageSelection", "load", "load_pairs", "read_manifest"]

if not TYPE_CHECKING:  # reading a configuration needs no model
    _HOMES = {
        "ImageSelection": "select_images:ImageSelection",
        "load": "stored.trained_model:load",
        "load_pairs": "stored.trained_model:load_pairs",
        "read_manifest": "select_images:read_manifest",
    }
    __getattr__, __dir__ = lazy_attributes("aurank.embedding", _HOMES)

"""Images and a model to embeddings: which images, embedded how, kept where."""

from typing import TYPE_CHECKING

from aurank.lazy import lazy_attributes

if TYPE_CHECKING:
    from aurank.embedding.image_text_pairs import describe_groups
    from aurank.embedding.read_manifest import read_manifest
    from aurank.embedding.select_images import ImageSelection, read_data
    from aurank.embedding.trained_model import load, load_pairs

__all__ = ["ImageSelection", "describe_groups", "load", "load_pairs", "read_data", "read_manifest"]

if not TYPE_CHECKING:  # reading a configuration needs no model
    _HOMES = {
        "ImageSelection": "select_images:ImageSelection",
        "describe_groups": "image_text_pairs:describe_groups",
        "load": "trained_model:load",
        "load_pairs": "trained_model:load_pairs",
        "read_data": "select_images:read_data",
        "read_manifest": "read_manifest:read_manifest",
    }
    __getattr__, __dir__ = lazy_attributes("aurank.embedding", _HOMES)

"""Images and a model to embeddings: which images, embedded how, kept where."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aurank.embedding.image_text_pairs import describe_groups
    from aurank.embedding.select_images import Images, read_data

__all__ = ["Images", "describe_groups", "read_data"]


def __getattr__(name: str) -> Any:
    homes = {"Images": "select_images", "describe_groups": "image_text_pairs", "read_data": "select_images"}
    if name not in homes:
        raise AttributeError(f"module 'aurank.embedding' has no attribute {name!r}")
    return getattr(importlib.import_module(f"aurank.embedding.{homes[name]}"), name)

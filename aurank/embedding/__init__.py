"""Images and a model to embeddings: which images, embedded how, kept where."""

from typing import TYPE_CHECKING

from aurank.lazy import lazy_names

if TYPE_CHECKING:  # the names of these files
    from aurank.embedding.image_selection import *
    from aurank.embedding.select_images import *
    from aurank.embedding.stored.trained_model import *
else:
    NAMES = {
        "image_selection": ["ImageSelection"],
        "select_images": ["read_manifest"],
        "stored.trained_model": ["load", "load_pairs"],
    }
    __getattr__, __dir__, __all__ = lazy_names(__name__, NAMES)

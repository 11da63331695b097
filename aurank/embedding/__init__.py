"""Images and a model to embeddings: which images, embedded how, kept where."""

from aurank.embedding.image_text_pairs import describe_groups
from aurank.embedding.select_images import Images, read_data

__all__ = ["Images", "describe_groups", "read_data"]

"""Commands on a gallery: building its index, searching it, the post-processing of its embeddings."""

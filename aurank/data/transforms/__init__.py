"""Decoded pixels to the tensor that a model sees."""

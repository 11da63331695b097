"""Images decoded and resized once, and read again and again: the store, and writing it."""

from aurank.data.prepared.store import Preparation, PreparedImages, PreparedRows
from aurank.data.prepared.writing import PreparedResult, prepare_images

__all__ = ["Preparation", "PreparedImages", "PreparedResult", "PreparedRows", "prepare_images"]

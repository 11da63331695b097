"""Post-processing as named steps: centring, whitening, codes, expansion by neighbours, and lists in a new order."""

from aurank.evaluation.postprocessing.postprocessing import Codes, PostProcessing
from aurank.evaluation.postprocessing.search import GallerySearch, by_products, processed_gallery

__all__ = ["Codes", "GallerySearch", "PostProcessing", "by_products", "processed_gallery"]

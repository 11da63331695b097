"""Post-processing as named steps: centring, whitening, codes, expansion by neighbours, and lists in a new order."""

from aurank.evaluation.postprocessing.neighbour_steps import (
    DatabaseAugmentation,
    KReciprocal,
    QueryExpansion,
    Rescore,
    reordered_ranks,
)
from aurank.evaluation.postprocessing.postprocessing import STEPS, Codes, PostProcessing, Processed, describe_codes
from aurank.evaluation.postprocessing.search import GallerySearch, processed_gallery
from aurank.evaluation.postprocessing.steps import Binary, Centring, Float16, Int8, Truncate, Whiten

__all__ = [
    "STEPS",
    "Binary",
    "Centring",
    "Codes",
    "DatabaseAugmentation",
    "Float16",
    "GallerySearch",
    "Int8",
    "KReciprocal",
    "PostProcessing",
    "Processed",
    "QueryExpansion",
    "Rescore",
    "Truncate",
    "Whiten",
    "describe_codes",
    "processed_gallery",
    "reordered_ranks",
]

"""Post-processing as named steps: centring, whitening, codes, expansion by neighbours, and lists in a new order."""

from aurank.evaluation.postprocessing.code_table import Codes, describe_codes
from aurank.evaluation.postprocessing.expansion import DatabaseAugmentation, QueryExpansion
from aurank.evaluation.postprocessing.k_reciprocal import KReciprocal
from aurank.evaluation.postprocessing.postprocessing import STEPS, PostProcessing, Processed
from aurank.evaluation.postprocessing.reorder import Rescore, reordered_ranks
from aurank.evaluation.postprocessing.row_steps import Binary, Centring, Float16, Int8, Truncate, Whiten
from aurank.evaluation.postprocessing.search import GallerySearch, processed_gallery

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

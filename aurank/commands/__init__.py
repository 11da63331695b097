"""What the commands of aurank do, one file a command, to be called from Python too.

Whatever is wrong with their options is a UserError, before anything is embedded where that can be known.
"""

from typing import TYPE_CHECKING

from aurank.lazy import lazy_attributes

if TYPE_CHECKING:
    from aurank.commands.average import average_models
    from aurank.commands.baselines import measure_baselines
    from aurank.commands.benchmarks.benchmark import run_benchmark
    from aurank.commands.compare import compare_reports
    from aurank.commands.doctor import examine_data, examine_embeddings
    from aurank.commands.embed import embed_model, embed_to_folder
    from aurank.commands.evaluate import calibrate_model, evaluate_model, mine_model
    from aurank.commands.export import Exported, export_model
    from aurank.commands.galleries.build_index import IndexChange, add_images, build_index, remove_images
    from aurank.commands.galleries.postprocess import read_postprocessing
    from aurank.commands.galleries.search import Hit, ImageIndex, PhotoHits, search_photos
    from aurank.commands.init import write_first_configuration
    from aurank.commands.pairs import PairsResult, evaluate_pairs
    from aurank.commands.prepare import prepare_data
    from aurank.commands.probe import probe_model
    from aurank.commands.report import evaluation_page
    from aurank.commands.run_options import RunOptions
    from aurank.commands.tune import Tuned, tune
else:
    __getattr__, __dir__ = lazy_attributes(__name__)

__all__ = [
    "Exported",
    "Hit",
    "ImageIndex",
    "IndexChange",
    "PairsResult",
    "PhotoHits",
    "RunOptions",
    "Tuned",
    "add_images",
    "average_models",
    "build_index",
    "calibrate_model",
    "compare_reports",
    "embed_model",
    "embed_to_folder",
    "evaluate_model",
    "evaluate_pairs",
    "evaluation_page",
    "examine_data",
    "examine_embeddings",
    "export_model",
    "measure_baselines",
    "mine_model",
    "prepare_data",
    "probe_model",
    "read_postprocessing",
    "remove_images",
    "run_benchmark",
    "search_photos",
    "tune",
    "write_first_configuration",
]

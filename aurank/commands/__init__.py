"""What the commands of aurank do, one file a command, to be called from Python too.

Whatever is wrong with their options is a UserError, before anything is embedded where that can be known.
"""

from typing import TYPE_CHECKING

from aurank.lazy import lazy_names

if TYPE_CHECKING:  # the names of these files
    from aurank.commands.adapt import *
    from aurank.commands.average import *
    from aurank.commands.benchmarks.benchmark import *
    from aurank.commands.compare import *
    from aurank.commands.doctor import *
    from aurank.commands.embed import *
    from aurank.commands.evaluate import *
    from aurank.commands.export import *
    from aurank.commands.galleries.align import *
    from aurank.commands.galleries.build_index import *
    from aurank.commands.galleries.search import *
    from aurank.commands.init import *
    from aurank.commands.pairs import *
    from aurank.commands.prepare import *
    from aurank.commands.probe import *
    from aurank.commands.run_options import *
    from aurank.commands.tune import *
else:
    NAMES = {
        "adapt": ["adapt"],
        "average": ["average_models"],
        "benchmarks.benchmark": ["run_benchmark"],
        "compare": ["compare_reports"],
        "doctor": ["examine_data", "examine_embeddings"],
        "embed": ["embed_model", "embed_to_folder"],
        "evaluate": ["calibrate_model", "evaluate_model", "mine_model"],
        "export": ["ExportCheck", "export_model"],
        "galleries.align": ["align"],
        "galleries.build_index": ["IndexChange", "add_images", "build_index", "remove_images"],
        "galleries.search": ["Hit", "ImageIndex", "PhotoHits", "mixed_query", "search_photos"],
        "init": ["write_first_configuration"],
        "pairs": ["PairsResult", "evaluate_pairs"],
        "prepare": ["prepare_data"],
        "probe": ["probe_model"],
        "run_options": ["RunOptions"],
        "tune": ["Tuned", "tune"],
    }
    __getattr__, __dir__, __all__ = lazy_names(__name__, NAMES)

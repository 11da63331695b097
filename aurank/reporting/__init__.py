"""What people look at: the files of an evaluation, and the precision-recall picture."""

from typing import TYPE_CHECKING

from aurank.lazy import lazy_names

if TYPE_CHECKING:  # the names of these files
    from aurank.reporting.charts import *
    from aurank.reporting.results import *
else:
    NAMES = {
        "charts": ["draw_codes", "draw_curve"],
        "results": ["write_results"],
    }
    __getattr__, __dir__, __all__ = lazy_names(__name__, NAMES)

"""What people look at: the files of an evaluation, and the precision-recall picture."""

from typing import TYPE_CHECKING

from aurank.lazy import lazy_attributes

if TYPE_CHECKING:
    from aurank.reporting.charts import draw_codes, draw_curve
    from aurank.reporting.results import write_results
else:
    __getattr__, __dir__ = lazy_attributes(__name__)

__all__ = ["draw_codes", "draw_curve", "write_results"]

"""What people look at: the files of an evaluation, and the precision-recall picture."""

from aurank.reporting.charts import draw_codes, draw_curve
from aurank.reporting.results import write_results

__all__ = ["draw_codes", "draw_curve", "write_results"]

"""What people look at: the files of an evaluation, and the precision-recall picture."""

from aurank.reporting.plots import draw_curve
from aurank.reporting.results import require_free, require_same_command, save_results, write_results

__all__ = ["draw_curve", "require_free", "require_same_command", "save_results", "write_results"]

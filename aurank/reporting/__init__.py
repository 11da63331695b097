"""What people look at: the files of an evaluation, and the precision-recall picture."""

from aurank.reporting.curves import draw_curve
from aurank.reporting.results import require_free, write_results

__all__ = ["draw_curve", "require_free", "write_results"]

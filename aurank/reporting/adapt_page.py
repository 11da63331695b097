"""adapt.html: the steps of an adaptation as a ladder with intervals, their costs, and what was not tried."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes

from aurank.reporting.charts import COLOURS, plain, svg
from aurank.reporting.page import render


def adapt_page(saved: Mapping[str, Any]) -> str:
    tried = [step for step in saved["steps"] if step["folds"]]

    def draw(axes: Axes) -> None:
        for row, step in enumerate(tried):
            change, low, high = step.get("difference", (0, 0, 0))
            colour = COLOURS[2 if step["kept"] else 4]
            axes.plot([low, high], [row, row], color=colour, linewidth=2)
            axes.plot(change, row, "o", color=colour, markerfacecolor=colour if step["kept"] else "none")
        axes.axvline(0, color="#808080", linewidth=1)
        axes.set_yticks(range(len(tried)), [plain(step["name"].split(",weights=")[0]) for step in tried])
        axes.set(xlabel="mAUPRC against the best before it, held-out classes", ylim=(len(tried) - 0.5, -0.5))

    chart = svg(draw, "Difference of each step and its interval", size=(5.4, 1 + 0.36 * len(tried)))
    return render("adapt.html", **saved, tried=tried, chart=chart)

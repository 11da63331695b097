"""The demonstration on scikit-learn's digits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aurank.commands.baselines import measure_baselines
from aurank.config import shipped_configs
from aurank.files import write_text

CONFIG = "digits/soprc"


def demo(
    out: Path | str = "runs/demo", *, listener: Callable[[str, dict[str, Any]], None] | None = None
) -> tuple[dict[str, dict[str, float]], int | None]:
    """Return metrics on the test digits, untrained, of raw pixels and trained; or the signal that ended training.

    Args:
        out: folder for demo.json and the run.
    """
    from aurank.training import read_config, train

    out = Path(out)
    config = read_config(shipped_configs()[CONFIG])
    run = train(config, out / "run", resume=(out / "run").exists(), listener=listener)
    if run.report is None:
        return {}, run.stopped_by
    measured = measure_baselines(f"aurank:{out / 'run' / 'best'}", run.report)
    results = {name: measured[name] for name in ("untrained", "raw_pixels")} | {"trained": run.report.metrics}
    write_text(out / "demo.json", json.dumps(results, indent=1) + "\n")
    return results, None

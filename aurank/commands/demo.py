"""The demonstration on scikit-learn's digits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from aurank.commands.run_options import RunOptions, prepare_model
from aurank.config import shipped_configs
from aurank.embedding.build import build_encoder
from aurank.embedding.embed import embed, embed_pixels
from aurank.embedding.image_selection import ImageSelection
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
    prepared = prepare_model(f"aurank:{out / 'run' / 'best'}", ImageSelection(), RunOptions())
    device, data = prepared.run.torch_device, prepared.dataset
    torch.manual_seed(config.seed)
    untrained = build_encoder(config.model, channels=config.data.channels, load=False).to(device)
    beside = {"untrained": embed(untrained, data, device=device), "raw_pixels": embed_pixels(data)}
    options = prepared.evaluation_options(None, {"device": device})
    results = {name: dict(rows.evaluate(**options).metrics) for name, rows in beside.items()}
    results["trained"] = run.report.metrics
    write_text(out / "demo.json", json.dumps(results, indent=1) + "\n")
    return results, None

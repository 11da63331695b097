"""The demonstration on scikit-learn's digits: untrained, raw pixels and trained, side by side."""

import json
from pathlib import Path
from typing import Any

from aurank.config import shipped_configs
from aurank.errors import UserError
from aurank.evaluation.embed import embed, embed_pixels
from aurank.training.build import build_dataset, build_encoder, build_splits
from aurank.training.checkpoint import seed_everything
from aurank.training.components import read_config
from aurank.training.loop import Listener, evaluation_options
from aurank.training.run import train

CONFIG = "digits/soprc"


def demo(out: Path, *, listener: Listener | None = None) -> dict[str, dict[str, float]]:
    """Metrics of the untrained network, of the pixels themselves and of the trained network on the test digits.

    Trains the shipped configuration ``digits/soprc`` into ``out/run`` and writes ``out/demo.json``. A folder that holds
    a demo already is gone on with, so a second call only measures.
    """
    config = read_config(shipped_configs()[CONFIG])
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file; name a folder")
    splits = build_splits(config.data, seed=config.seed)
    data = build_dataset(config.data, splits.test, train=False)
    seed_everything(config.seed)
    untrained = build_encoder(config.model, channels=config.data.channels)
    results = {
        "untrained": embed(untrained, data).evaluate(**evaluation_options(config)).metrics,
        "raw_pixels": embed_pixels(data).evaluate(**evaluation_options(config)).metrics,
    }
    run = train(config, out / "run", resume=(out / "run").exists(), listener=listener)
    if run.report is None:
        return results
    results["trained"] = run.report.metrics
    _write(out / "demo.json", results)
    return results


def _write(path: Path, content: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)

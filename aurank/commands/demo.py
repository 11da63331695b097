"""What a result has to beat, and the demonstration that beats it on scikit-learn's digits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aurank.config import Config, shipped_configs
from aurank.embedding.embed import embed, embed_pixels
from aurank.embedding.evaluation_options import evaluation_options
from aurank.embedding.from_config import build_dataset, build_encoder, fill_preprocessing
from aurank.errors import UserError
from aurank.evaluation.report import Report
from aurank.files import write_text

CONFIG = "digits/soprc"


def baselines(config: Config) -> dict[str, Report]:
    """What training has to beat on the test split: the untrained network, and the pixels themselves as embeddings."""
    from aurank.training.build import build_splits
    from aurank.training.state import seed_everything

    splits = build_splits(config, texts=False)
    if splits.test is None:
        raise UserError(f"{splits.whole.name} has no test split to measure a baseline on; choose data that has one")
    config = fill_preprocessing(config)
    data = build_dataset(config.data, splits.test, train=False)
    seed_everything(config.seed)
    untrained = build_encoder(config.model, channels=config.data.channels)
    embedded = {"untrained": embed(untrained, data), "raw_pixels": embed_pixels(data)}
    return {name: rows.evaluate(**evaluation_options(config)) for name, rows in embedded.items()}


def demo(
    out: Path, *, listener: Callable[[str, dict[str, Any]], None] | None = None
) -> tuple[dict[str, dict[str, float]], int | None]:
    """Return metrics on the test digits, untrained, of raw pixels and trained; and the signal that ended training, or
    None.

    Trains ``digits/soprc`` into ``out/run``, or goes on with what is there, and writes ``out/demo.json``.
    """
    from aurank.training import read_config, train

    config = read_config(shipped_configs()[CONFIG])
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file; name a folder")
    results = {name: report.metrics for name, report in baselines(config).items()}
    run = train(config, out / "run", resume=(out / "run").exists(), listener=listener)
    if run.report is None:
        return results, run.stopped_by
    results["trained"] = run.report.metrics
    write_text(out / "demo.json", json.dumps(results, indent=1) + "\n")
    return results, None

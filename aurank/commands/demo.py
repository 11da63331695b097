"""What a result has to beat, and the demonstration that beats it on scikit-learn's digits."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from aurank.commands.evaluate import Prepared, Running, choose_device, prepare, split_name
from aurank.config import Config, shipped_configs
from aurank.embedding.embed import Embedded, embed, embed_pixels
from aurank.embedding.select_images import Images
from aurank.errors import UserError
from aurank.evaluation.report import Report
from aurank.files import write_text
from aurank.models.adapters.images import load_model
from aurank.training.build import build_dataset, build_encoder, build_splits, fill_preprocessing
from aurank.training.checkpoint import seed_everything
from aurank.training.components import read_config
from aurank.training.loop import Listener
from aurank.training.run import train
from aurank.training.tasks import evaluation_options

CONFIG = "digits/soprc"
MOST_PIXELS = 4 * 2**30  # bytes of all images as float32


def baselines(config: Config) -> dict[str, Report]:
    """What training has to beat on the test split: the untrained network, and the pixels themselves as embeddings."""
    splits = build_splits(config.data, seed=config.seed, texts=False)
    if splits.test is None:
        raise UserError(f"{splits.whole.name} has no test split to measure a baseline on; choose data that has one")
    config = fill_preprocessing(config)
    data = build_dataset(config.data, splits.test, train=False)
    seed_everything(config.seed)
    untrained = build_encoder(config.model, channels=config.data.channels)
    embedded = {"untrained": embed(untrained, data), "raw_pixels": embed_pixels(data)}
    return {name: rows.evaluate(**evaluation_options(config)) for name, rows in embedded.items()}


def require_images(model: str) -> None:
    """Nothing; UserError for saved embeddings and ranked lists: the images to measure baselines on are not at hand."""
    if model.startswith("trec:") or split_name(model)[0] == "embeddings":
        raise UserError(f"--baselines has no use with --model {model}: it needs the images; name a model, with --data")


def measure_baselines(
    model: str, report: Report, images: Images | None = None, *, running: Running | None = None, **options: Any
) -> dict[str, dict[str, float]]:
    """What a model has to beat on the images of its report, beside its own metrics.

    "untrained" is the same network from random weights (of models trained here, and of timm), "raw_pixels" the images
    as the model sees them, "chance" the expected mAUPRC of a random order. What cannot be had is left out and said.

    Args:
        model, images, running, options: as ``evaluate_model`` was given them.
    """
    images, running = images or Images(), running or Running()
    say = running.say or (lambda text: None)
    prepared, device = prepare(model, images, running), choose_device(running.device)
    protocol = images.find_protocol()
    measured = {name: value for name, value in options.items() if name not in ("resampling", "index")}
    measured = {**prepared.options, **measured, "device": device}
    if protocol is not None and "recall_at" not in options:
        measured.pop("recall_at", None)

    def metrics(embedded: Embedded) -> dict[str, float]:
        return (embedded.evaluate(**measured) if protocol is None else protocol.evaluate(embedded, **measured)).metrics

    sizes: dict[str, Any] = {"batch": prepared.batch, "workers": prepared.workers}
    found = {"model": report.metrics}
    network = _untrained(model, prepared, running)
    if network is None:
        say(f"--baselines: the untrained network of {model} cannot be had, and is left out")
    else:
        found["untrained"] = metrics(embed(network.to(device), prepared.dataset, device=device, **sizes))
    shown = prepared.dataset.__getitems__([0]).image
    size = shown.numel() * 4 * len(prepared.dataset) if isinstance(shown, Tensor) else 0
    if size > MOST_PIXELS:
        say(f"--baselines: raw pixels are left out, they would take {size / 2**30:.0f} GiB of memory")
    else:
        found["raw_pixels"] = metrics(embed_pixels(prepared.dataset, **sizes))
    found["chance"] = {"mauprc": report.random_order}
    return found


def _untrained(model: str, prepared: Prepared, running: Running) -> nn.Module | None:
    kind, what = split_name(model)
    seed_everything(prepared.config.seed)
    if kind == "aurank":
        config = prepared.config
        return build_encoder(config.model, channels=config.data.channels, load=False)
    if kind == "timm":
        options = [
            part for part in what.split(",") if not part.startswith(("pretrained=", "file=", "checkpoint_path="))
        ]
        return load_model(f"timm:{','.join(options)},pretrained=false", allow_code=running.allow_code).module
    return None


def demo(out: Path, *, listener: Listener | None = None) -> tuple[dict[str, dict[str, float]], int | None]:
    """Metrics on the test digits, untrained, of raw pixels and trained; and the signal that ended training, or None.

    Trains the shipped configuration ``digits/soprc`` into ``out/run`` and writes ``out/demo.json``. A folder that holds
    a demo already is gone on with, so a second call only measures.
    """
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

"""What a result has to beat: the untrained network, the pixels themselves, and chance."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aurank.commands.run_options import PreparedModel, RunOptions, prepare_model
from aurank.embedding.build import build_encoder
from aurank.embedding.embed import embed, embed_pixels
from aurank.embedding.embedded import Embedded
from aurank.embedding.image_selection import ImageSelection
from aurank.embedding.locations import split_name
from aurank.evaluation.report import Report
from aurank.files import write_text
from aurank.models.adapters.by_name import load_model
from aurank.reporting.results import BASELINES

MOST_PIXELS = 4 * 2**30  # bytes of all images as float32


def measure_baselines(
    model: str,
    report: Report,
    images: ImageSelection | None = None,
    *,
    out: Path | None = None,
    running: RunOptions | None = None,
    **options: Any,
) -> dict[str, dict[str, float]]:
    """Return what a model has to beat on the images of its report, beside its own metrics.

    "untrained" is the same network from random weights (of models trained here, and of timm), "raw_pixels" the images
    as the model sees them, "chance" the expected mAUPRC of a random order. What cannot be had is left out and said.

    Args:
        model, images, running, options: as ``evaluate_model`` was given them.
        out: folder to write baselines.json into.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> from aurank.commands import evaluate_model
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for colour in ("red", "green", "blue"):
        ...         Path(folder, colour).mkdir()
        ...         for name in ("first", "second"):
        ...             Image.new("RGB", (8, 8), colour).save(f"{folder}/{colour}/{name}.png")
        ...     model, images = "timm:test_vit,pretrained=false", ImageSelection(f"folder:{folder}")
        ...     report = evaluate_model(model, images)
        ...     measured = measure_baselines(model, report, images)
        >>> list(measured), measured["raw_pixels"]["mauprc"]
        (['model', 'untrained', 'raw_pixels', 'chance'], 1.0)
    """
    images, running = images or ImageSelection(), running or RunOptions()
    prepared, device = prepare_model(model, images, running), running.torch_device
    protocol, dataset = images.find_protocol(), prepared.dataset
    measured = {name: value for name, value in options.items() if name not in ("resampling", "index", "codes")}
    measured = {**prepared.evaluation_options(protocol, measured), "device": device, "distributed": False}

    def metrics(embedded: Embedded) -> dict[str, float]:
        return (embedded.evaluate(**measured) if protocol is None else protocol.evaluate(embedded, **measured)).metrics

    baselines = {"model": report.metrics}
    network = _untrained(model, prepared)
    if network is None:
        running.tell(f"--baselines: the untrained network of {model} cannot be had, and is left out")
    else:
        baselines["untrained"] = metrics(embed(network.to(device), dataset, device=device, **prepared.sizes))
    shown = dataset.__getitems__([0]).image
    size = shown.numel() * 4 * len(dataset) if isinstance(shown, Tensor) else 0
    if size > MOST_PIXELS:
        running.tell(f"--baselines: raw pixels are left out, they would take {size / 2**30:.0f} GiB of memory")
    else:
        baselines["raw_pixels"] = metrics(embed_pixels(dataset, **prepared.sizes))
    baselines["chance"] = {"mauprc": report.random_order}
    if out is not None:
        write_text(out / BASELINES, json.dumps(baselines, indent=1) + "\n")
    return baselines


def _untrained(model: str, prepared: PreparedModel) -> nn.Module | None:
    kind, name = split_name(model)
    config = prepared.model.config
    torch.manual_seed(0 if config is None else config.seed)
    if config is not None:
        plain = config.model.model_copy(update={"lora": None})  # adapters begin as nothing
        return build_encoder(plain, channels=config.data.channels, load=False)
    if kind == "timm":
        options = ",".join(part for part in name.split(",") if not part.startswith(("pretrained=", "weights=")))
        return load_model(f"timm:{options},pretrained=false", allow_code=prepared.run.allow_code).module
    return None

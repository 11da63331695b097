"""Embedding and measuring with a trained model: what ``aurank embed`` and ``aurank evaluate`` call."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from aurank.config import Config
from aurank.errors import UserError
from aurank.evaluation.embed import Embedded, embed
from aurank.evaluation.report import Report
from aurank.files import require_writable
from aurank.training.build import build_dataset, build_encoder, build_manifest, model_weights
from aurank.training.checkpoint import load_checkpoint, resolve_checkpoint
from aurank.training.components import read_config
from aurank.training.loop import evaluation_options

Counter = Callable[[int, int], None]
"""Told how many images are done and how many there are."""

Skipped = Callable[[list[str]], None]
"""Told the paths of the images that could not be read and were left out (``data.on_error=skip``), if there are any."""


def evaluate_model(
    model: str,
    out: Path,
    *,
    data: str | None = None,
    split: str | None = None,
    labels: Path | None = None,
    overrides: Sequence[str] = (),
    on_batch: Counter | None = None,
    on_skipped: Skipped | None = None,
    **options: Any,
) -> Report:
    """The exact report of a model or of saved embeddings; writes ``out/report.json``.

    Args:
        model: ``aurank:DIR/best`` or ``embeddings:FILE``.
        data: ``READER:PATH``, or None for the data the checkpoint was trained on.
        split: of that data; None for the test split.
        labels: file with the labels of saved embeddings that bring none.
        overrides: dotted changes of the ``data`` section.
        options: arguments of ``aurank.evaluate``; where absent, those of the checkpoint's configuration hold.
    """
    kind, path = _model(model)
    require_writable(out / "report.json")
    if kind == "embeddings":
        unused = {"--data": data, "--split": split, "": " ".join(overrides) or None}
        for option, value in unused.items():
            if value is not None:
                given = f"{option} {value}".strip()
                raise UserError(f"{given} has no use with --model {model}: saved embeddings bring their own labels")
        report = Embedded.load(path, labels).evaluate(**options)
    else:
        if labels is not None:
            raise UserError(f"--labels {labels} has no use with --model {model}: the labels come with its data")
        config = applied_config(load_checkpoint(resolve_checkpoint(path)), data, overrides)
        embedded = embed_model(
            model,
            data=data,
            split=split or "test",
            overrides=overrides,
            on_batch=on_batch,
            on_skipped=on_skipped,
        )
        report = embedded.evaluate(**{**evaluation_options(config), **options})
    report.save(out / "report.json")
    return report


def embed_model(
    model: str,
    *,
    data: str | None = None,
    split: str = "test",
    overrides: Sequence[str] = (),
    on_batch: Counter | None = None,
    on_skipped: Skipped | None = None,
) -> Embedded:
    """The embeddings of a split under a checkpoint's weights and evaluation transform; arguments as above."""
    kind, path = _model(model)
    if kind != "aurank":
        raise UserError(f"--model {model}: only aurank:DIR/best can embed images")
    checkpoint = load_checkpoint(resolve_checkpoint(path))
    config = applied_config(checkpoint, data, overrides)
    manifest = build_manifest(config.data, seed=config.seed).split(split)
    encoder = build_encoder(config.model, channels=config.data.channels, load=False)
    encoder.load_state_dict(model_weights(checkpoint))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = build_dataset(config.data, manifest, train=False)
    embedded = embed(
        encoder.to(device),
        dataset,
        batch=config.evaluate.batch,
        workers=config.data.workers,
        on_batch=None if on_batch is None else lambda done: on_batch(done, len(manifest)),
    )
    if on_skipped is not None and dataset.skipped:
        on_skipped(dataset.skipped)
    return embedded


def applied_config(checkpoint: dict[str, Any], data: str | None, overrides: Sequence[str]) -> Config:
    """A checkpoint's configuration with another data set and changed ``data`` settings."""
    for override in overrides:
        if not override.startswith("data."):
            raise UserError(f"{override!r}: only data.* can be changed for a trained model")
    content = dict(checkpoint["config"])
    if data is not None:
        name, _, path = data.partition(":")
        content["data"] = {**content["data"], "name": name, "params": {}}
        if path:
            # A file is named by its folder and its own name: `file` for a table, `path` for an archive of images.
            target = Path(path)
            content["data"]["root"] = str(target.parent if target.is_file() else target)
            if target.is_file():
                content["data"]["params"] = {"file" if name == "table" else "path": target.name}
    return read_config(content, overrides)


def _model(model: str) -> tuple[str, Path]:
    kind, _, path = model.partition(":")
    if kind not in ("aurank", "embeddings") or not path:
        raise UserError(f"--model {model!r}: expected aurank:DIR/best or embeddings:FILE")
    return kind, Path(path)

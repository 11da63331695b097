"""Looking at data and embeddings before they are used: what ``aurank doctor`` calls."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from aurank.commands.run_options import RunOptions, prepare_model, split_name
from aurank.config import DataConfig
from aurank.data import Manifest
from aurank.data.checks.cleaned import require_table
from aurank.data.checks.findings import DoctorReport
from aurank.embedding.embed import Embedded
from aurank.embedding.findings import EmbeddingExamination
from aurank.embedding.image_text_pairs import each_image_once
from aurank.embedding.manifest_from_config import asks_about_classes, read_manifest
from aurank.embedding.select_images import ImageSelection, read_data
from aurank.errors import UserError


def examine_data(
    data: str,
    overrides: Sequence[str] = (),
    *,
    model: str | None = None,
    table: Path | None = None,
    running: RunOptions | None = None,
) -> DoctorReport:
    """Return what is wrong with data: missing, broken, repeated or poor images, lone classes, leaks between splits.

    Args:
        data: READER:PATH, a YAML file, or the name of a shipped configuration.
        overrides: dotted changes of the data section and the seed of its splits, or of the configuration.
        model: whose embeddings are examined too, for wrong labels and more; needs READER:PATH.
        table: that the rows kept will be written to; data of which there can be none are refused at once.
        running: how the model is run.

    Example:
        >>> report = examine_data("digits:", ["data.validation_fraction=0.3", "seed=1"])
        >>> report.errors, report.counts["val images"]
        ([], 269)
    """
    section, seed = _section(data, overrides)
    examination = None
    if model is not None:
        running = running or RunOptions()
        if split_name(model)[0] == "embeddings":
            raise UserError(f"--model {model}: give saved embeddings as --embeddings FILE, without data")
        if read_data(data, [override for override in overrides if override.startswith("data.")]) is None:
            raise UserError(f"--model goes with data named as READER:PATH, such as folder:photos; got {data}")
        running.torch_device  # noqa: B018  # refused before anything is read
    manifest = read_manifest(section, seed=seed)
    if table is not None:
        require_table(manifest, table)
    train_labels = section.train_labels == "class"
    if model is not None and running is not None:
        embedded = _embedded(model, data, manifest, overrides, running)
        row_of = {path: row for row, path in reversed(list(enumerate(manifest.paths)))}
        rows = np.array([row_of[path] for path in embedded.paths.tolist()], np.int64)
        labelled = np.full(len(rows), manifest.classes != manifest.paths)
        examination = EmbeddingExamination(
            embedded, rows, labelled & (train_labels | (manifest.splits[rows] != "train"))
        )
    report = manifest.doctor(
        train_labels=train_labels,
        ask_classes=asks_about_classes(section, manifest),
        max_pixels=section.max_pixels,
        candidates=None if examination is None else examination.candidates(),
    )
    return report if examination is None else report.with_findings(examination.findings())


def examine_embeddings(path: Path, labels: Path | None = None) -> DoctorReport:
    """Return what is wrong with saved embeddings: rows of no number, collapse, hubs, wrong labels, rows nearly equal.

    Args:
        path: as ``aurank embed`` writes it, or .npy.
        labels: of an .npy.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/rows.npz", embeddings=np.eye(3)[[0, 1, 2, 0]] * [1, 1, np.nan], labels=[5, 5, 6, 6])
        ...     examine_embeddings(Path(folder, "rows.npz")).errors[0]
        'embeddings with NaN or infinity: 4 (row 0; row 1; row 2, and 1 more)'
    """
    embedded = Embedded.load(path, labels)
    if embedded.embeddings.dtype.kind != "f" or not embedded.embeddings.size:
        shape = f"{embedded.embeddings.dtype} {embedded.embeddings.shape}"
        raise UserError(f"{path}: embeddings are {shape}; expected floating-point numbers, one row an image")
    counts = {"embeddings": len(embedded.labels), "dimensions": embedded.embeddings.shape[1]}
    counts["classes"] = len(np.unique(embedded.labels))
    labelled = np.full(len(embedded.labels), counts["classes"] < len(embedded.labels))
    found = EmbeddingExamination(embedded, None, labelled).findings()
    return DoctorReport(path.name, counts, ()).with_findings(found)


def _section(data: str, overrides: Sequence[str]) -> tuple[DataConfig, int]:
    """Return the data section that applies, and the seed of its splits."""
    seeds = [override.removeprefix("seed=") for override in overrides if override.startswith("seed=")]
    section = read_data(data, [override for override in overrides if not override.startswith("seed=")])
    if section is None:  # a configuration
        from aurank.training import read_config

        settings = read_config(data, overrides)
        return settings.data, settings.seed
    if not all(seed.isdecimal() for seed in seeds):
        raise UserError(f"seed={seeds[-1]}: expected a whole number >= 0")
    return section, int(seeds[-1]) if seeds else 0


def _embedded(model: str, data: str, manifest: Manifest, overrides: Sequence[str], running: RunOptions) -> Embedded:
    """Return the embeddings of all readable images of all splits."""
    own = [override for override in overrides if override.startswith("data.")]
    split = next(iter(manifest.split_sizes))
    images = ImageSelection(data, split, overrides=[*own, "data.on_error=skip"])
    embedded, notes = prepare_model(model, images, running).embed(each_image_once(manifest))
    running.tell(*notes[1:])
    return embedded

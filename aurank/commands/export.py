"""A trained model as a file that others run, checked on real images: what ``aurank export`` calls."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from aurank.commands.galleries.postprocess import training_images
from aurank.commands.run_options import PreparedModel, RunOptions, prepare_model
from aurank.config import Config
from aurank.data import Pipeline
from aurank.embedding.build import open_prepared
from aurank.embedding.embedded import Embedded
from aurank.embedding.image_selection import ImageSelection
from aurank.embedding.locations import resolve_checkpoint
from aurank.embedding.select_images import read_manifest, require_distinct
from aurank.embedding.settings import read_trained
from aurank.embedding.stored.checkpoint import is_head, load_checkpoint
from aurank.errors import AurankError, UserError, first_line
from aurank.evaluation.postprocessing.steps import unit
from aurank.exporting.card import COLOURS, write_card
from aurank.exporting.folder import CARD, INT8, MODELS, RESULT, require_export
from aurank.exporting.formats import quantise, write_graph
from aurank.exporting.timm_folder import load_folder, pillow_interpolation, write_folder
from aurank.files import replacing_folder, write_text
from aurank.models import Encoder
from aurank.models.adapters.exported import StoredTransform, onnx_model
from aurank.models.adapters.names import is_tower
from aurank.models.adapters.towers import is_local
from aurank.models.image_model import ImageModel, ModelImages

TOLERANCE = 1e-4  # the largest difference of an exported embedding, in any of its numbers
_CALIBRATION, _BATCH = 256, 32  # training images that ranges are taken from, and how many of them at once


@dataclass(frozen=True)
class ExportCheck:
    """How an exported file compares with its checkpoint, on the same images.

    Attributes:
        max_difference: of any number of any embedding at unit length.
        before, after: mAUPRC of the checkpoint and of the file; None where the images have no labels to compare.

    Example:
        >>> print(ExportCheck("model.onnx", images=10, max_difference=2e-7, before=0.75, after=0.75))
        model.onnx: max difference 2.0e-07 over 10 images; mauprc 0.7500 before, 0.7500 after
    """

    file: str
    images: int
    max_difference: float
    before: float | None = None
    after: float | None = None

    @property
    def is_same(self) -> bool:
        """Whether it is the same model: no number differs by more than `TOLERANCE`, nor mAUPRC by more than 0.00005."""
        near = self.before is None or self.after is None or abs(self.after - self.before) <= 0.5e-4
        return self.max_difference <= TOLERANCE and near

    def __str__(self) -> str:
        text = f"{self.file}: max difference {self.max_difference:.1e} over {self.images:,} images"
        return text if self.before is None else f"{text}; mauprc {self.before:.4f} before, {self.after:.4f} after"


def export_model(
    checkpoint: str,
    to: str,
    out: Path | str,
    *,
    images: ImageSelection | None = None,
    int8: bool = False,
    licence: str | None = None,
    overwrite: bool = False,
    running: RunOptions | None = None,
) -> list[ExportCheck]:
    """Write a trained model as a folder that others use; check it against the checkpoint on real images.

    It is there whole or not at all; an export that differs from the checkpoint is refused. Returned are the checks of
    the model's own file, and of the 8-bit graph, which is meant to differ.

    Args:
        checkpoint: DIR/best of a run, such as runs/mine/best; of two towers that of the images.
        to: onnx (one graph), or hf (or timm), a folder that timm loads.
        out: folder to make, of the model, README.md and export.json.
        images: those of the check; default: the test split of the data that the model was trained on.
        int8: write an ONNX graph of 8 bits too, calibrated on training images, and say what it loses.
        licence: licence named in README.md, such as mit.
        overwrite: replace an earlier export in `out`.

    Example:
        >>> import tempfile
        >>> import aurank
        >>> config = {
        ...     "data": {"name": "digits", "image_size": 8, "channels": 1}, "sampler": {"batch": 16},
        ...     "model": {"backbone": "test_resnet", "pretrained": False, "dim": 8}, "loss": {"name": "smooth_ap"},
        ...     "optim": {"lr": 1e-3}, "train": {"steps": 1},
        ... }
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = aurank.train(config, f"{folder}/run")
        ...     (check,) = export_model(f"{folder}/run/best", "hf", f"{folder}/exported")
        >>> check.is_same, check.file
        (True, 'model.safetensors')
    """
    out, running = Path(out), running or RunOptions()
    require_export(to, out, int8=int8, overwrite=overwrite)
    to = "hf" if to == "timm" else to
    # One machine for both sides of the check; what was cached may be of another.
    running = dataclasses.replace(running, device=running.device or "cpu", cache=None)
    checkpoint, images = checkpoint.removeprefix("aurank:"), images or ImageSelection()
    state = load_checkpoint(resolve_checkpoint(checkpoint))
    if is_head(state) and not images.takes_images:
        reason = "it was trained on embeddings, and takes images behind the backbone that made them"
        raise UserError(f"{checkpoint}: {reason}; name images to check the export with, --data READER:PATH")
    trained = read_trained(state["config"])
    prepared = prepare_model(f"aurank:{checkpoint}", images, running)
    model, manifest, pipeline = prepared.model, prepared.dataset.manifest, prepared.model.transform
    assert isinstance(model.module.eval(), Encoder)
    assert isinstance(pipeline, Pipeline)
    _require_expressible(to, model.config)
    require_distinct(manifest, prepared.data)
    pixels = _calibration(prepared, pipeline, trained) if int8 else []
    with replacing_folder(out) as folder:
        files = _write(to, folder, model, pixels)
        before, checks, metrics = _compare(prepared, files)
        if not checks[0].is_same:
            raise AurankError(
                f"--to {to}: the exported model is not the same: {checks[0]}; at most {TOLERANCE:g} is allowed, "
                "nothing was written; export it in another form (--to), and please report it"
            )
        notes = [*prepared.remarks]
        if unread := len(manifest) - len(before.ids):
            notes.append(f"{unread:,} of {len(manifest):,} images could not be read and are left out")
        if model.config.model.text is not None:
            notes.append("the encoder of images alone was exported, not that of texts")
        if int8:
            notes.append(f"{INT8}: ranges of {sum(map(len, pixels)):,} training images")
        if is_head(state):  # the card tells of the backbone that it stands behind
            trained = trained.model_copy(update={"model": model.config.model})
        libraries = ("aurank", "torch", "timm", *(("onnx", "onnxruntime") if to == "onnx" else ()))
        card: dict[str, Any] = {
            "target": to,
            "file": MODELS[to],
            "width": before.embeddings.shape[1],
            "method": pillow_interpolation(pipeline),
            "data": manifest.name,
            "split": images.split or "test",
            "measured": f"{len(before.ids):,} images of {manifest.name}, manifest {manifest.sha256[:16]}",
            "files": {path.name: path.stat().st_size for path in sorted(folder.iterdir())},
            "metrics": metrics,
            "checks": [*map(str, checks), *notes],
            "versions": {name: version(name) for name in libraries},
            "licence": licence,
        }
        write_text(folder / CARD, write_card(trained, state, pipeline, **card))
        content = {"format": 1, "to": to, "files": card["files"], "metrics": metrics}
        content |= {"checks": [dataclasses.asdict(check) for check in checks], "versions": card["versions"]}
        write_text(folder / RESULT, json.dumps(content, indent=1) + "\n")
    running.tell(*notes)
    return checks


def _require_expressible(to: str, config: Config) -> None:
    model, reason = config.model, ""
    remedy = "export it as onnx"
    if to == "hf" and (config.evaluate.flip or config.evaluate.scales != (1.0,)):
        reason = "timm's folder holds no views (evaluate.flip, evaluate.scales)"
    elif config.data.channels not in COLOURS:
        reason, remedy = f"the model takes {config.data.channels} channels", "only 1, 3 or 4 can be exported"
    elif to == "hf" and is_local(model.backbone):
        reason = f"the network is that of a folder of this machine ({model.backbone})"
    elif to == "hf" and model.pooling == "gem":
        reason = "timm has no generalised-mean pooling (model.pooling=gem)"
    elif to == "hf" and model.head_layers > 1 and not model.discard_head:
        reason = f"timm has one linear layer behind a backbone, this model {model.head_layers} (model.head_layers)"
    elif to == "hf" and is_tower(model.backbone):
        reason = f"timm has no {model.backbone}"
    if reason:
        raise UserError(f"--to {to}: {reason}; {remedy}")


def _write(to: str, folder: Path, model: ImageModel, pixels: Sequence[np.ndarray]) -> dict[str, ImageModel]:
    encoder: Any = model.module.cpu()
    pipeline: Any = model.transform
    file, config = MODELS[to], model.config.model
    problem, remedy = f"--to {to}: {config.backbone} cannot be exported", "save it with aurank.load(…).save(…)"
    try:
        if to == "hf":
            write_folder(encoder, config, pipeline, folder / file)
            return {file: load_folder(folder, pipeline)}
        write_graph(encoder, pipeline, folder / file)
        if pixels:
            problem, remedy = "--int8: onnxruntime cannot quantise this graph", "leave out --int8"
            quantise(folder / file, folder / INT8, pixels)
    except (AurankError, OSError):
        raise
    except Exception as error:
        raise UserError(f"{problem} ({type(error).__name__}: {first_line(error)}); {remedy}") from error
    files = [file, INT8] if pixels else [file]
    return {name: onnx_model(f"onnx:{name}", str(folder / name), {}, False) for name in files}


def _compare(
    prepared: PreparedModel, written: Mapping[str, ImageModel]
) -> tuple[Embedded, list[ExportCheck], dict[str, float]]:
    data, manifest = prepared.data, prepared.dataset.manifest
    how: dict[str, Any] = {"on_error": data.on_error, "max_pixels": data.max_pixels, "prepared": open_prepared(data)}
    options: dict[str, Any] = {}
    if manifest.class_counts.max() > 1:
        options = prepared.evaluation_options(None, {"device": prepared.run.torch_device, "neighbours": 0})

    def measure(embedded: Embedded) -> dict[str, float]:
        return dict(embedded.evaluate(**options).metrics) if options else {}

    before, notes = prepared.embed()
    prepared.run.tell(*notes[1:])  # it names images, which the card does not
    mauprc = measure(before).get("mauprc")
    checks: list[ExportCheck] = []
    metrics: dict[str, float] = {}
    for file, model in written.items():
        model.module.eval()
        after, _ = dataclasses.replace(prepared, model=model, dataset=model.dataset(manifest, **how)).embed()
        if not np.array_equal(after.ids, before.ids):
            raise AurankError(f"{file}: other images could be read than before; export again")
        reached = measure(after)
        metrics = metrics or reached  # of the model's own file, as the card's code uses it
        difference = float(np.abs(unit(after.embeddings) - unit(before.embeddings)).max())
        checks.append(ExportCheck(file, len(after.ids), difference, mauprc, reached.get("mauprc")))
    return before, checks, metrics


def _calibration(prepared: PreparedModel, pipeline: Pipeline, trained: Config) -> list[np.ndarray]:
    if (training := training_images(prepared)) is None:
        training = read_manifest(trained.data, seed=trained.seed).split("train")
    spread = np.linspace(0, len(training) - 1, min(_CALIBRATION, len(training)))
    rows: list[int] = np.unique(spread.round().astype(np.int64)).tolist()
    inside = dataclasses.replace(prepared.model, transform=StoredTransform(pipeline, is_inside=True))
    images = ModelImages(training, inside, on_error="skip", max_pixels=prepared.data.max_pixels)
    batches = [images.__getitems__(rows[start : start + _BATCH]).image for start in range(0, len(rows), _BATCH)]
    if not (pixels := [batch.numpy() for batch in batches if len(batch)]):
        raise UserError(f"--int8 is calibrated on training images, and {training.name} has none; leave out --int8")
    return pixels

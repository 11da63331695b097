"""A trained model as a file that others run, checked on real images: what ``aurank export`` calls."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from torch import nn

from aurank.commands.galleries.postprocess import training_images
from aurank.commands.run_options import PreparedModel, RunOptions, prepare_model
from aurank.config import Config
from aurank.config.schema import NO_BACKBONE
from aurank.data import Manifest, Pipeline
from aurank.embedding.choices import read_trained
from aurank.embedding.embed import Embedded, embed
from aurank.embedding.from_config import build_transform, open_prepared
from aurank.embedding.select_images import ImageSelection, read_manifest, require_distinct
from aurank.embedding.stored.checkpoint import is_head, load_checkpoint, resolve_checkpoint
from aurank.errors import AurankError, UserError, first_line
from aurank.exporting.card import Facts, describe_begun_licence, describe_training, write_card
from aurank.exporting.check import TOLERANCE, Check, Measured, all_metrics, describe_change
from aurank.exporting.graphs import quantise, require_packages, write_graph
from aurank.exporting.portable import write_program, write_weights
from aurank.exporting.resizing import pillow_interpolation, spread_rows
from aurank.exporting.timm_folder import load_folder, require_expressible, write_folder
from aurank.files import LOCK, replacing_folder, require_writable, write_text
from aurank.models import Encoder
from aurank.models.adapters.by_name import ADAPTERS
from aurank.models.adapters.exported import StoredTransform, pack_preprocessing
from aurank.models.adapters.towers import is_local
from aurank.models.image_model import ImageModel, ModelImages

Target = Literal["onnx", "torchexport", "safetensors", "hf"]
TARGETS: tuple[Target, ...] = get_args(Target)
_FILES: dict[str, str] = {
    "onnx": "model.onnx",
    "torchexport": "model.pt2",
    "safetensors": "model.safetensors",
    "hf": "model.safetensors",
}
_INT8, _CARD, _RESULT, _PREPROCESSING = "model.int8.onnx", "README.md", "export.json", "preprocessing.json"
_KNOWN = {*_FILES.values(), _INT8, _CARD, _RESULT, _PREPROCESSING, "config.json"}
_CALIBRATION, _BATCH = 256, 32  # training images that ranges are taken from, and how many of them at once


@dataclass(frozen=True)
class Exported:
    """What an export left behind.

    Attributes:
        files: bytes by name, the card included.
        check: of the model's own file.
        others: of files that are meant to differ: the 8-bit graph, timm's own transform.
        notes: what cannot be seen from the numbers.

    Example:
        >>> check = Check("model.onnx", images=10, max_difference=2e-7, before=0.75, after=0.75)
        >>> print(Exported(Path("exported"), "onnx", {"model.onnx": 1234}, check))
        model.onnx: max difference 2.0e-07 over 10 images; mauprc 0.7500 before, 0.7500 after
        written to exported: model.onnx 1,234 bytes
    """

    out: Path
    target: Target
    files: dict[str, int]
    check: Check
    others: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [str(self.check), *map(describe_change, self.others), *self.notes]
        sizes = ", ".join(f"{name} {size:,} bytes" for name, size in self.files.items())
        return "\n".join([*lines, f"written to {self.out}: {sizes}"])


def export_model(
    checkpoint: str,
    to: Target,
    out: Path | str,
    *,
    images: ImageSelection | None = None,
    int8: bool = False,
    licence: str | None = None,
    overwrite: bool = False,
    running: RunOptions | None = None,
) -> Exported:
    """Write a trained model as a folder that others use, and check it against the checkpoint on real images.

    The folder is there whole or not at all; an export that differs from the checkpoint is refused.

    Args:
        checkpoint: ``DIR/best``, of two towers that of the images.
        to: onnx (one graph), torchexport (a program and preprocessing.json), safetensors (weights that aurank builds
            the network for), hf (the layout of timm on the hub).
        images: those of the check; default: the test split of the data that the model was trained on.
        int8: with onnx, a graph of 8 bits too, calibrated on training images.
        licence: for the card, as hubs name it, such as mit.
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
        ...     exported = export_model(f"{folder}/run/best", "safetensors", f"{folder}/exported")
        >>> exported.check.max_difference, sorted(exported.files)
        (0.0, ['README.md', 'export.json', 'model.safetensors'])
    """
    out, running = Path(out), running or RunOptions()
    _require_possible(to, out, int8=int8, overwrite=overwrite)
    # One machine for both sides of the check; what was cached may be of another.
    running = dataclasses.replace(running, device=running.device or "cpu", cache=None)
    checkpoint, images = checkpoint.removeprefix("aurank:"), images or ImageSelection()
    state = load_checkpoint(resolve_checkpoint(checkpoint))
    if is_head(state) and not images.takes_images:
        said = "it was trained on embeddings, and takes images behind the backbone that made them"
        raise UserError(f"{checkpoint}: {said}; name images to check the export with, --data READER:PATH")
    trained = read_trained(state["config"])
    prepared = prepare_model(f"aurank:{checkpoint}", images, running)
    config, encoder = prepared.model.config, prepared.model.module
    assert config is not None
    assert isinstance(encoder, Encoder)
    encoder.eval()
    if config.data.channels not in (1, 3, 4):
        raise UserError(f"images of {config.data.channels} channels cannot be exported, only those of 1, 3 or 4")
    if to in ("safetensors", "hf") and is_local(config.model.backbone):
        what = f"the network is that of a folder of this machine ({config.model.backbone})"
        raise UserError(f"--to {to}: {what}; export it as onnx or torchexport, which hold the network itself")
    if to == "hf":
        require_expressible(config.model)
    manifest = prepared.dataset.manifest
    require_distinct(manifest, prepared.data)
    pixels = _calibration(prepared, trained, is_own=images.data is None) if int8 else []
    pipeline = build_transform(config.data, train=False)
    method = pillow_interpolation(pipeline, manifest, max_pixels=prepared.data.max_pixels)
    with replacing_folder(out) as folder:
        written = _write(to, folder, encoder, config, pipeline, method)
        measured = _measure(prepared, to, written)
        if not (check := measured.checks[0]).is_same:
            raise AurankError(
                f"--to {to}: the exported model is not the same: {check}; at most {TOLERANCE:g} is allowed, "
                "nothing was written; export it in another form (--to), and please report it"
            )
        if to == "hf":
            own = load_folder(folder, pipeline)[1]
            measured.compare("timm's own transform", _embed(prepared, own, "timm's transform"))
        if int8:
            _quantise(folder, pixels, prepared, measured)
        shown: dict[str, Any] = {"data": manifest.name, "split": images.split or "test", "licence": licence}
        told = _with_network(trained, config) if is_head(state) else trained
        facts = Facts(**shown, **_facts(folder, to, measured, told, state), interpolation=method)
        _describe(folder, write_card(told, pipeline, facts), facts, measured)
        files = _sizes(folder)
    return Exported(out, to, files, measured.checks[0], measured.checks[1:], measured.notes)


def _with_network(trained: Config, joined: Config) -> Config:
    """The configuration of a head with the backbone that it stands behind, for the card."""
    data = trained.data.model_copy(update={"image_size": joined.data.image_size})
    return trained.model_copy(update={"data": data, "model": joined.model})


def require_target(name: str) -> Target:
    """Return the name; raise UserError for anything that nothing is exported to."""
    for target in TARGETS:
        if name == target:
            return target
    raise UserError(f"--to {name!r}: expected one of {', '.join(TARGETS)}")


def _require_possible(to: Target, out: Path, *, int8: bool, overwrite: bool) -> None:
    """Raise UserError where the options do not go together, a library is missing, or `out` is not free."""
    require_target(to)
    if int8 and to != "onnx":
        raise UserError(f"--int8 goes with --to onnx, not with --to {to}")
    if to == "onnx":
        require_packages()
    if out.resolve() == Path.cwd():
        raise UserError(f"--out {out} is the folder that you are in; name one to make, such as exported")
    require_writable(out / _RESULT)
    found = sorted(path.name for path in out.iterdir() if path.name != LOCK) if out.is_dir() else []
    if not found:
        return
    strange = [name for name in found if name not in _KNOWN]
    if strange or _RESULT not in found:
        what = f"{strange[0]!r}, which is of no export" if strange else "no earlier export"
        raise UserError(f"--out {out} holds {what}; name another folder")
    if not overwrite:
        raise UserError(f"--out {out} holds an earlier export; name another folder, or add --overwrite")


def _write(to: Target, folder: Path, encoder: Encoder, config: Config, pipeline: Pipeline, method: str) -> ImageModel:
    """Write the model and return it as it is read back."""
    path, dim = folder / _FILES[to], _width(encoder)
    device = next(encoder.parameters()).device
    encoder.cpu()
    try:
        if to == "onnx":
            write_graph(encoder, pipeline, path, dim=dim)
        elif to == "torchexport":
            write_program(encoder, pipeline, path, dim=dim)
        elif to == "safetensors":
            write_weights(encoder, config.model, pipeline, path, dim=dim)
        else:
            write_folder(encoder, config.model, pipeline, folder, interpolation=method)
            text = pack_preprocessing(pipeline, dim=dim, is_inside=False, is_unit=False)
            write_text(folder / _PREPROCESSING, text + "\n")
            return load_folder(folder, pipeline)[0]
    except (AurankError, OSError):
        raise
    # torch and its exporters raise errors of many kinds of operations that they do not know.
    except Exception as error:
        what = f"{config.model.backbone} cannot be exported ({type(error).__name__}: {first_line(error)})"
        raise UserError(f"--to {to}: {what}; try --to safetensors") from error
    finally:
        encoder.to(device)
    return _read_back(to, path)


def _read_back(to: Target, path: Path) -> ImageModel:
    """Return the model of a file that was just written."""
    model = ADAPTERS[to](f"{to}:{path.name}", str(path), {}, True)
    model.module.eval()
    return model


def _width(encoder: Encoder) -> int:
    if not encoder.discard_head:
        return encoder.dim
    first = next(layer for layer in encoder.head.modules() if isinstance(layer, nn.Linear))
    return first.in_features


def _measure(prepared: PreparedModel, to: Target, written: ImageModel) -> Measured:
    """Embed the images by the checkpoint and by what was written, and compare both."""
    manifest = prepared.dataset.manifest
    options: dict[str, Any] = {}
    if manifest.class_counts.max() > 1:
        options = prepared.evaluation_options(None, {"device": prepared.run.torch_device, "neighbours": 0})
    before, notes = prepared.embed()
    prepared.run.tell(*notes[1:])  # it names images, which the card does not
    unread = len(manifest) - len(before.ids)
    metrics = all_metrics(before, options)
    words = f"{len(before.ids):,} images of {manifest.name}, manifest {manifest.sha256[:16]}"
    measured = Measured(before, metrics, words, options, notes=[*prepared.remarks])
    if unread:
        measured.notes.append(f"{unread:,} of {len(manifest):,} images could not be read and are left out")
    measured.compare(_FILES[to], _embed(prepared, written, "checking"))
    if prepared.model.config is not None and prepared.model.config.model.text is not None:
        measured.notes.append("the encoder of images alone was exported, not that of texts")
    return measured


def _embed(prepared: PreparedModel, model: ImageModel, stage: str) -> Embedded:
    """Return the embeddings of the images by another model."""
    data = prepared.data
    given: dict[str, Any] = {"on_error": data.on_error, "max_pixels": data.max_pixels, "prepared": open_prepared(data)}
    images = ModelImages(prepared.dataset.manifest, model, **given)
    device = prepared.run.torch_device
    return embed(model.module.to(device), images, device=device, progress=prepared.run.stage(stage), **prepared.sizes)


def _calibration(prepared: PreparedModel, trained: Config, *, is_own: bool) -> list[np.ndarray]:
    """Return batches of uint8 pixels of training images, evenly over their list.

    is_own: whether the images of the check are of the data that the model was trained on.
    """
    training = training_images(prepared) if is_own else _trained_on(trained)
    if training is None:
        training = training_images(prepared)
    if training is None:
        name = prepared.dataset.manifest.name
        raise UserError(f"--int8 is calibrated on training images, and {name} has none; leave out --int8")
    rows = spread_rows(len(training), _CALIBRATION)
    pipeline = prepared.model.transform
    assert isinstance(pipeline, Pipeline)
    model = ImageModel("", prepared.model.module, StoredTransform(pipeline, is_inside=True), "", pipeline.channels)
    given: dict[str, Any] = {"on_error": "skip", "max_pixels": prepared.data.max_pixels}
    images = ModelImages(training, model, **given)
    batches = [rows[start : start + _BATCH] for start in range(0, len(rows), _BATCH)]
    found = [images.__getitems__(batch).image for batch in batches]
    kept = [batch.numpy() for batch in found if not isinstance(batch, tuple) and len(batch)]
    if not kept:
        raise UserError(f"--int8: none of {len(rows)} training images could be read; leave out --int8")
    return kept


def _trained_on(config: Config) -> Manifest | None:
    """Return the training images of a run's own data, None where they are gone, or were none."""
    if config.model.backbone == NO_BACKBONE:
        return None
    try:
        whole = read_manifest(config.data, seed=config.seed)
    except UserError:
        return None
    return whole.split("train") if "train" in whole.split_sizes else None


def _quantise(folder: Path, pixels: Sequence[np.ndarray], prepared: PreparedModel, measured: Measured) -> None:
    """Write the graph of 8 bits beside that of floats, and measure it."""
    try:
        quantise(folder / _FILES["onnx"], folder / _INT8, pixels)
    except Exception as error:
        said = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"--int8: onnxruntime cannot quantise this graph ({said}); leave out --int8") from error
    measured.compare(_INT8, _embed(prepared, _read_back("onnx", folder / _INT8), "checking int8"), is_other=True)
    count = sum(len(batch) for batch in pixels)
    measured.notes.append(f"{_INT8}: ranges of {count:,} training images")


def _sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir())}


def _facts(folder: Path, to: Target, measured: Measured, config: Config, state: dict[str, Any]) -> dict[str, Any]:
    """Return what the card tells of the files, the check and the run."""
    names = ("torch", "timm", *(("onnx", "onnxruntime") if to == "onnx" else ()))
    return {
        "target": to,
        "files": _sizes(folder),
        "metrics": measured.reached,
        "measured": measured.images,
        "checks": [str(measured.checks[0]), *map(describe_change, measured.checks[1:])],
        "trained": describe_training(config, state),
        "versions": {name: version(name) for name in ("aurank", *names)},
        "width": measured.before.embeddings.shape[1],
        "begun_licence": describe_begun_licence(config),
        "notes": measured.notes,
    }


def _describe(folder: Path, card: str, facts: Facts, measured: Measured) -> None:
    """Write the card for people, and export.json for programs."""
    write_text(folder / _CARD, card)
    content = {"format": 1, "to": facts.target, "files": facts.files, "metrics": facts.metrics}
    content |= {"checks": [dataclasses.asdict(one) for one in measured.checks], "versions": facts.versions}
    write_text(folder / _RESULT, json.dumps(content, indent=1) + "\n")

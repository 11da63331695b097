"""Checkpoints: one file with everything, whole or not there, verified, read without running code; their weights."""

import hashlib
import json
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aurank.config import Config
from aurank.config.cross_checks import EMBEDDINGS, NO_BACKBONE
from aurank.config.messages import one_line
from aurank.data.transforms.base import AREA, usual_look
from aurank.embedding._checksums import DamageError, check_archive, checksums, first_difference, require_small
from aurank.embedding.choices import read_trained
from aurank.errors import AurankError, UserError, first_line
from aurank.files import reading, replacing
from aurank.models.adapters.timm import split_file

FORMAT = 2
_LONGEST = 200  # characters of another library's words
_STATE, _PERHAPS = (dict,), (dict, type(None))
WEIGHTS: dict[str, tuple[type, ...]] = {"config": _STATE, "manifest": (str,), "data": _PERHAPS, "progress": _STATE}
WEIGHTS |= {"encoder": _STATE, "average": _PERHAPS, "tokeniser": _PERHAPS}
"""What a checkpoint of weights holds beside its format number, and of which types: all that measuring them needs."""
CONTENT: dict[str, tuple[type, ...]] = {**WEIGHTS, "loss": _STATE, "miner": _STATE, "optimiser": _STATE}
CONTENT |= {"scaler": _PERHAPS, "sampler": _STATE, "random": (list,)}
"""What a checkpoint holds that a run can be resumed from."""
AVERAGE_OF = "average_of"
"""Where a checkpoint that is the average of several says of which: for each its name, configuration and step."""


class DamagedCheckpointError(UserError):
    """The file is not what was written, cannot be read, or is no checkpoint at all: one of before it may do."""


def save_checkpoint(path: Path, content: dict[str, Any], *, displaced: Sequence[Path] = ()) -> None:
    """Write ``content`` to ``path``, whole or not at all: a failure leaves the old file valid.

    `displaced`: where what was at ``path`` goes, and what was there to the next, as in ``replacing``.
    """
    content = {"format": FORMAT, **content}
    try:
        with replacing(path, displaced=displaced) as file:
            torch.save({**content, "checksums": checksums(content)}, file)
    except (AurankError, RuntimeError) as error:
        # torch reports a write that failed as a RuntimeError of its own, and `replacing` as its own: the system knows.
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        reason = first_line(error) if cause is None else cause.strerror or first_line(cause)
        kept = f"the previous {path} is untouched" if path.exists() else "no earlier checkpoint exists"
        raise AurankError(
            f"cannot save {path}: {reason}; {kept}; free some space and start again, a run with --resume"
        ) from error


def load_checkpoint(path: Path, *, read_run: Callable[[dict[str, Any]], Config] | None = None) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU, verified; UserError unless it is whole and of a version that is known.

    `read_run` reads the configuration of a run that goes on, which needs all of `CONTENT`, else `WEIGHTS` will do.
    """
    content = _read(path)
    if content["format"] < 2:  # without checksums of its own, and written before these had a state
        content = {"sampler": {}, "miner": {}, "tokeniser": None, "data": None, **content}
    if isinstance(content.get("config"), dict):
        try:
            content["config"] = as_trained(content["config"], resumed=read_run is not None)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
    weights_only = not any(name in content for name in CONTENT if name not in WEIGHTS)
    if read_run is not None and weights_only:
        raise UserError(f"{path} holds weights only, no run goes on from it; --resume takes last.pt of its folder")
    for name, types in (WEIGHTS if weights_only else CONTENT).items():
        if not isinstance(content.get(name, ...), types):
            came = f"is of type {type(content[name]).__name__}" if name in content else "is missing"
            expected = " or ".join("nothing" if kind is type(None) else kind.__name__ for kind in types)
            raise _incomplete(path, f"{name!r} {came}, expected {expected}")
    if not _are_parts(content.get(AVERAGE_OF, [])):
        raise _incomplete(path, f"{AVERAGE_OF!r} is no list of models with their names, configurations and seeds")
    _check_weights(content, path, read_run or read_trained)
    return content


def as_trained(content: dict[str, Any], *, resumed: bool = False) -> dict[str, Any]:
    """The configuration of a checkpoint with what images were shown with, which older ones do not name.

    Until it stood in `data.normalise` it was ImageNet's, or 0.5 for other than 3 channels, unless params of the
    transforms said otherwise; images were resized by area, and decoded whole. Raises UserError where
    training goes on (`resumed`) that saw images otherwise than they were measured with.
    """
    content = {**content, "model": _with_weights(content.get("model"))} if "model" in content else content
    data = content.get("data")
    if not isinstance(data, dict) or data.get("name") == EMBEDDINGS:
        return content
    data = {**data, "decoding": data.get("decoding") or "whole"}
    if data.get("normalise") is not None:
        return {**content, "data": data}
    channels, given = data.get("channels", 3), {}
    looks = []
    for key in ("train_transform", "test_transform"):
        params = (data[key].get("params") or {}) if isinstance(data.get(key), dict) else None
        if isinstance(params, dict):
            # The last is what was measured with.
            given = {name: params[name] for name in ("mean", "std") if params.get(name)}
            rest = {name: value for name, value in params.items() if name not in ("mean", "std")}
            data[key] = {**data[key], "params": rest}
            looks.append(given)
    if isinstance(channels, int) and 0 < channels <= 256:
        mean, std = usual_look(channels)
        usual = {"mean": list(mean), "std": list(std)}
        if resumed and any({**usual, **look} != {**usual, **given} for look in looks):
            raise UserError(
                "it was trained on images of another mean or std (data.train_transform.params) than it was measured "
                "with, which no run does any more; evaluate it, or train anew with data.normalise"
            )
        data["normalise"] = {**usual, **given}
        data["interpolation"] = AREA
    return {**content, "data": data}


def _with_weights(model: Any) -> Any:
    """The model section with a local file of weights under `weights`: it once stood among the `params`."""
    if not isinstance(model, dict) or not isinstance(model.get("params"), dict):
        return model
    file, params = split_file(model["params"])
    return model if file is None else {**model, "weights": file, "params": params}


def _read(path: Path) -> dict[str, Any]:
    """What the file holds, as it was written; of one with sums, without them."""
    with reading(path, "a checkpoint of aurank", remedy="use another one", raising=DamagedCheckpointError):
        if not path.is_file():
            raise UserError(f"no checkpoint at {path}; a run writes last.pt and best.pt into its --out folder")
        with path.open("rb") as file:
            check_archive(file)
            content: Any = torch.load(file, map_location="cpu", weights_only=True)
        found = content["format"]
        if type(found) is int and found > FORMAT:  # it may be summed otherwise
            known = f"this aurank reads up to {FORMAT}; upgrade aurank"
            raise UserError(f"{path} has checkpoint format {found}, {known}")
        require_small(content, path.stat().st_size)
        if found == FORMAT or "checksums" in content:
            wrong = first_difference(content.pop("checksums", None), checksums(content))
            if wrong is not None:
                raise DamageError(f"{wrong} is not what was written")
        if type(found) is not int:
            raise ValueError("it holds no format number")
        return dict(content)


def _incomplete(path: Path, what: str) -> UserError:
    return UserError(f"{path} is not a complete aurank checkpoint: {one_line(what)}; use last.pt or best.pt of a run")


def _check_weights(content: dict[str, Any], path: Path, read: Callable[[dict[str, Any]], Config]) -> None:
    """Raise UserError unless the average, the weights and the configuration have the types that measuring needs."""
    average = content["average"]
    if average is not None and not (isinstance(average.get("values"), dict) and type(average.get("updates")) is int):
        raise _incomplete(path, "'average' lacks its updates, a number, or its values, a dict")
    for name, weights in (("encoder", content["encoder"]), ("average", (average or {}).get("values", {}))):
        for key, value in weights.items():
            if not isinstance(key, str) or not isinstance(value, Tensor):
                raise _incomplete(path, f"{name!r} has at {key!r} a {type(value).__name__}, expected a tensor")
    try:
        read(content["config"])
    except UserError as error:
        said = one_line(getattr(error, "errors", [str(error)])[0])
        raise UserError(f"{path}: this aurank cannot use its config ({said}); use the version that wrote it") from error


def _are_parts(value: Any) -> bool:
    named = ("name", str), ("config", dict)
    return isinstance(value, list) and all(
        isinstance(one, dict)
        and all(isinstance(one.get(key), kind) for key, kind in named)
        and type(one["config"].get("seed")) is int
        for one in value
    )


def describe_average(checkpoint: dict[str, Any], *, named: bool = True) -> list[str]:
    """Return a line on the models whose weights a checkpoint is the average of, none where it is of one training.

    named: with their names, which are places on the machine.
    """
    told = []
    for one in checkpoint.get(AVERAGE_OF, []):
        what = "an average" if AVERAGE_OF in one else f"seed {one['config']['seed']}"
        told.append(f"{one_line(one['name'])} ({what})" if named else what)
    what = "" if named else f"{len(told)} models: "
    return [f"the weights are the average of {what}{', '.join(told)}"] if told else []


def resolve_checkpoint(path: Path | str) -> Path:
    """The file meant by ``DIR/best``, ``DIR/best.pt`` or ``DIR`` (its best checkpoint)."""
    path = Path(path)
    if path.is_dir():
        return path / "best.pt"
    return path if path.suffix == ".pt" or path.is_file() else path.with_name(path.name + ".pt")


def is_head(checkpoint: dict[str, Any]) -> bool:
    """Whether a checkpoint is of a head on saved embeddings."""
    return bool(checkpoint["config"].get("model", {}).get("backbone") == NO_BACKBONE)


def model_weights(checkpoint: dict[str, Any]) -> dict[str, Tensor]:
    """The weights to evaluate: the moving average where there is one, else the encoder's own."""
    average = checkpoint["average"]
    weights: dict[str, Tensor] = checkpoint["encoder"] if average is None else average["values"]
    return weights


def image_weights(checkpoint: dict[str, Any]) -> dict[str, Tensor]:
    """Those weights of the encoder of images: of two towers those of one."""
    weights, prefix = model_weights(checkpoint), "image."
    of_tower = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    return of_tower or weights


def fingerprint(content: dict[str, Any]) -> str:
    """A digest of what was trained, up to where: the weights with their average, and the progress.

    Not of the configuration, of which a resumed run may change the place of the data.
    """
    held = {name: content[name] for name in ("encoder", "average", "progress")}
    return hashlib.sha256(json.dumps(checksums(held)).encode()).hexdigest()


def load_weights(module: nn.Module, weights: dict[str, Tensor], source: Path | str, *, part: str = "encoder") -> None:
    """Load the weights into the module; raise UserError naming the first tensor that does not fit."""
    require_alike(weights, module.state_dict(), source, part)
    load_part(module.load_state_dict, weights, source, part)


def require_alike(saved: dict[str, Any], own: dict[str, Any], source: Path | str, part: str) -> None:
    """Raise UserError unless both have the same tensors, by name, shape and kind: real numbers or not."""
    wrong = [name for name in dict.fromkeys([*own, *saved]) if _kind(saved.get(name)) != _kind(own.get(name))]
    if wrong:
        came, expected = (describe_value(state.get(wrong[0])) for state in (saved, own))
        more = f", and {len(wrong) - 1} more differ" if len(wrong) > 1 else ""
        raise UserError(
            f"{source} does not fit this model: {part} {wrong[0]!r} is {came}, expected {expected}{more}; "
            f"use the versions of aurank and timm that wrote it (timm is {version('timm')} here), or another checkpoint"
        )


def _kind(value: Any) -> object:
    return (tuple(value.shape), value.is_floating_point()) if isinstance(value, Tensor) else value is None


def describe_value(value: Any) -> str:
    """The type and shape of a tensor, in words for a message; of anything else its type."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return "missing" if value is None else f"of type {type(value).__name__}"


def load_part(load: Callable[[Any], object], value: Any, source: Path | str, part: str) -> None:
    """Load a component's saved state; raise UserError where it refuses that, whatever it raises."""
    try:
        load(value)
    except Exception as error:
        said = one_line(str(error) or type(error).__name__)[:_LONGEST]
        remedy = "use the version of aurank that wrote it, or another checkpoint"
        raise UserError(f"{source} does not fit this run: {part!r} is refused ({said}); {remedy}") from error

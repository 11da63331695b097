"""Checkpoints: one file with everything, written whole or not at all, verified, and read without running code."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from aurank.config import Config
from aurank.config.messages import one_line
from aurank.embedding._checksums import (
    DamageError,
    check_archive,
    checksums,
    first_difference,
    require_small,
)
from aurank.embedding.choices import read_trained
from aurank.embedding.preprocessing import as_trained
from aurank.errors import AurankError, UserError, first_line
from aurank.files import replacing

FORMAT = 2
WEIGHTS: dict[str, tuple[type, ...]] = {
    "config": (dict,),
    "manifest": (str,),
    "data": (dict, type(None)),
    "progress": (dict,),
    "encoder": (dict,),
    "average": (dict, type(None)),
    "tokeniser": (dict, type(None)),
}
"""What a checkpoint of weights holds beside its format number, and of which types: all that measuring them needs."""
CONTENT: dict[str, tuple[type, ...]] = {
    **WEIGHTS,
    "loss": (dict,),
    "miner": (dict,),
    "optimiser": (dict,),
    "scaler": (dict, type(None)),
    "sampler": (dict,),
    "random": (list,),
}
"""What a checkpoint holds that a run can be resumed from."""


class DamagedCheckpointError(UserError):
    """The file is not what was written, cannot be read, or is no checkpoint at all: one of before it may do."""


def save_checkpoint(path: Path, content: dict[str, Any], *, displaced: Sequence[Path] = ()) -> None:
    """Write ``content`` to ``path``, whole or not at all: a failure leaves the old file valid.

    Args:
        displaced: where what was at ``path`` goes, and what was there to the next, as in ``replacing``.

    Raises:
        AurankError: the disk is full or the file cannot be written; names the file that is still valid.
    """
    content = {"format": FORMAT, **content}
    try:
        with replacing(path, displaced=displaced) as file:
            torch.save({**content, "checksums": checksums(content)}, file)
    except (AurankError, RuntimeError) as error:
        # torch reports a write that failed as a RuntimeError of its own.
        kept = f"the previous {path} is untouched" if path.exists() else "no earlier checkpoint exists"
        raise AurankError(f"cannot save {path}: {_reason(error)}; {kept}; free some space, then --resume") from error


def _reason(error: BaseException) -> str:
    """What the system said, where torch or `replacing` put another error around it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError):
            return cause.strerror or first_line(cause)
        cause = cause.__cause__ or cause.__context__
    return first_line(error)


def load_checkpoint(path: Path, *, read_run: Callable[[dict[str, Any]], Config] | None = None) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU, verified.

    Args:
        read_run: reads the configuration of a run that goes on, which needs everything; ``best.pt`` has not all.
            Without it what measuring needs is checked.

    Raises:
        UserError: the file is missing, not what was written, no (complete) checkpoint, or of a newer version.
    """
    content = _read(path)
    if content["format"] < 2:
        _from_format_1(content)
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
    _check_weights(content, path, read_run or read_trained)
    return content


def _read(path: Path) -> dict[str, Any]:
    """What the file holds, as it was written; of one with sums, without them."""
    try:
        if not path.is_file():
            raise UserError(f"no checkpoint at {path}; a run writes last.pt and best.pt into its --out folder")
        with path.open("rb") as file:
            check_archive(file)
            content: Any = torch.load(file, map_location="cpu", weights_only=True)
            wrong = None
            if isinstance(content, dict):
                _require_readable(content.get("format"), path)  # a later one may be summed otherwise
                require_small(content, path.stat().st_size)
                if content.get("format") == FORMAT or "checksums" in content:
                    wrong = first_difference(content.pop("checksums", None), checksums(content))
            if wrong is not None:
                raise DamageError(f"{wrong} is not what was written")
    except UserError:
        raise
    except OSError as error:
        raise DamagedCheckpointError(
            f"{path} cannot be read: {error.strerror or error}; name another checkpoint"
        ) from error
    except DamageError as error:
        raise DamagedCheckpointError(
            f"{path} is damaged, truncated or not an aurank checkpoint ({one_line(str(error))}); use another one"
        ) from error
    except Exception as error:
        raise DamagedCheckpointError(
            f"{path} is damaged or not an aurank checkpoint ({one_line(first_line(error))}); use another one"
        ) from error
    if not isinstance(content, dict) or type(content.get("format")) is not int:
        raise DamagedCheckpointError(
            f"{path} is not an aurank checkpoint: it holds no format number; use last.pt or best.pt of a run"
        )
    return content


def _require_readable(version: Any, path: Path) -> None:
    if type(version) is int and version > FORMAT:
        raise UserError(f"{path} has checkpoint format {version}, this aurank reads up to {FORMAT}; upgrade aurank")


def _from_format_1(content: dict[str, Any]) -> None:
    """Fill in what checkpoints of format 1, without checksums of their own, did not hold."""
    for name in ("sampler", "miner"):  # written before these had a state
        content.setdefault(name, {})
    content.setdefault("tokeniser", None)
    content.setdefault("data", None)


def _incomplete(path: Path, what: str) -> UserError:
    return UserError(f"{path} is not a complete aurank checkpoint: {one_line(what)}; use last.pt or best.pt of a run")


def _check_weights(content: dict[str, Any], path: Path, read: Callable[[dict[str, Any]], Config]) -> None:
    """Raise UserError unless the average, the weights and the configuration have the types that measuring needs."""
    average = content["average"]
    if average is not None and not (isinstance(average.get("values"), dict) and type(average.get("updates")) is int):
        raise _incomplete(path, "'average' lacks its updates, a number, or its values, a dict")
    for name, weights in (("encoder", content["encoder"]), ("average", (average or {}).get("values", {}))):
        for key, value in weights.items():
            if not isinstance(key, str) or not isinstance(value, torch.Tensor):
                raise _incomplete(path, f"{name!r} has at {key!r} a {type(value).__name__}, expected a tensor")
    try:
        read(content["config"])
    except UserError as error:
        said = one_line(getattr(error, "errors", [str(error)])[0])
        raise UserError(f"{path}: this aurank cannot use its config ({said}); use the version that wrote it") from error


def resolve_checkpoint(path: Path | str) -> Path:
    """The file meant by ``DIR/best``, ``DIR/best.pt`` or ``DIR`` (its best checkpoint)."""
    path = Path(path)
    if path.is_dir():
        return path / "best.pt"
    return path if path.suffix == ".pt" or path.is_file() else path.with_name(path.name + ".pt")


def model_weights(checkpoint: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The weights to evaluate: the moving average where there is one, else the encoder's own."""
    average = checkpoint["average"]
    weights: dict[str, torch.Tensor] = checkpoint["encoder"] if average is None else average["values"]
    return weights


def image_weights(checkpoint: dict[str, Any]) -> dict[str, torch.Tensor]:
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

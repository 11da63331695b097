"""Checkpoints: one file with everything that a run, or the measuring of its model, needs."""

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NotRequired

from torch import Tensor
from typing_extensions import TypedDict

from aurank.config import Config
from aurank.config.messages import one_line
from aurank.config.schema import NO_BACKBONE
from aurank.embedding.locations import require_checkpoint
from aurank.embedding.settings import read_trained
from aurank.errors import UserError
from aurank.files import read_bundle, reading, write_bundle

AVERAGE_OF = "average_of"  # entry of an averaged checkpoint: its parents
_WHAT = "a checkpoint"


class Checkpoint(TypedDict):
    """What measuring a model needs; a run also keeps the state of its loss, miner, scaler, sampler and randomness."""

    __pydantic_config__ = {"arbitrary_types_allowed": True, "extra": "allow"}  # type: ignore[misc]  # noqa: RUF012

    config: dict[str, Any]
    manifest: str
    data: dict[str, str] | None
    progress: dict[str, Any]
    encoder: dict[str, Tensor]
    average: dict[str, Any] | None  # the moving average of the weights: "updates", and "values" by their names
    tokeniser: dict[str, Any] | None
    average_of: NotRequired[list[dict[str, Any]]]  # "name", "config" and "step" of each model, and its average_of
    optimiser: NotRequired[dict[str, dict[int, dict[str, Any]] | list[dict[str, Any]]]]  # keys of `state` are ints


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    write_bundle(path, content, _WHAT)


def load_checkpoint(path: Path, *, read_run: Callable[[dict[str, Any]], Config] | None = None) -> dict[str, Any]:
    require_checkpoint(path)
    hint = "; saved embeddings are embeddings:FILE" * (path.suffix in (".npz", ".npy"))
    content: Any = read_bundle(path, Checkpoint, _WHAT, remedy=f"use another one{hint}")
    with reading(path, _WHAT):
        (read_run or read_trained)(content["config"])
    return dict(content)


def describe_average(checkpoint: dict[str, Any], *, named: bool = True) -> list[str]:
    parents = []
    for parent in checkpoint.get(AVERAGE_OF, []):
        kind = "an average" if AVERAGE_OF in parent else f"seed {parent['config']['seed']}"
        parents.append(f"{one_line(parent['name'])} ({kind})" if named else kind)
    count = "" if named else f"{len(parents)} models: "
    return [f"the weights are the average of {count}{', '.join(parents)}"] if parents else []


def is_head(checkpoint: dict[str, Any]) -> bool:
    return bool(checkpoint["config"].get("model", {}).get("backbone") == NO_BACKBONE)


def model_weights(checkpoint: dict[str, Any]) -> dict[str, Tensor]:
    average = checkpoint["average"]
    weights: dict[str, Tensor] = checkpoint["encoder"] if average is None else average["values"]
    return weights


def image_weights(checkpoint: dict[str, Any]) -> dict[str, Tensor]:
    weights, prefix = model_weights(checkpoint), "image."
    of_tower = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    return of_tower or weights


def load_part(load: Callable[[Any], object], value: Any, source: Path | str, part: str = "encoder") -> None:
    try:
        load(value)
    except Exception as error:
        reason = one_line(str(error) or type(error).__name__)[:200]
        versions = f"use the versions of aurank and timm that wrote it (timm is {version('timm')} here)"
        raise UserError(f"{source} does not fit: {part!r} is refused ({reason}); {versions}, or another one") from error

"""Checkpoints: one file with everything, written whole or not at all, and read without running code."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aurank.errors import AurankError, UserError, first_line
from aurank.files import replacing

FORMAT = 1
CONTENT: dict[str, tuple[type, ...]] = {
    "config": (dict,),
    "manifest": (str,),
    "progress": (dict,),
    "encoder": (dict,),
    "loss": (dict,),
    "miner": (dict,),
    "optimiser": (dict,),
    "scaler": (dict, type(None)),
    "average": (dict, type(None)),
    "tokeniser": (dict, type(None)),
    "sampler": (dict,),
    "random": (list,),
}
"""What a checkpoint holds beside its format number, and of which types."""


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write ``content`` to ``path``, whole or not at all: a failure leaves the old file valid.

    Raises:
        AurankError: the disk is full or the file cannot be written; names the file that is still valid.
    """
    try:
        with replacing(path) as file:
            torch.save({"format": FORMAT, **content}, file)
    except (AurankError, RuntimeError) as error:
        # torch reports a write that failed as a RuntimeError of its own.
        kept = f"the previous {path} is untouched" if path.exists() else "no earlier checkpoint exists"
        raise AurankError(
            f"cannot save {path}: {first_line(error.__cause__ or error)}; {kept}; free some space, then --resume"
        ) from error


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU.

    Raises:
        UserError: the file is missing, truncated, no (complete) aurank checkpoint, or written by a newer version.
    """
    if not path.is_file():
        raise UserError(f"no checkpoint at {path}; a run writes last.pt and best.pt into its --out folder")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UserError(
            f"{path} is truncated or not an aurank checkpoint ({first_line(error)}); use another one"
        ) from error
    if not isinstance(content, dict) or not isinstance(content.get("format"), int):
        raise UserError(
            f"{path} is not an aurank checkpoint: it holds no format number; use last.pt or best.pt of a run"
        )
    if content["format"] > FORMAT:
        raise UserError(
            f"{path} has checkpoint format {content['format']}, this aurank reads up to {FORMAT}; upgrade aurank"
        )
    for name in ("sampler", "miner"):  # written before these had a state
        content.setdefault(name, {})
    content.setdefault("tokeniser", None)
    for name, types in CONTENT.items():
        if not isinstance(content.get(name, ...), types):
            came = f"is of type {type(content[name]).__name__}" if name in content else "is missing"
            expected = " or ".join("nothing" if kind is type(None) else kind.__name__ for kind in types)
            raise UserError(
                f"{path} is not a complete aurank checkpoint: {name!r} {came}, expected {expected}; "
                "use last.pt or best.pt of a run"
            )
    return content


def resolve_checkpoint(path: Path | str) -> Path:
    """The file meant by ``DIR/best``, ``DIR/best.pt`` or ``DIR`` (its best checkpoint)."""
    path = Path(path)
    if path.is_dir():
        return path / "best.pt"
    return path if path.suffix == ".pt" or path.is_file() else path.with_name(path.name + ".pt")


def random_state() -> dict[str, Any]:
    """The state of every global random generator, in plain types that ``weights_only`` loading accepts."""
    numpy_state: Any = np.random.get_state(legacy=False)  # noqa: NPY002 (libraries draw from the global generator)
    return {
        "python": random.getstate(),
        "numpy": {
            **{key: value for key, value in numpy_state.items() if key != "state"},
            "state": {key: np.asarray(value).tolist() for key, value in numpy_state["state"].items()},
        },
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """Put every global random generator back to what ``random_state`` returned."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    numpy_state = dict(state["numpy"])
    inner = dict(numpy_state["state"])
    inner["key"] = np.array(inner["key"], dtype=np.uint32)
    numpy_state["state"] = inner
    np.random.set_state(numpy_state)  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.manual_seed(seed)

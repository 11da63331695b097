"""Resuming: the state that a run goes on from, and putting it back."""

from pathlib import Path
from typing import Any

from aurank.config import Config, config_difference
from aurank.errors import UserError
from aurank.training.checkpoint import load_checkpoint, restore_random_state
from aurank.training.claim import LOCK
from aurank.training.components import read_config
from aurank.training.parts import Parts
from aurank.training.state import Progress

MAY_CHANGE = ("data.workers", "data.root", "data.cache", "train.trackers")
"""Settings a resumed run may change, because they cannot change a result."""


def prepare(config: Config, out: Path, resume: bool) -> dict[str, Any] | None:
    """The state to resume from, or None for a fresh run; refuses a folder or a configuration that does not fit."""
    occupied = out.is_dir() and any(path.name != LOCK for path in out.iterdir())
    if occupied and not resume:
        raise UserError(f"--out {out} is not empty; add --resume to go on with the run in it, or name another folder")
    last = out / "last.pt"
    if not resume or not last.exists():
        if occupied and not (out / "metrics.jsonl").exists() and not (out / "config.yaml").exists():
            raise UserError(f"--resume: {out} holds no aurank run (no last.pt); name the folder of one")
        return None
    state = load_checkpoint(last)
    saved = read_config(state["config"])
    different = [line for line in config_difference(saved, config) if not line.startswith(MAY_CHANGE)]
    if different:
        raise UserError(
            f"{last} was trained with another configuration (saved != given): {'; '.join(different)}; "
            "use the same one, or another --out"
        )
    return state


def restore(parts: Parts, state: dict[str, Any]) -> Progress:
    """Put the parts back to a checkpoint's state; returns where the run stood."""
    ranks = len(state["random"])
    if ranks != parts.accelerator.num_processes:
        raise UserError(
            f"the run used {ranks} process(es) and this one has {parts.accelerator.num_processes}; "
            "resume with the same number"
        )
    parts.module.load_state_dict(state["encoder"])
    parts.loss.load_state_dict(state["loss"])
    if parts.miner is not None:
        parts.miner.load_state_dict(state["miner"])
    parts.optimiser.load_state_dict(state["optimiser"])
    if parts.accelerator.scaler is not None:
        parts.accelerator.scaler.load_state_dict(state["scaler"])
    if parts.average is not None:
        parts.average.load_state_dict(state["average"])
    parts.sampler.load_state_dict(state["sampler"])
    restore_random_state(state["random"][parts.accelerator.process_index])
    return Progress(**state["progress"])

"""Resuming: the state that a run goes on from, whether it belongs to its folder and data, and restoring it."""

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from aurank.config import Config
from aurank.config.messages import show
from aurank.data import Manifest
from aurank.embedding.from_config import with_preprocessing
from aurank.embedding.stored.checkpoint import (
    CONTENT,
    DamagedCheckpointError,
    describe_value,
    fingerprint,
    load_checkpoint,
    load_part,
    load_weights,
    save_checkpoint,
)
from aurank.errors import UserError
from aurank.files import checked, reading
from aurank.training.build import build_schedule
from aurank.training.checkpoints.claim import is_passing
from aurank.training.checkpoints.state import Progress, restore_random_state, seed_stream
from aurank.training.components import read_config
from aurank.training.processes import differences
from aurank.training.sharding import load_state, settle_on_shards
from aurank.training.trainer import Trainer

KEPT = 100  # how many checkpoints train.keep_last may ask for, and older runs have kept


@dataclass(frozen=True)
class Resumed:
    """Where a run goes on from: what the checkpoint ``path`` holds, and notices about that."""

    path: Path
    state: dict[str, Any]
    notices: list[str]
    settled: bool  # last.pt holds this state; else it has to be written before the log is cut

    @property
    def fingerprint(self) -> str:
        """A few words that are the same for the same state."""
        return f"step {self.state['progress']['step']} ({fingerprint(self.state)[:12]})"

    def settle(self, out: Path, keep: int) -> None:
        """Write this state to last.pt unless it is there, for the next resume; keep as many checkpoints as asked."""
        if not self.settled:
            save_checkpoint(out / "last.pt", {name: self.state[name] for name in CONTENT})
        for path in older_checkpoints(out, KEPT)[keep - 1 :]:
            path.unlink(missing_ok=True)


def require_usable(config: Config, out: Path, resume: bool) -> list[Path]:
    """Return the checkpoints to resume from, the newest first; raise UserError for a folder that is not a run's."""
    try:
        occupied = out.is_dir() and not all(is_passing(path) for path in out.iterdir())
    except OSError as error:
        raise UserError(f"cannot read --out {out}: {error.strerror or error}; name another folder") from error
    if occupied and not resume:
        raise UserError(f"--out {out} is not empty; add --resume to go on with the run in it, or name another folder")
    kept = [path for path in (out / "last.pt", *older_checkpoints(out, KEPT)) if path.exists()]
    if occupied and not kept:
        if not (out / "metrics.jsonl").exists() and not (out / "config.yaml").exists():
            raise UserError(f"--resume: {out} holds no aurank run (no last.pt); name the folder of one")
        if _had_checkpoint(config, out):
            raise UserError(
                f"{out / 'last.pt'} is missing, which the run in {out} wrote; put it back, or train into another --out"
            )
    return kept


def _had_checkpoint(config: Config, out: Path) -> bool:
    """Whether the run has written last.pt: it has ended, or its log goes on after the first step that asks for one."""
    if any((out / name).exists() for name in ("timing.json", "report.json")):
        return True
    first, log = min(config.train.checkpoint_every, config.train.steps), out / "metrics.jsonl"
    for line in log.read_bytes().splitlines() if log.is_file() else []:
        with suppress(ValueError, TypeError, KeyError):  # the last line of a killed run may be half written
            record = json.loads(line)
            if record["step"] >= first + (record["split"] != "val"):  # it is written before a validation
                return True
    return False


def prepare_folder(config: Config, out: Path, resume: bool) -> Resumed | None:
    """Return where to resume from, or None for a fresh run; refuse a folder or a configuration that does not fit."""
    kept = require_usable(config, out, resume)
    if not kept:
        return None
    path, state, notices = _newest(out / "last.pt", kept)
    progress = read_progress(state, path)
    saved = read_config(state["config"])
    notices += _changes(path, saved, with_preprocessing(config, saved), progress)
    best = _belonging_best(out, path, progress, extended=config.train.steps > saved.train.steps)
    settled = path.name == "last.pt" and best == progress.best_sha256
    return Resumed(path, {**state, "progress": {**vars(progress), "best_sha256": best}}, notices, settled)


def older_checkpoints(out: Path, keep: int) -> list[Path]:
    """Return where the checkpoints before last.pt are kept, ``keep`` with it (train.keep_last), the newest first."""
    return [out / f"last.{age}.pt" for age in range(1, keep)]


def _newest(last: Path, kept: list[Path]) -> tuple[Path, dict[str, Any], list[str]]:
    """The newest checkpoint that is what was written, its content, and a notice where that is not last.pt."""
    trouble: UserError | None = None
    for path in kept:
        try:
            state = load_checkpoint(path, read_run=read_config)
        except DamagedCheckpointError as error:
            trouble = trouble or error
            continue
        why = f"{last} is missing" if trouble is None else str(trouble)
        step = state["progress"].get("step")
        return path, state, [] if path == last else [f"{why}: the run goes on from {path}, step {step}"]
    assert trouble is not None
    raise trouble


def _changes(path: Path, saved: Config, config: Config, progress: Progress) -> list[str]:
    """Return notices about the settings that changed; raise UserError for one that a resumed run may not change."""
    before, now = saved.train, config.train
    longer = now.steps > before.steps
    patient = before.early_stopping is not None and (now.early_stopping or 10**9) > before.early_stopping
    horizon = ["train.steps:"] * longer + ["train.early_stopping:"] * patient
    refused = [line for line in differences(saved, config) if not line.startswith(tuple(horizon))]
    if refused:
        raise UserError(
            f"{path} was trained with another configuration (saved != given): {'; '.join(refused)}; "
            "use the same one, or another --out"
        )
    if not longer:
        return []
    if now.early_stopping is not None and progress.without_improvement >= now.early_stopping:
        raise UserError(
            f"{path}: the run was ended by early stopping at step {progress.step}, which more train.steps do not "
            f"change; raise train.early_stopping={now.early_stopping} as well, or set it to null"
        )
    old, new = build_schedule(saved), build_schedule(config)
    same = all(old(step) == new(step) for step in range(0, progress.step, max(1, progress.step // 1000)))
    rates = f"the learning rates up to step {progress.step} were those of {before.steps} steps"
    effect = "the same as of the longer run" if same else f"a run of {now.steps} steps from its start would differ"
    return [f"train.steps={now.steps} extends a run of {before.steps}: {rates}, {effect}"]


def _belonging_best(out: Path, path: Path, progress: Progress, *, extended: bool) -> str | None:
    """The fingerprint of best.pt; UserError unless it and metrics.jsonl belong to the checkpoint at ``path``.

    best.pt may be of a later step than that: the run was killed, or goes on from an older checkpoint. The log, not cut
    yet, shows that it is of the same run, and the same step will be trained again. Not so where the run is
    ``extended`` to more steps: it may come to other weights there.
    """
    log, best = out / "metrics.jsonl", out / "best.pt"
    if not _begins(log, progress):
        raise UserError(
            f"{log} does not begin with the {progress.metrics_bytes:,} bytes that {path} recorded: it was deleted or "
            "changed; put it back, or train into another --out"
        )
    if progress.best_sha256 is None or (progress.best_sha256 == "" and not best.exists()):
        return progress.best_sha256
    if not best.exists():
        raise UserError(f"{best} is missing, which {path} recorded; put it back, or train into another --out")
    try:
        content = load_checkpoint(best)
    except DamagedCheckpointError as error:
        why = str(error).rpartition(";")[0]
        raise UserError(f"{why}, which {path} recorded; put it back, or train into another --out") from error
    found = fingerprint(content)
    later = read_progress(content, best)
    newer = later.step > progress.step or (later.step == progress.step and progress.validation_owed)
    if found != progress.best_sha256 and not (newer and _begins(log, later)):
        raise UserError(
            f"{best} is not of this run: {path} recorded another; put its own back, or train into another --out"
        )
    if extended and later.step > progress.step:
        raise UserError(
            f"{best} is of step {later.step}, {path} of step {progress.step}: with more train.steps the run may "
            "come to another; end it with the old train.steps first, then give more"
        )
    return found


def _begins(log: Path, progress: Progress) -> bool:
    """Whether the log begins with what it held then; of older checkpoints, whether it is long enough."""
    if progress.metrics_bytes == 0:
        return True
    begin = log.read_bytes() if log.is_file() else b""
    digest = hashlib.sha256(begin[: progress.metrics_bytes]).hexdigest()
    return len(begin) >= progress.metrics_bytes and progress.metrics_sha256 in (None, digest)


def require_same_data(resumed: Resumed, whole: Manifest, found: dict[str, str]) -> None:
    """Raise UserError unless the data set, and what it ``found`` in its images, is what the run was trained on."""
    state, path = resumed.state, resumed.path
    remedy = "point data.root at the same images, or choose another --out"
    if state["manifest"] != whole.sha256:
        raise UserError(
            f"{path} was trained on other data: manifest {state['manifest'][:12]}…, now {whole.sha256[:12]}…; {remedy}"
        )
    recorded = state["data"] or {}
    words = {"sizes": "the lengths of its files", "sample": "what files of it hold", "sums": "what its files hold"}
    words |= {"prepared": "how they were prepared (data.prepared)", "pixels": "what the folder of data.prepared holds"}
    for name, what in words.items():
        if name in recorded and name in found and recorded[name] != found[name]:
            raise UserError(f"{path} was trained on other images of {whole.name}: {what} changed; {remedy}")


def restore(trainer: Trainer, resumed: Resumed) -> Progress:
    """Restore the components' state from a checkpoint; return how far the run was."""
    state, path = resumed.state, resumed.path
    load_weights(trainer.model, state["encoder"], path)
    if trainer.average is not None:
        load_weights(trainer.measured, (state["average"] or {}).get("values", {}), path, part="average")
    load_optimiser(trainer.optimiser, state["optimiser"], path)
    if trainer.sharded is not None:
        trainer.sharded.spread()
        settle_on_shards(trainer.optimiser, trainer.config)
    for name in ("loss", "miner", "sampler"):
        component = getattr(trainer, name)
        if component is not None:
            load_part(component.load_state_dict, state[name], path, name)
    if trainer.accelerator.scaler is not None:
        load_part(trainer.accelerator.scaler.load_state_dict, state["scaler"], path, "scaler")
    progress = read_progress(state, path)
    trainer.goes_on = progress.step > 0
    before, rank, processes = len(state["random"]), trainer.accelerator.process_index, trainer.accelerator.num_processes
    if rank < before:
        load_part(restore_random_state, state["random"][rank], path, "random")
    else:
        seed_stream(trainer.config.seed, progress.step, 0, rank)
    if before != processes:
        resumed.notices.append(
            f"the run used {before} process(es) and goes on with {processes}: batches and what the loss draws stay the "
            "same; dropout draws other numbers, and a batch norm that is trained sees parts of another size"
        )
    return progress


def load_optimiser(optimiser: Optimizer, saved: dict[str, Any], source: Path | str) -> None:
    """Restore the optimiser's state. torch looks at the number of parameters only, not at their sizes.

    Switches that only a newer torch has, such as `decoupled_weight_decay`, stay as they are; a run that began without
    fused steps goes on without them, to the same bytes.
    """
    groups, held, current = saved.get("param_groups"), saved.get("state"), optimiser.state_dict()["param_groups"]
    trouble: str | None = "expected a list 'param_groups' and a dict 'state'"
    if isinstance(groups, list) and isinstance(held, dict):
        switches = {name: value for name, value in current[0].items() if value is None or isinstance(value, bool)}
        # In the saved order: a run that goes on writes the bytes of one that never stopped.
        groups = [{**group, **switches, **group} if isinstance(group, dict) else group for group in groups]
        saved = {**saved, "param_groups": groups}
        steps = [group["step"] for group in groups if isinstance(group, dict) and "step" in group]
        if steps and isinstance(steps[0], int | Tensor):  # LAMB counts here, from its first step on
            current = [{"step": steps[0], **group} for group in current]
        trouble = _unlike(
            [_but_fused(group) for group in groups], [_but_fused(group) for group in current], "param_groups"
        )
        trouble = trouble or _misfit(held, optimiser)
    if trouble is not None:
        raise UserError(f"{source} does not fit this run: its 'optimiser': {trouble}; use another checkpoint")
    load_part(partial(load_state, optimiser), saved, source, "optimiser")


def _but_fused(group: Any) -> Any:
    return {key: value for key, value in group.items() if key != "fused"} if isinstance(group, dict) else group


def _unlike(saved: Any, own: Any, path: str) -> str | None:
    """Return the first difference in type or length between nested plain values, None where there is none."""
    numbers = (int, float)
    if type(saved) is not type(own) and not (type(saved) in numbers and type(own) in numbers):
        return f"{path} is of type {type(saved).__name__}, expected {type(own).__name__}"
    if isinstance(own, dict):
        if saved.keys() != own.keys():
            return f"{path} has {', '.join(map(show, saved))}, expected {', '.join(map(show, own))}"
        return next(filter(None, (_unlike(saved[key], own[key], f"{path}.{key}") for key in own)), None)
    if isinstance(own, list | tuple):
        if len(saved) != len(own):
            return f"{path} has {len(saved)} values, expected {len(own)}"
        return next(filter(None, (_unlike(saved[at], own[at], f"{path}.{at}") for at in range(len(own)))), None)
    return None


def _misfit(held: dict[Any, Any], optimiser: Optimizer) -> str | None:
    """Return what of the state of single parameters is of another size, None where nothing is.

    Only torch's own optimisers keep the same for each parameter, in its size: of others only the places are checked.
    """
    is_torchs = type(optimiser).__module__.startswith("torch.")
    shapes = [parameter.shape for group in optimiser.param_groups for parameter in group["params"]]
    names = next((set(state) for state in held.values() if isinstance(state, dict)), set())
    for index, state in held.items():
        if type(index) is not int or not 0 <= index < len(shapes):
            return f"state is of a parameter {show(index)}, expected a number below {len(shapes)}"
        if not isinstance(state, dict) or (is_torchs and set(state) != names):
            return f"state.{index} is not a dict of {', '.join(sorted(map(str, names)))}"
        for name, value in state.items() if is_torchs else ():
            if isinstance(value, Tensor) and value.ndim and value.shape != shapes[index]:
                return f"state.{index}.{name} is {describe_value(value)}, expected {list(shapes[index])}"
            if not isinstance(value, Tensor | int | float | None):
                return f"state.{index}.{name} is {describe_value(value)}, expected a tensor"
    return None


def read_progress(checkpoint: dict[str, Any], source: Path | str) -> Progress:
    """Return the progress saved in a checkpoint; raise UserError for values of another type."""
    with reading(source, "the progress of a run", remedy="use another one"):
        # Of before these were recorded: unknown, which is not the same as nothing.
        return checked({"best_sha256": None, "metrics_sha256": None, **checkpoint["progress"]}, Progress)

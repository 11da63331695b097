"""Resuming: whether a checkpoint belongs to its folder, configuration and data, and restoring from it."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from aurank.config import Config
from aurank.data import Manifest
from aurank.embedding.from_config import with_preprocessing
from aurank.embedding.stored.checkpoint import BEST, LAST, load_checkpoint, load_part, load_weights
from aurank.errors import UserError
from aurank.files import checked, reading
from aurank.training.build import build_schedule
from aurank.training.components import read_config
from aurank.training.processes import differences
from aurank.training.sharding import load_state, prepare_for_shards
from aurank.training.state import Progress, restore_random_state, seed_stream
from aurank.training.trainer import Trainer


@dataclass(frozen=True)
class Resumed:
    """What a run goes on from: the checkpoint at ``path``, and notices about it."""

    path: Path
    state: dict[str, Any]
    notices: list[str]

    @property
    def progress(self) -> Progress:
        return read_progress(self.state, self.path)


def require_usable(out: Path, resume: bool) -> None:
    """Raise UserError for a folder that holds something and is not that of a run to resume."""
    try:
        names = {path.name for path in out.iterdir()} if out.is_dir() else set()
    except OSError as error:
        raise UserError(f"cannot read --out {out}: {error.strerror or error}; name another folder") from error
    names = {name for name in names if not name.startswith(".")}  # locks, and temporary files of a killed run
    if names and not resume:
        raise UserError(f"--out {out} is not empty; add --resume to go on with the run in it, or name another folder")
    if names and not names & {LAST, "config.yaml", "metrics.jsonl"}:
        raise UserError(f"--resume: {out} holds no aurank run (no {LAST}); name the folder of one")


def find_checkpoint(config: Config, out: Path) -> Resumed | None:
    """Return what the run in a folder goes on from, None where it begins; UserError for another configuration."""
    path, best = out / LAST, out / BEST
    resumed = None
    if path.exists():
        state = load_checkpoint(path, read_run=read_config)
        progress, saved = read_progress(state, path), read_config(state["config"])
        notices = _changes(path, saved, with_preprocessing(config, saved), progress)
        resumed = Resumed(path, state, notices)
    measured = resumed is not None and bool(resumed.progress.best)
    for file, expected in ((path, best.exists()), (best, measured)):
        if expected and not file.exists():
            raise UserError(f"{file} is missing, which the run wrote; put it back, or train into another --out")
    return resumed


def _changes(path: Path, saved: Config, config: Config, progress: Progress) -> list[str]:
    """Return notices about settings that changed; raise UserError for one that a resumed run may not change."""
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


def require_same_data(resumed: Resumed, whole: Manifest, data: dict[str, str]) -> None:
    """Raise UserError unless the data set and the digests of its images are those that the run was trained on."""
    recorded = {"manifest": resumed.state["manifest"], **(resumed.state["data"] or {})}
    now = {"manifest": whole.sha256, **data}
    words = {
        "manifest": "its manifest",
        "sizes": "the lengths of its files",
        "sample": "what files of it hold",
        "sums": "what its files hold",
        "prepared": "how they were prepared (data.prepared)",
        "pixels": "what the folder of data.prepared holds",
    }
    for name, what in words.items():
        if name in recorded and name in now and recorded[name] != now[name]:
            raise UserError(
                f"{resumed.path} was trained on other images of {whole.name}: {what} changed; point data.root at the "
                "same images, or choose another --out"
            )


def restore(trainer: Trainer, resumed: Resumed) -> Progress:
    """Restore the components' state from a checkpoint; return how far the run was."""
    state, path, progress = resumed.state, resumed.path, resumed.progress
    load_weights(trainer.model, state["encoder"], path)
    if trainer.average is not None:
        load_weights(trainer.measured, (state["average"] or {}).get("values", {}), path, part="average")
    load_part(partial(load_state, trainer.optimiser), state["optimiser"], path, "optimiser")
    if trainer.sharded is not None:
        trainer.sharded.spread()
        prepare_for_shards(trainer.optimiser, trainer.config)
    components = {name: getattr(trainer, name) for name in ("loss", "miner", "sampler")}
    for name, component in {**components, "scaler": trainer.accelerator.scaler}.items():
        if component is not None:
            load_part(component.load_state_dict, state[name], path, name)
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


def read_progress(checkpoint: dict[str, Any], source: Path | str) -> Progress:
    """Return the progress saved in a checkpoint; raise UserError for values of another type."""
    with reading(source, "the progress of a run", remedy="use another one"):
        return checked(checkpoint["progress"], Progress)

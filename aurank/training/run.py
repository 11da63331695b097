"""``train``: from a configuration to a trained, measured and saved embedding, going on from its last checkpoint."""

import json
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from accelerate.state import AcceleratorState
from torch import Tensor

from aurank.config import Config, config_difference, dump_config
from aurank.data import Manifest
from aurank.data.prepared import contents
from aurank.data.readers.given import GIVEN
from aurank.data.saved_embeddings import EmbeddingSource
from aurank.distributed import ProcessGroup, joined
from aurank.embedding.build import build_dataset, open_prepared, with_preprocessing
from aurank.embedding.embedded import evaluation_options, noted, trial_of
from aurank.embedding.locations import BEST, LAST, require_usable
from aurank.embedding.stored.checkpoint import load_checkpoint, load_part, model_weights
from aurank.errors import UserError
from aurank.evaluation.report import Report
from aurank.evaluation.two_way import TwoWayReport
from aurank.files import checked, claimed, reading, remove_temporaries, write_text
from aurank.reporting.results import PAGE, save_results
from aurank.reporting.training_page import training_page
from aurank.training.build import build_splits, read_saved_rows
from aurank.training.components import read_config
from aurank.training.loop import Listener, Loop
from aurank.training.optim import load_state
from aurank.training.state import Progress, restore_random_state, seed_everything, seed_stream
from aurank.training.trainer import Trainer

_NEAREST = 10  # images in a query's list on the page


@dataclass(frozen=True)
class TrainResult:
    """What a run left behind.

    Attributes:
        best: the step and the metrics of the best validation, empty without a validation split.
        report: the exact Report of the test split under the best weights; None when a signal ended the run early,
            without a test split, in every process but the main one, and of pairs whose images cannot be compared.
        stopped_by: the signal that ended the run early.
        two_way: the retrieval between images and texts (model.text), of "all" test pairs and the groups "seen_texts",
            "new_texts" and "new_classes"; empty for images.
        skipped: for each split, how many unreadable images were left out (data.on_error=skip).
        is_main: whether this is the process that writes, and has to print.

    Example:
        >>> result = TrainResult(Path("runs/digits"), steps=150, best={"step": 100.0, "mauprc": 0.9}, report=None)
        >>> result.best["step"]
        100.0
    """

    out: Path
    steps: int
    best: dict[str, float]
    report: Report | None
    stopped_by: int | None = None
    two_way: dict[str, TwoWayReport] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    is_main: bool = True


def train(
    config: Config | Path | str | dict[str, Any],
    out: Path | str,
    resume: bool = False,
    *,
    overrides: Sequence[str] = (),
    dataset: Manifest | None = None,
    page: bool = True,
    listener: Listener | None = None,
) -> TrainResult:
    """Train an embedding as ``config`` says, into the folder ``out``.

    Writes config.yaml, metrics.jsonl, last.safetensors, best.safetensors, timing.json and, at the end, the report.json,
    per_query.parquet of the test split, and report.html, a page to look at; with model.text
    two_way/GROUP for each group of test pairs.

    Args:
        config: a YAML file, or the name of a shipped one (``aurank ls``); from Python a ``Config`` or a dict too.
        resume: go on from the last checkpoint in `out`; without one, begin; a finished run is only measured.
        overrides: dotted changes of the configuration, such as ``optim.lr=1e-4``.
        dataset: the images, as ``aurank.data.from_dataset`` or ``from_table`` makes them, in place of a reader's; or
            the rows of saved embeddings, for a configuration with data.name=embeddings.
        page: whether to write report.html, and with the report the ten nearest images of each query.
        listener: called with an event name and its values, in the main process.

    Raises:
        UserError: a mistake in the configuration, the data or the folder, before any training.
        AurankError: the loss is not finite, or a checkpoint cannot be written.

    Example:
        >>> import tempfile
        >>> config = {
        ...     "data": {"name": "digits", "image_size": 16, "channels": 1},
        ...     "model": {"backbone": "test_resnet", "pretrained": False, "dim": 8},
        ...     "sampler": {"batch": 16}, "loss": {"name": "smooth_ap"}, "optim": {"lr": 1e-3}, "train": {"steps": 2},
        ... }
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     train(config, f"{folder}/run").steps
        2
    """
    if dataset is not None and not isinstance(dataset.source, EmbeddingSource):  # rows need no images
        overrides = [*overrides, f"data.name={GIVEN}"]
    config, out = read_config(config, overrides), Path(out)
    with ExitStack() as stack:
        group = stack.enter_context(training_group(config))
        require_same(config, **{"--out": str(out), "--resume": resume})
        require_usable(out, resume)
        group.barrier()  # nothing is written to `out` before this
        if group.rank == 0:
            stack.enter_context(claimed(out))
            for folder in out.glob("two_way/*"):
                remove_temporaries(folder)
        state, notices = find_checkpoint(config, out)
        step = None if state is None else state["progress"]["step"]
        require_same(config, **{"the step of the checkpoint in --out, a folder that all processes share": step})
        if resume and state is None:
            notices = [f"--resume: {out} holds no checkpoint yet; the run starts anew"]
        started = time.perf_counter()
        return _run(_prepare_loop(config, out, state, notices, listener, dataset), started, page)


def _prepare_loop(
    config: Config,
    out: Path,
    state: dict[str, Any] | None,
    notices: list[str],
    listener: Listener | None,
    dataset: Manifest | None,
) -> Loop:
    seed_everything(config.seed)
    splits, prepared, rows = build_splits(config, dataset), open_prepared(config.data), None
    manifest = splits.manifest
    if prepared is not None:  # raises UserError for an image that was not prepared
        rows = prepared.rows_of(manifest, config.data.channels, on_error=config.data.on_error)
    data = contents(manifest, rows)
    for term in config.terms:
        data |= {name: contents(saved)["sample"] for name, saved in read_saved_rows(term).items()}
    require_same(config, images=manifest.sha256[:12], **{"prepared images": data.get("pixels", "")[:12]})
    if state is not None:
        saved, now = {"manifest": state["manifest"], **(state["data"] or {})}, {"manifest": manifest.sha256, **data}
        if changed := [part for part in saved if part in now and saved[part] != now[part]]:
            raise UserError(
                f"{out / LAST} was trained on other images of {manifest.name} ({', '.join(changed)} changed); point "
                "data.root at the same images and the loss at the same rows, or choose another --out"
            )
    trainer = Trainer(config, splits, out, state=state, prepared=prepared)
    if state is not None:
        progress = restore(trainer, out / LAST, state, notices)
    else:
        progress = Progress()
        if rank := trainer.accelerator.process_index:
            seed_stream(config.seed, 0, 0, rank)  # dropout must differ between processes
    if trainer.accelerator.is_main_process:
        trial_of(manifest).evaluate(**evaluation_options(config))  # wrong options raise before the first step
        write_text(out / "config.yaml", dump_config(trainer.config))
    if config.train.trackers:
        trainer.accelerator.init_trackers("aurank")
    loop = Loop(trainer, out, {"manifest": manifest.sha256, "data": data}, progress=progress, listener=listener)
    if state is not None:
        again = "measuring the test split again" if splits.test is not None else "there is no test split to measure"
        done = f"finished already at step {progress.step}; {again}"
        text = done if loop.finished else f"resumed from step {progress.step} of {config.train.steps}"
        notices = [*notices, text]
    trainer.notices[:0] = notices
    return loop


def _run(loop: Loop, started: float, page: bool) -> TrainResult:
    trainer, progress, out = loop.trainer, loop.progress, loop.out
    for text in trainer.notices:
        loop.listen("notice", {"text": text})
    first_step = progress.step
    stopped_by = loop.run()
    training_seconds = time.perf_counter() - started
    unread = loop.group.all_gather(trainer.train_data.skipped)
    skipped = {"train": len({row for rows in unread for row in rows})}
    if trainer.val_data is not None:
        skipped["validation"] = len(trainer.val_data.skipped)
    report: Report | None = None
    two_way: dict[str, TwoWayReport] = {}
    if stopped_by is None and trainer.splits.test is not None:
        report, two_way, skipped["test"] = _test(loop, trainer.splits.test, page)
    if stopped_by is None and loop.main and page:
        test = None if trainer.splits.test is None else trainer.splits.test.source
        source = None if isinstance(test, EmbeddingSource) else test
        images = trainer.splits.manifest
        facts = [
            ("command", shlex.join(sys.argv)),
            ("date", time.strftime("%Y-%m-%d %H:%M:%S%z")),
            ("model", trainer.config.model.backbone),
            ("data", f"{images.name}: {len(images):,} images, manifest {images.sha256[:16]}"),
        ]
        if two_way:  # the page has lists and curves of images with each other
            facts.append(("measured above", "images with each other"))
        for name, both in two_way.items():
            measured = str(both).splitlines()[: len(both.metrics)]
            facts.append((f"images and texts, {name}", "; ".join(" ".join(line.split()) for line in measured)))
        settings, chosen_by = dump_config(trainer.config), trainer.task.chosen_by
        text = training_page(out, report, settings=settings, chosen_by=chosen_by, source=source, facts=facts)
        write_text(out / PAGE, text)
    if stopped_by is None and loop.main:
        timing = {
            "finished": time.strftime("%Y-%m-%d %H:%M:%S%z"),
            "command": shlex.join(sys.argv),
            "steps": progress.step - first_step,
            "training_seconds": training_seconds,
            "validation_seconds": loop.validation_seconds,
            "test_seconds": time.perf_counter() - started - training_seconds,
        }
        write_text(out / "timing.json", json.dumps(timing, indent=1) + "\n")
        (out / "diverged.json").unlink(missing_ok=True)  # the run got past the step that diverged before
    trainer.accelerator.end_training()
    return TrainResult(out, progress.step, progress.best, report, stopped_by, two_way, skipped, loop.main)


def _test(loop: Loop, test: Manifest, page: bool) -> tuple[Report | None, dict[str, TwoWayReport], int]:
    """Measure the test split under the best weights, all processes together, and save the reports in the first."""
    trainer, out, group = loop.trainer, loop.out, loop.group
    loop.listen("testing", {"images": len(test)})

    step = 0
    if loop.main:
        best = load_checkpoint(out / BEST)
        load_part(trainer.model.load_state_dict, model_weights(best), out / BEST)
        step = read_progress(best, out / BEST).step  # the other processes do not know the step
    group.broadcast(value for value in trainer.model.state_dict().values() if isinstance(value, Tensor))
    read_once = {"cache": "0"} if group.size > 1 else {}  # each of several processes reads its share of the images
    data = build_dataset(trainer.config.data.model_copy(update=read_once), test, train=False)

    def progress(stage: str, done: int, total: int) -> None:
        loop.listen("measuring", {"stage": stage, "done": done, "total": total})

    report, two_way = trainer.task.test(data, trainer.splits.train, progress, neighbours=_NEAREST if page else 0)
    if not loop.main:
        return None, {}, len(data.skipped)
    # No note depends on interruptions: a resumed run writes the same report.
    notes = [
        f"best weights, of step {step}; {len(data):,} {trainer.task.unit} of "
        f"{data.manifest.name}, split test, manifest {data.manifest.sha256[:16]}, {len(data.skipped):,} of them "
        "skipped as unreadable"
    ]
    if data.made_of:
        notes.append(f"embeddings{data.made_of}")
    loop.listen("tested", {"images": len(test), "skipped": len(data.skipped)})
    two_way = {name: noted(both, *notes) for name, both in two_way.items()}
    if report is not None:
        report = noted(report, *notes)
        save_results(report, out)
    for name, both in two_way.items():
        both.save(out / "two_way" / name)
    return report, two_way, len(data.skipped)


# -- the processes of a run -------------------------------------------------------------------------------------------


@contextmanager
def training_group(config: Config) -> Iterator[ProcessGroup]:
    """Join the processes that were launched to train; Accelerate forgets its settings in the end."""
    try:
        with joined(config.train.timeout) as group:
            yield group
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)


def differences(saved: Config, config: Config) -> list[str]:
    """Return the settings that differ, as "key: saved != config", but for those that cannot change a result."""
    harmless: tuple[str, ...] = (
        *("data.workers", "data.root", "data.cache", "data.repeated", "data.odd_classes"),
        *("train.timeout", "train.trackers"),
    )
    if (saved.data.prepared is None) == (config.data.prepared is None):
        harmless += ("data.prepared",)  # the prepared images are compared by content, not by folder
    return [line for line in config_difference(saved, config) if not line.startswith(harmless)]


def require_same(config: Config, **options: object) -> None:
    everyone: list[tuple[Config, dict[str, object]]] = ProcessGroup(None).all_gather((config, options))
    first, first_options = everyone[0]
    for rank, (settings, values) in enumerate(everyone):
        differing = differences(first, settings)
        differing += [
            f"{name}: {first_options[name]} != {values[name]}" for name in values if first_options[name] != values[name]
        ]
        if differing:
            raise UserError(
                f"rank 0 and rank {rank} were started with different options (rank 0 != rank {rank}): "
                f"{'; '.join(differing)}; start every process with the same command"
            )


# -- going on from a checkpoint ---------------------------------------------------------------------------------------


def find_checkpoint(config: Config, out: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """Return what the run in a folder goes on from, with notices, None where it begins."""
    path, best = out / LAST, out / BEST
    state, notices, measured = None, [], False
    if path.exists():
        state = load_checkpoint(path, read_run=read_config)
        progress, saved = read_progress(state, path), read_config(state["config"])
        notices, measured = _changes(path, saved, with_preprocessing(config, saved), progress), bool(progress.best)
    for file, expected in ((path, best.exists()), (best, measured)):
        if expected and not file.exists():
            raise UserError(f"{file} is missing, which the run wrote; put it back, or train into another --out")
    return state, notices


def _changes(path: Path, saved: Config, config: Config, progress: Progress) -> list[str]:
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
    rates = f"the learning rates up to step {progress.step} were those of {before.steps} steps"
    return [f"train.steps={now.steps} extends a run of {before.steps}: {rates}"] * longer


def restore(trainer: Trainer, path: Path, state: dict[str, Any], notices: list[str]) -> Progress:
    progress = read_progress(state, path)
    load_part(trainer.model.load_state_dict, state["encoder"], path)
    if trainer.average is not None:
        load_part(trainer.measured.load_state_dict, (state["average"] or {}).get("values", {}), path, "average")
    load_part(partial(load_state, trainer.optimiser), state["optimiser"], path, "optimiser")
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
        notices.append(
            f"the run used {before} process(es) and goes on with {processes}: batches and what the loss draws stay the "
            "same; dropout draws other numbers, and a batch norm that is trained sees parts of another size"
        )
    return progress


def read_progress(checkpoint: dict[str, Any], source: Path | str) -> Progress:
    with reading(source, "the progress of a run", remedy="use another one"):
        return checked(checkpoint["progress"], Progress)

"""``train``: from a configuration to a trained, measured and saved embedding."""

import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.state import PartialState
from accelerate.tracking import get_available_trackers
from accelerate.utils import gather_object
from torch import nn

from aurank.config import Config, dump_config
from aurank.data import Manifest, MultiCrop, Sampler
from aurank.data.checks.contents import contents
from aurank.embedding.checkpoint import load_checkpoint, model_weights
from aurank.embedding.evaluation_options import try_evaluation
from aurank.embedding.from_config import (
    build_dataset,
    build_encoder,
    fill_preprocessing,
)
from aurank.embedding.image_text_pairs import require_pairs, texts_of
from aurank.embedding.load_weights import load_weights
from aurank.embedding.towers import build_towers
from aurank.errors import UserError
from aurank.evaluation.report import Report
from aurank.evaluation.two_way import TwoWayReport
from aurank.files import write_text
from aurank.losses.core.training_protocols import Reencodes
from aurank.reporting import save_results
from aurank.training.build import (
    Splits,
    build_loss,
    build_miner,
    build_optimiser,
    build_sampler,
    build_schedule,
    build_splits,
    check_image_size,
)
from aurank.training.callbacks import Reencode, offer_reencoding
from aurank.training.claim import claimed, remove_temporaries
from aurank.training.components import read_config
from aurank.training.fitting import read_progress
from aurank.training.gradient_cache import GradientCache
from aurank.training.loop import Listener, Loop
from aurank.training.mining import NearestImages
from aurank.training.optim import WeightAverage
from aurank.training.parts import Parts
from aurank.training.processes import joined, launched, on_cpu, require_same, together
from aurank.training.random_state import seed_everything
from aurank.training.resume import Resumed, prepare, require_same_data, require_usable, restore
from aurank.training.state import Progress
from aurank.training.tasks import (
    ImageTask,
    PairTask,
    Task,
    Tested,
)


@dataclass(frozen=True)
class TrainResult:
    """What a run left behind.

    ``report`` is the exact Report of the test split under the best weights, None when a signal (``stopped_by``) ended
    the run early, where there is no test split (data.train_labels=image), and in every process but the main one; of
    pairs also where the labels of their images cannot be compared. ``two_way``: the retrieval between images and texts
    (model.text), of "all" test pairs and the groups "seen_texts", "new_texts" and "new_classes"; empty for images.
    ``best`` holds the step and the metrics of the best validation, empty without a validation split. ``skipped``
    counts, for each split, the unreadable images that were left out, as data.on_error=skip wants it. ``is_main``:
    whether this is the process that writes, and has to print.
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
    listener: Listener | None = None,
) -> TrainResult:
    """Train an embedding as ``config`` says, into the folder ``out``.

    Writes config.yaml, metrics.jsonl, last.pt, best.pt, timing.json and, at the end, the report.json, per_query.parquet
    and pr_curve.png of the test split (data.train_labels=image may be without one), and with model.text two_way/GROUP
    for each group of test pairs.

    Args:
        config: a ``Config``, the path of a YAML file, the name of a shipped configuration, or a plain dict.
        resume: go on from ``out/last.pt``; a run that is already finished is only measured again.
        overrides: dotted changes of the configuration, ``["optim.lr=1e-4", "train.steps=600"]``.
        listener: called with an event name and its values, in the main process.

    Raises:
        UserError: a mistake in the configuration, the data or the folder, before any training.
        AurankError: the loss is not finite, or a checkpoint cannot be written.
    """
    if isinstance(config, Config):
        config = read_config(config.model_dump(mode="json"), overrides) if overrides else config
    else:
        config = read_config(config, overrides)
    out = Path(out)
    with ExitStack() as held:
        held.enter_context(joined(config.train.timeout))
        require_same(config, **{"--out": str(out), "--resume": resume})

        def begin() -> Resumed | None:
            require_usable(config, out, resume)  # before anything is written there
            main = PartialState().is_main_process
            if main:
                held.enter_context(claimed(out))
            found = prepare(config, out, resume)
            if main:
                remove_temporaries(out)
            return found

        resumed = together(begin)
        shared = "the checkpoint in --out, a folder that all processes share"
        require_same(config, **{shared: None if resumed is None else resumed.fingerprint})
        anew = [f"--resume: {out} holds no checkpoint yet; the run starts anew"] if resume else []
        return _train(config, out, resumed, listener, anew if resumed is None else resumed.notices)


def _train(
    config: Config, out: Path, resumed: Resumed | None, listener: Listener | None, notices: Sequence[str]
) -> TrainResult:
    started = time.perf_counter()
    seed_everything(config.seed)
    splits = together(lambda: build_splits(config.data, seed=config.seed, texts=config.model.text is not None))
    data = contents(splits.whole)
    require_same(config, images=splits.whole.sha256[:12])
    if resumed is not None:
        require_same_data(resumed, splits.whole, data)
    parts = build_parts(config, splits, out, None if resumed is None else resumed.state)
    parts.data = data
    progress = Progress() if resumed is None else restore(parts, resumed)
    if parts.accelerator.is_main_process:
        if resumed is not None:
            resumed.settle(out, config.train.keep_last)
        try_evaluation(config)
        write_text(out / "config.yaml", dump_config(parts.config))
    if config.train.trackers:
        parts.accelerator.init_trackers("aurank")
    loop = Loop(parts, out, progress=progress, listener=listener)
    if resumed is not None:
        again = "measuring the test split again" if splits.test is not None else "there is no test split to measure"
        done = f"finished already at step {progress.step}; {again}"
        notices = [*notices, done if loop.finished else f"resumed from step {progress.step} of {config.train.steps}"]
    for text in [*notices, *remarks(parts, splits)]:
        loop.listen("notice", {"text": text})
    first_step = progress.step
    stopped_by = loop.run()
    training_seconds = time.perf_counter() - started
    skipped = {"train": len(set(gather_object(parts.train_data.skipped)))}
    if parts.val_data is not None:
        skipped["validation"] = len(parts.val_data.skipped)
    tested = Tested(None, {})
    if stopped_by is None and loop.main:
        if splits.test is not None:
            loop.listen("testing", {"images": len(splits.test)})
            tested, skipped["test"] = _test(loop, splits, splits.test, out)
            loop.listen("tested", {"images": len(splits.test), "skipped": skipped["test"]})
            if tested.report is not None:
                save_results(tested.report, out)
            for name, found in tested.two_way.items():
                found.save(out / "two_way" / name)
        timing = {
            "finished": time.strftime("%Y-%m-%d %H:%M:%S%z"),
            "command": shlex.join(sys.argv),
            "steps": progress.step - first_step,
            "training_seconds": training_seconds,
            "validation_seconds": loop.validation_seconds,
            "test_seconds": time.perf_counter() - started - training_seconds,
        }
        write_text(out / "timing.json", json.dumps(timing, indent=1) + "\n")
    parts.accelerator.end_training()
    return TrainResult(out, progress.step, progress.best, tested.report, stopped_by, tested.two_way, skipped, loop.main)


def build_parts(config: Config, splits: Splits, out: Path | None = None, state: dict[str, Any] | None = None) -> Parts:
    """Everything the loop drives, on the device that Accelerate chooses.

    state: that a run resumes from, which is not restored here; the first weights are at random then.
    """
    if config.train.early_stopping is not None and splits.val is None:
        raise UserError(
            f"train.early_stopping={config.train.early_stopping} needs a validation split and {splits.whole.name} has "
            "none; set data.validation_fraction above 0, or train.early_stopping=null"
        )
    config = fill_preprocessing(config, state)
    accelerator = _accelerator(config, out)
    notices: list[str] = []
    task = _task(config, splits, state, notices.append)
    encoder = task.encoder
    loss = build_loss(config, splits.train).to(accelerator.device)
    miner = build_miner(config.miner, splits.train)
    optimiser = build_optimiser(config, task.model, loss)
    nearest = NearestImages(
        encoder,
        partial(build_dataset, config.data, splits.train, train=False),
        len(splits.train),
        accelerator=accelerator,
        batch=config.evaluate.batch,
        workers=config.data.workers,
    )
    processes = accelerator.num_processes
    sampler = build_sampler(
        config, splits.train, rank=accelerator.process_index, world_size=processes, neighbours=nearest
    )
    train_data = build_dataset(config.data, splits.train, train=True, seed=config.seed)
    val_data = None if splits.val is None else build_dataset(config.data, splits.val, train=False)
    # Accelerate puts autocast into the forward of what it is given; the encoder inside stays as it is, to be measured.
    model, prepared = accelerator.prepare(task.wrapped(), optimiser)
    check_image_size(encoder, config, accelerator.device)
    parts = Parts(
        config=config,
        accelerator=accelerator,
        task=task,
        encoder=model,
        loss=loss,
        miner=None if miner is None else miner.to(accelerator.device),
        optimiser=prepared,
        schedule=build_schedule(config),
        sampler=sampler,
        train_data=train_data,
        val_data=val_data,
        manifest_hash=splits.whole.sha256,
        notices=notices,
        average=None if config.train.ema is None else WeightAverage(task.model, config.train.ema),
        cache=_gradient_cache(config, model, sampler),
    )
    if isinstance(task, PairTask):  # what a loss of two sides wants anew is no image alone
        if any(isinstance(part, Reencodes) and part.wants_reencode for part in parts.loss_modules):
            raise UserError(
                'out_of_batch=reencode embeds images alone, which model.text has no use for: set it to "stored"'
            )
        return parts
    at_most = config.train.micro_batch or config.sampler.batch * config.data.views
    plain = accelerator.unwrap_model(model)
    offer_reencoding(parts.loss_modules, Reencode(plain, train_data, dim=encoder.dim, at_most=at_most))
    return parts


def _task(config: Config, splits: Splits, state: dict[str, Any] | None, say: Callable[[str], None]) -> Task:
    """What the configuration trains, with its first weights."""
    load = state is None
    if config.model.text is None:
        return ImageTask(config, build_encoder(config.model, channels=config.data.channels, load=load, say=say))
    texts, saved = texts_of(splits.train), None if state is None else state["tokeniser"]
    for split in (splits.val, splits.test):
        if split is not None:
            require_pairs(split)
    return PairTask(config, build_towers(config, texts, saved=saved, load=load, say=say), splits.train)


def _gradient_cache(config: Config, encoder: nn.Module, sampler: Sampler) -> GradientCache | None:
    micro_batch = config.train.micro_batch
    if micro_batch is None or micro_batch * sampler.world_size >= sampler.largest_batch * config.data.views:
        return None
    if config.model.text is not None and sampler.world_size > 1:
        # A chunk is of one side, and processes that exchange gradients expect those of both.
        raise UserError(
            f"train.micro_batch={micro_batch} with model.text works in one process and there are {sampler.world_size}; "
            "set train.micro_batch=null"
        )
    return GradientCache(encoder, micro_batch)


def remarks(parts: Parts, splits: Splits) -> list[str]:
    """What to say of settings that have another effect, or less of one, than their values promise."""
    config, small = parts.config, parts.train_data.pipeline
    asked, possible, held = parts.config.sampler.batch, parts.sampler.largest_batch, parts.train_data.manifest
    micro_batch, processes = parts.config.train.micro_batch, parts.sampler.world_size
    unit, found = parts.task.unit, [*parts.notices, *parts.task.remarks()]
    if possible < asked:
        found.append(
            f"batches have {possible} {unit} in place of sampler.batch={asked}: that is all that the sampler can draw "
            f"from {len(held):,} training {unit} of {len(held.classes):,} classes"
        )
    if micro_batch is not None and parts.cache is None:
        found.append(
            f"train.micro_batch={micro_batch} has no effect: batches of {possible * parts.views} images over "
            f"{processes} process(es) are no larger"
        )
    if isinstance(small, MultiCrop) and parts.views <= small.global_views:
        found.append(
            f"there are no small crops: the first global_views={small.global_views} views are large ones, and "
            f"data.views={parts.views}"
        )
    if config.optim.temperature_lr is not None and not any(one.requires_grad for one in parts.loss.parameters()):
        found.append(
            f"optim.temperature_lr={config.optim.temperature_lr:g} has no effect: the loss {config.loss.name} has no "
            "parameters of its own"
        )
    if splits.test is None:
        best = "best is the newest checkpoint" if splits.val is None else "best is that of the validation split"
        found.append(f"{splits.whole.name} has no test split: nothing is measured at the end, {best}")
    return found


def _accelerator(config: Config, out: Path | None) -> Accelerator:
    available = {str(tracker) for tracker in get_available_trackers()}
    missing = [name for name in config.train.trackers if name not in available]
    if missing:
        packages = " ".join(name.replace("_", "-") for name in missing)
        raise UserError(
            f"train.trackers: {', '.join(missing)} cannot be used, its package is not installed; "
            f"pip install {packages}, or leave it out"
        )
    trackers = list(config.train.trackers) if out is not None else []
    try:
        accelerator = Accelerator(
            cpu=on_cpu(),
            mixed_precision=config.train.mixed_precision,
            gradient_accumulation_steps=config.train.accumulate,
            log_with=trackers or None,
            project_dir=None if out is None else str(out),
        )
    except (ValueError, ImportError) as error:
        raise UserError(
            f"train.mixed_precision={config.train.mixed_precision}, train.trackers={trackers}: {error}; "
            "fp16 needs a GPU, trackers need their package (pip install 'aurank[trackers]')"
        ) from error
    if accelerator.num_processes != launched():
        raise UserError(
            f"{launched()} processes were launched and Accelerate joins {accelerator.num_processes}: launch with "
            "torchrun or accelerate launch, one process for each GPU"
        )
    return accelerator


def _test(loop: Loop, splits: Splits, test: Manifest, out: Path) -> tuple[Tested, int]:
    """What is measured of the test split under the best weights, and how many of its images were skipped."""
    config = loop.parts.config
    loop.parts.average = None
    best = load_checkpoint(out / "best.pt")
    load_weights(loop.parts.module, model_weights(best), out / "best.pt")
    data = build_dataset(config.data, test, train=False)
    tested = loop.parts.task.test(data, splits.train)
    # Nothing of this process's own course, such as what training skipped: a resumed run writes the same report.
    note = (
        f"best weights, of step {read_progress(best, out / 'best.pt').step}; {len(data):,} {loop.parts.task.unit} of "
        f"{data.manifest.name}, split test, manifest {data.manifest.sha256[:16]}, {len(data.skipped):,} of them "
        "skipped as unreadable"
    )
    return tested.noted(note), len(data.skipped)

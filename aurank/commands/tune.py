"""``tune``: a search for the settings of a training, by class-disjoint cross-validation on its training classes."""

import dataclasses
import json
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import NonNegativeInt, PositiveInt
from typing_extensions import TypedDict

from aurank.config import Config, dump_config
from aurank.config.load import read_mapping
from aurank.config.schema import known_keys
from aurank.data import Manifest
from aurank.data.readers.given import GIVEN
from aurank.data.saved_embeddings import EmbeddingSource
from aurank.distributed import launched
from aurank.embedding.image_selection import read_whole
from aurank.embedding.select_images import class_folds, require_distinct
from aurank.errors import Diverged, UserError, first_line
from aurank.files import claimed, csv_text, read_record, reading, write_text
from aurank.lazy import import_library
from aurank.names import meant, nearest, signature
from aurank.ranges import Range, range_of, ranges_of
from aurank.reporting.page import duration
from aurank.reporting.tune_page import tune_page
from aurank.training.components import CHOICES, read_config
from aurank.training.optim import RATES
from aurank.training.profile import profile_training
from aurank.training.run import TrainResult, differences, train

Ranges = Mapping[str, Range | None]
Line = dict[str, Any]


@dataclass(frozen=True)
class Tuned:
    """What a search found.

    Attributes:
        overrides: the settings of the best trial, such as "optim.lr=0.00031".
        value: its validation mAUPRC, mean over the folds.
        at_end: settings within 5 % of an end of their range, beyond which there may be better ones.
        trials: how many there were, pruned and failed ones too.

    Example:
        >>> Tuned(("optim.lr=0.001",), 0.64, at_end=(), trials=40).value
        0.64
    """

    overrides: tuple[str, ...]
    value: float
    at_end: tuple[str, ...]
    trials: int


def tune(
    config: Config | Path | str | dict[str, Any],
    out: Path,
    overrides: Sequence[str] = (),
    *,
    dataset: Manifest | None = None,
    ranges: Ranges | None = None,
    trials: PositiveInt = 40,
    folds: PositiveInt = 3,
    by: Literal["class", "super_category"] = "class",
    seed: NonNegativeInt = 0,
    listener: Callable[[Line], None] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Tuned:
    """Search the settings with the best mean validation mAUPRC over class-disjoint folds of the training classes.

    The first trial is the configuration itself, as far as ranges hold its values; Optuna's tree-structured Parzen
    estimator chooses the others, and those below the median at a fold or a validation are pruned. Settings and median
    follow from the trials that ended before. The same call goes on with a search that was stopped. Test images are
    never looked at.

    Args:
        config, overrides: as for ``aurank.train``.
        out: folder of the search: search.json with its trials; at the end best.yaml, trials.csv and tune.html.
        dataset: the images, in place of a reader's; its split "test" is left aside.
        ranges: by key, in place of the declared ones or beside them; None leaves one out.
        trials: trials in all, with those that ended before.
        folds: parts of the training classes, each held out once.
        by: what a fold holds out whole.
        seed: seed of the folds and the search; trainings have the configuration's own.
        listener: called at a trial's end with its number, state, value, folds, settings, error, and the best value.
        progress: called after each step with what is counted, and how many the search has done of about how many.
        say: given a line before the first trial: how long all may take, by some steps of the configuration itself.

    Raises:
        UserError: the ranges, the data or the folder do not fit, or the configuration itself does not train.
        Diverged: no trial came to an end.

    Example:
        >>> import tempfile
        >>> small = ["model.backbone=test_resnet", "train.steps=2", "optim.warmup_steps=0"]
        >>> config = read_config("digits/soprc", small)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     tune(config, Path(folder), trials=1, folds=2).trials
        1
    """
    config = read_config(config, overrides)
    searched = searched_ranges(config, ranges or {})
    if launched() > 1:
        raise UserError("aurank tune trains a trial in one process: no launcher")
    manifest = read_whole(config.data) if dataset is None else dataset
    require_distinct(manifest, config.data)
    training = manifest.select(manifest.splits != "test")
    fold = class_folds(training, folds, by=by, seed=seed)
    data = [dataclasses.replace(training, splits=np.where(fold == each, "val", "train")) for each in range(folds)]
    settings = {"config": config.model_dump(mode="json"), "folds": folds, "by": by, "seed": seed}
    settings |= {"images": training.sha256[:16], "ranges": {key: str(each) for key, each in searched.items()}}
    with claimed(out):
        search = _Search(config, out, searched, data, trials, settings, progress)
        if say is not None and (left := folds * (trials - len(search.trials))) > 0:
            steps = left * config.train.steps
            with suppress(UserError, Diverged):  # the ranges may leave out what is wrong with the configuration itself
                step = sum(profile_training(config, dataset=data[0], steps=2).phases.values())
                say(f"{steps:,} training steps in {left:,} trainings: about {duration(step * steps)}, and validations")
        while len(search.trials) < trials:
            line = search.run()
            if listener is not None:
                listener(line)
        return search.conclude()


# -- ranges -----------------------------------------------------------------------------------------------------------


def declared_ranges(config: Config) -> dict[str, Range]:
    """Return the ranges that optimiser, sampler, miner and loss (but no sum of losses) declare, by key."""
    ranges = {key: each for key, field in known_keys().items() if (each := range_of(field.metadata)) is not None}
    ranges["optim.lr"] = RATES.get(config.optim.name, ranges["optim.lr"])
    for path in ("sampler", "miner", "loss"):
        if name := getattr(getattr(config, path), "name", None):
            params = ranges_of(CHOICES[path].table[name])
            ranges |= {f"{path}.params.{argument}": each for argument, each in params.items()}
    return ranges


def searched_ranges(config: Config, changes: Ranges) -> dict[str, Range]:
    """Return the declared ranges that fit the configuration, with the changes."""
    ranges = declared_ranges(config)
    if wrong := [key for key, each in changes.items() if each is None and key not in ranges]:
        raise UserError(f"ranges: {wrong[0]} has none that could be left out{meant(nearest(wrong[0], ranges))}")
    searched = {key: each for key, each in changes.items() if each is not None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for key, each in searched.items():
            for end in each.choices or (each.low, each.high):
                read_config(config, [f"{key}={json.dumps(end)}"])
        for key in ranges.keys() - changes.keys():
            each, choices = ranges[key].including(value_of(config, key)), []
            for choice in each.choices:  # some may not go with other settings
                with suppress(UserError):
                    read_config(config, [f"{key}={json.dumps(choice)}"])
                    choices.append(choice)
            if key == "sampler.params.per_class":  # a batch holds two classes or more
                choices = [choice for choice in choices if 2 * choice <= config.sampler.batch]
            if not each.choices or len(choices) > 1:
                searched[key] = dataclasses.replace(each, choices=tuple(choices))
    if not searched:
        raise UserError("there is no range to search in; name one with --ranges")
    return {key: searched[key] for key in (ranges | searched) if key in searched}


def read_ranges(file: Path) -> dict[str, Range | None]:
    ranges: dict[str, Range | None] = {}
    for key, value in read_mapping(file, {}).items():
        with reading(f"{file}: {key}", "a range"):
            ranges[key] = None if value is None else Range.read(value)
    return ranges


def value_of(config: Config, key: str) -> Any:
    path, _, argument = key.rpartition(".params.")
    section = attrgetter(path or key)(config)
    if not path or argument in section.params:
        return section.params[argument] if path else section
    arguments = signature(CHOICES[path].table[section.name])[0] if path in CHOICES else {}
    return arguments[argument].default if argument in arguments else None


# -- the search -------------------------------------------------------------------------------------------------------


class _Trial(TypedDict):
    number: int
    state: Literal["complete", "pruned", "failed"]
    value: float | None  # the mean of the folds of a complete trial
    params: Line  # as Optuna drew them
    folds: list[float]
    validations: dict[int, float]  # what pruning compares, by how many validations there had been
    settings: dict[str, str]
    seconds: float
    error: str


class _Saved(TypedDict):
    settings: Line
    trials: list[_Trial]


@dataclass(eq=False)
class _Search:
    config: Config
    out: Path
    ranges: dict[str, Range]
    data: Sequence[Manifest]
    count: int
    settings: Line
    progress: Callable[[str, int, int], None] | None

    def __post_init__(self) -> None:
        self.optuna = optuna = import_library("optuna", "aurank tune")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        states = optuna.trial.TrialState
        self.states = {"complete": states.COMPLETE, "pruned": states.PRUNED, "failed": states.FAIL}
        self.spaces = {key: self._space(each) for key, each in self.ranges.items()}
        values = {key: value_of(self.config, key) for key in self.ranges}
        self.own = {key: value for key, value in values.items() if value in self.ranges[key]}
        self.file = self.out / "search.json"
        self.study = optuna.create_study(direction="maximize", pruner=optuna.pruners.MedianPruner())
        self.trials = self._saved_trials() if self.file.exists() else []
        self._save()

    def _space(self, each: Range) -> Any:
        kinds = self.optuna.distributions
        if each.choices:
            return kinds.CategoricalDistribution([json.dumps(choice) for choice in each.choices])
        is_whole = isinstance(each.low, int) and isinstance(each.high, int)
        return (kinds.IntDistribution if is_whole else kinds.FloatDistribution)(each.low, each.high, log=each.log)

    def _saved_trials(self) -> list[Line]:
        title, remedy = "a search", "name another --out"
        saved = read_record(self.file, _Saved, title, named="aurank search", version=3, remedy=remedy)
        before = saved["settings"]
        with reading(self.file, title, remedy=remedy):
            differing = differences(read_config(before["config"]), self.config)
            others = {key: value for key, value in self.settings.items() if key != "config"}
            differing += [f"{key}: {before[key]} != {value}" for key, value in others.items() if before[key] != value]
            if differing:
                remedy = "search with the same settings, or name another --out"
                raise UserError(f"{self.out} holds another search (saved != given): {'; '.join(differing)}; {remedy}")
            for trial in saved["trials"]:
                ended = self.optuna.trial.create_trial(
                    state=self.states[trial["state"]],
                    value=trial["value"],
                    params=trial["params"],
                    distributions=self.spaces,
                    intermediate_values=trial["validations"],
                )
                self.study.add_trial(ended)
        return [dict(trial) for trial in saved["trials"]]

    def _save(self) -> None:
        content = {"format": "aurank search", "version": 3, "settings": self.settings, "trials": self.trials}
        write_text(self.file, json.dumps(content, indent=1) + "\n")

    def run(self) -> Line:
        number, started = len(self.trials) + 1, time.perf_counter()
        trial, folds = self._draw(number), list[float]()
        params, state, error = trial.params, "complete", ""
        settings = {key: f"{value:.4g}" if isinstance(value, float) else str(value) for key, value in params.items()}
        if number == 1:  # the configuration itself: its values are not rounded
            settings |= {key: json.dumps(value) for key, value in self.own.items()}
        try:
            self._train(trial, settings, number, folds)
        except self.optuna.TrialPruned:
            state = "pruned"
        except (Diverged, UserError) as reason:
            if number == 1 and isinstance(reason, UserError) and self.own.keys() == self.ranges.keys():
                raise  # the configuration itself is wrong
            state, error = "failed", first_line(reason)
        line = {"number": number, "state": state, "value": float(np.mean(folds)) if state == "complete" else None}
        line |= {"params": params, "folds": folds, "validations": self.study.trials[-1].intermediate_values}
        line |= {"settings": settings, "seconds": round(time.perf_counter() - started, 2), "error": error}
        self.study.tell(trial, line["value"], state=self.states[state])
        self.trials.append(line)
        self._save()
        return {**line, "best": max((each["value"] for each in self._complete), default=None)}

    @property
    def _complete(self) -> list[Line]:
        return [line for line in self.trials if line["value"] is not None]

    def _draw(self, number: int) -> Any:
        # The settings follow from the number and from the trials that have ended.
        random = int(np.random.default_rng([self.settings["seed"], number - 1]).integers(2**31))
        self.study.sampler = self.optuna.samplers.TPESampler(seed=random, n_startup_trials=min(10, self.count // 3))
        if number == 1:
            first = {key: json.dumps(value) if self.ranges[key].choices else value for key, value in self.own.items()}
            self.study.enqueue_trial(first)
        return self.study.ask(self.spaces)

    def _train(self, trial: Any, settings: Mapping[str, str], number: int, folds: list[float]) -> None:
        config = read_config(self.config, _overrides(settings))
        validations = -(-config.train.steps // config.train.validate_every)  # of a fold
        before, size = number - 1, len(self.data) * self.config.train.steps  # a trial, unless it is a shorter one

        def listen(kind: str, metrics: Line) -> None:
            if kind == "step" and self.progress is not None:
                part = (len(folds) + metrics["step"] / config.train.steps) / len(self.data)
                self.progress("training steps", round((before + part) * size), self.count * size)
            elif kind == "validation":
                scores.append(metrics["mauprc"])
                step = len(folds) * validations + len(scores)
                trial.report(float(np.mean([*folds, max(scores)])), step)
                if number > 1 and step < validations * len(self.data) and trial.should_prune():
                    raise self.optuna.TrialPruned

        for data in self.data:
            scores: list[float] = []
            folds.append(train_aside(config, self.out / "running", data, listener=listen).best["mauprc"])

    def conclude(self) -> Tuned:
        lines = self.trials
        if not (done := self._complete):
            error = next(filter(None, (line["error"] for line in lines)), "all were pruned")
            raise Diverged(f"none of {len(lines)} trials came to an end: {error}")
        importance: dict[str, float] = {}
        if len(done) > 4 and len({line["value"] for line in done}) > 1:
            evaluator = self.optuna.importance.FanovaImportanceEvaluator(seed=self.settings["seed"])
            importance = self.optuna.importance.get_param_importances(self.study, evaluator=evaluator)
        best = max(done, key=lambda line: line["value"])
        overrides = _overrides(best["settings"])
        near = tuple(key for key, text in best["settings"].items() if self.ranges[key].at_end(json.loads(text)))
        write_text(self.out / "best.yaml", dump_config(read_config(self.config, overrides)))
        columns = ["number", "state", "value", "seconds", *self.ranges, "error"]
        rows = ([{**line, **line["settings"]}.get(name, "") for name in columns] for line in lines)
        write_text(self.out / "trials.csv", csv_text([columns, *rows]))
        write_text(self.out / "tune.html", tune_page(lines, self.ranges, importance, near, f"Search: {self.out}"))
        return Tuned(overrides, best["value"], near, len(lines))


def train_aside(config: Config, folder: Path, dataset: Manifest, **options: Any) -> TrainResult:
    """Train on images that were read, in a folder that nothing is left of."""
    given = {} if isinstance(dataset.source, EmbeddingSource) else {"name": GIVEN, "params": {}}
    data, training = config.data.model_copy(update=given), config.train.model_copy(update={"trackers": []})
    config = config.model_copy(update={"data": data, "train": training})
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
    try:
        result = train(config, folder, dataset=dataset, page=False, **options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if result.stopped_by is not None:
        signal.raise_signal(result.stopped_by)
        raise KeyboardInterrupt
    return result


def _overrides(settings: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{key}={text}" for key, text in settings.items())

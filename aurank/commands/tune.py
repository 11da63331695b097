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
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from aurank.config import Config, dump_config
from aurank.config.load import read_mapping
from aurank.config.schema import known_keys
from aurank.data import Manifest
from aurank.data.manifest import ValidationUnit
from aurank.data.readers.given import GIVEN
from aurank.data.saved_embeddings import EmbeddingSource
from aurank.distributed import launched
from aurank.embedding.named import read_whole
from aurank.embedding.select_images import class_folds, require_distinct
from aurank.errors import Diverged, UserError
from aurank.extras import import_library
from aurank.files import InUse, claimed, csv_text, reading, write_text
from aurank.names import meant, nearest, signature
from aurank.ranges import Range, range_of, ranges_of
from aurank.reporting.tune_page import tune_page
from aurank.training.components import CHOICES, read_config
from aurank.training.optim import RATES
from aurank.training.run import differences, train

Ranges = Mapping[str, Range | None]
Line = dict[str, Any]
_STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
_PAUSE = 0.3  # seconds between two looks at the trials of other processes


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
    config: Config,
    out: Path,
    *,
    dataset: Manifest | None = None,
    ranges: Ranges | None = None,
    trials: int = 40,
    folds: int = 3,
    by: ValidationUnit = "class",
    seed: int = 0,
    listener: Callable[[Line], None] | None = None,
) -> Tuned:
    """Search the settings with the best mean validation mAUPRC over class-disjoint folds of the training classes.

    The first trial is the configuration itself, as far as ranges hold its values; Optuna's tree-structured Parzen
    estimator chooses the others, and those below the median at a fold or a validation are pruned. Processes with the
    same ``out`` share a search, which goes on where it was left, and each returns once all trials have ended. Test
    images are never looked at.

    Args:
        out: folder of the search, which gets study.log and, at the end, best.yaml, trials.csv and tune.html.
        dataset: the images, in place of a reader's; its split "test" is left aside.
        ranges: by key, in place of the declared ones or beside them; None leaves one out.
        trials: how many in all, over all processes.
        by: what a fold holds out whole, "class" or "super_category".
        seed: of the folds and of the search; trainings have the configuration's own.
        listener: called at a trial's end with its number, state, value, folds, settings, error, and the best value.

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
    searched = searched_ranges(config, ranges or {})
    if config.model.text is not None or launched() > 1:
        raise UserError("aurank tune trains on images alone, a trial in one process: no model.text, and no launcher")
    whole = read_whole(config.data) if dataset is None else dataset
    require_distinct(whole, config.data)
    training = whole.select(whole.splits != "test")
    fold = class_folds(training, folds, by=by, seed=seed)
    data = [dataclasses.replace(training, splits=np.where(fold == each, "val", "train")) for each in range(folds)]
    search = _Search(config, out, searched, data, trials, seed)
    search.require_same({"folds": folds, "by": by, "seed": seed, "images": training.sha256[:16]})
    while (trial := search.next()) is not None:
        line = search.run(trial)
        if listener is not None:
            listener(line)
    return search.conclude()


# -- ranges -----------------------------------------------------------------------------------------------------------


def declared_ranges(config: Config) -> dict[str, Range]:
    """Return the ranges that optimiser, sampler, miner and loss (but no sum of losses) declare, by key."""
    ranges = {key: found for key, field in known_keys().items() if (found := range_of(field.metadata)) is not None}
    ranges["optim.lr"] = RATES.get(config.optim.name, ranges["optim.lr"])
    for path in ("sampler", "miner", "loss"):
        if name := getattr(getattr(config, path), "name", None):
            own = ranges_of(CHOICES[path].table[name])
            ranges |= {f"{path}.params.{argument}": each for argument, each in own.items()}
    fitting = {}
    for key, each in ranges.items():
        each = each.including(value_of(config, key))
        choices = tuple(choice for choice in each.choices if _trouble(config, key, choice) is None)
        if not each.choices or len(choices) > 1:  # some may not go with other settings
            fitting[key] = dataclasses.replace(each, choices=choices)
    return fitting


def searched_ranges(config: Config, others: Ranges) -> dict[str, Range]:
    ranges = declared_ranges(config)
    for key, each in others.items():
        if each is None and key not in ranges:
            raise UserError(f"ranges: {key} has none that could be left out{meant(nearest(key, ranges))}")
        for end in () if each is None else each.choices or (each.low, each.high):
            if trouble := _trouble(config, key, end):
                raise UserError(f"ranges: {trouble}")
    ranges = {key: each for key, each in {**ranges, **others}.items() if each is not None}
    if not ranges:
        raise UserError("there is no range to search in; name one with --ranges")
    return ranges


def read_ranges(file: Path) -> dict[str, Range | None]:
    ranges: dict[str, Range | None] = {}
    for key, value in read_mapping(file, {}, "ranges such as optim.lr: [1e-4, 1e-2, log]").items():
        with reading(f"{file}: {key}", "a range"):
            ranges[key] = None if value is None else Range.read(value)
    return ranges


def _trouble(config: Config, key: str, value: Any) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read_config(config, [f"{key}={json.dumps(value)}"])
    except UserError as error:
        return str(error)
    return None


def value_of(config: Config, key: str) -> Any:
    path, _, argument = key.rpartition(".params.")
    section: Any = config
    for part in (path or key).split("."):
        section = getattr(section, part)
    if not path or argument in section.params:
        return section.params[argument] if path else section
    known = signature(CHOICES[path].table[section.name])[0] if path in CHOICES else {}
    return known[argument].default if argument in known else None


# -- the search -------------------------------------------------------------------------------------------------------


@dataclass
class _Search:
    config: Config
    out: Path
    ranges: dict[str, Range]
    data: Sequence[Manifest]
    trials: int
    seed: int

    def __post_init__(self) -> None:
        config, out, file = self.config, self.out, self.out / "study.log"
        self.optuna = optuna = import_library("optuna", "aurank tune")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        out.mkdir(parents=True, exist_ok=True)
        self.turn = FileLock(out / ".turn.lock")  # held while trials begin and end
        with self.turn, reading(file, "the study of a search", remedy="name another --out"):
            # Optuna's own lock would outlive a process that is killed
            backend = optuna.storages.journal.JournalFileBackend(str(file), FileLock(out / ".study.lock"))
            storage = optuna.storages.JournalStorage(backend)
            kind = {"study_name": f"aurank {out.resolve().name}", "direction": "maximize", "load_if_exists": True}
            self.study = optuna.create_study(storage=storage, pruner=optuna.pruners.MedianPruner(), **kind)
        self.spaces = {key: self._space(each) for key, each in self.ranges.items()}
        own = {key: value_of(config, key) for key in self.ranges}
        self.own = {key: value for key, value in own.items() if value in self.ranges[key]}
        is_read = isinstance(self.data[0].source, EmbeddingSource)
        fixed = ["train.trackers=[]", *([] if is_read else [f"data.name={GIVEN}"])]
        with warnings.catch_warnings():  # of arguments of the reader, which has read
            warnings.simplefilter("ignore")
            self.base = read_config(config, fixed)

    def _space(self, each: Range) -> Any:
        kinds = self.optuna.distributions
        if each.choices:
            return kinds.CategoricalDistribution([json.dumps(choice) for choice in each.choices])
        is_whole = isinstance(each.low, int) and isinstance(each.high, int)
        return (kinds.IntDistribution if is_whole else kinds.FloatDistribution)(each.low, each.high, log=each.log)

    def require_same(self, asked: Line) -> None:
        asked |= {"ranges": {key: str(each) for key, each in self.ranges.items()}}
        with self.turn:
            before = self.study.user_attrs.get("asked")
            if before is None:
                self.study.set_user_attr("asked", {"config": self.config.model_dump(mode="json"), **asked})
                return
        differing = differences(read_config(before["config"]), self.config)
        differing += [f"{name}: {before[name]} != {value}" for name, value in asked.items() if before[name] != value]
        if differing:
            remedy = "search with the same settings, or name another --out"
            raise UserError(f"{self.out} holds another search (saved != given): {'; '.join(differing)}; {remedy}")

    def next(self) -> Any:
        while True:
            with self.turn:
                everyone = self.study.get_trials(deepcopy=False)
                lost = {_place(trial): trial for trial in everyone if self._is_lost(trial)}
                places = {_place(trial) for trial in everyone if trial not in lost.values()}
                for place in lost.keys() - places:
                    self._enqueue(place, lost[place].params)
                if not everyone:
                    self._enqueue(0, {})
                states = {trial.state.name for trial in everyone}
                if lost.keys() - places or "WAITING" in states or len(places) < self.trials:
                    return self._begin(len(places))
                if "RUNNING" not in states:
                    return None
            time.sleep(_PAUSE)

    def _is_lost(self, trial: Any) -> bool:
        if trial.state.name == "RUNNING":
            with suppress(InUse), claimed(self._folder(trial)):
                shutil.rmtree(self._folder(trial), ignore_errors=True)
                self.study.tell(trial.number, state=self.optuna.trial.TrialState.FAIL)
                return True
        return trial.state.name == "FAIL" and "error" not in trial.user_attrs

    def _enqueue(self, place: int, params: Line) -> None:
        if place == 0:
            own = self.own.items()
            params |= {key: json.dumps(value) if self.ranges[key].choices else value for key, value in own}
        self.study.enqueue_trial(params, user_attrs={"place": place})

    def _begin(self, place: int) -> Any:
        # Seeded anew for each trial: a search that goes on draws what it would have drawn.
        random = int(np.random.default_rng([self.seed, place]).integers(2**31))
        self.study.sampler = self.optuna.samplers.TPESampler(seed=random, n_startup_trials=min(10, self.trials // 3))
        trial = self.study.ask(self.spaces)
        place = trial.user_attrs.get("place", place)
        values = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in trial.params.items()}
        if place == 0:  # the values themselves, with all their digits
            values |= {key: json.dumps(value) for key, value in self.own.items()}
        trial.set_user_attr("place", place)
        trial.set_user_attr("settings", {key: str(value) for key, value in values.items()})
        self.claim = claimed(self._folder(trial))
        self.claim.__enter__()
        return trial

    def _folder(self, trial: Any) -> Path:
        return self.out / f"trial{trial.number}"

    def run(self, trial: Any) -> Line:
        values: list[float] = []
        state, started = "FAIL", time.perf_counter()
        try:
            self._train(trial, values)
            state = "COMPLETE"
        except self.optuna.TrialPruned:
            state = "PRUNED"
        except (Diverged, UserError) as error:
            if _place(trial) == 0 and isinstance(error, UserError) and self.own.keys() == self.ranges.keys():
                raise  # the configuration itself is wrong
            trial.set_user_attr("error", str(error).splitlines()[0])
        finally:
            trial.set_user_attr("folds", values)
            trial.set_user_attr("seconds", round(time.perf_counter() - started, 2))
            value = float(np.mean(values)) if state == "COMPLETE" else None
            with self.turn:
                self.study.tell(trial, value, state=self.optuna.trial.TrialState[state])
                shutil.rmtree(self._folder(trial), ignore_errors=True)
                self.claim.__exit__(None, None, None)
        lines = self.lines()
        line = next(line for line in lines if line["number"] == _place(trial) + 1)
        return {**line, "best": max((line["value"] for line in lines if line["value"] is not None), default=None)}

    def _train(self, trial: Any, values: list[float]) -> None:
        config = read_config(self.base, _overrides(trial.user_attrs["settings"]))
        validations = -(-config.train.steps // config.train.validate_every)  # of a fold

        def listen(kind: str, metrics: Line) -> None:
            if kind == "validation":
                found.append(metrics["mauprc"])
                step = fold * validations + len(found)
                trial.report(float(np.mean([*values, max(found)])), step)
                if _place(trial) > 0 and step < validations * len(self.data) and trial.should_prune():
                    raise self.optuna.TrialPruned

        for fold, data in enumerate(self.data):
            found: list[float] = []
            result = train(config, self._folder(trial) / f"fold{fold}", dataset=data, page=False, listener=listen)
            if result.stopped_by is not None:
                signal.raise_signal(result.stopped_by)
                raise KeyboardInterrupt
            values.append(max(found))
            shutil.rmtree(result.out, ignore_errors=True)

    def lines(self) -> list[Line]:
        lines = []
        for trial in self.study.get_trials(deepcopy=False):
            state, about = _STATES.get(trial.state.name, ""), {"error": "", **trial.user_attrs}
            if state and (state != "failed" or about["error"]):
                value = trial.value if state == "complete" else None
                lines.append({"number": _place(trial) + 1, "state": state, "value": value, **about})
        return sorted(lines, key=lambda line: line["number"])

    def conclude(self) -> Tuned:
        lines = self.lines()
        done = [line for line in lines if line["value"] is not None]
        if not done:
            error = next(filter(None, (line["error"] for line in lines)), "all were pruned")
            raise Diverged(f"none of {len(lines)} trials came to an end: {error}")
        importance: dict[str, float] = {}
        if len(done) > 4 and len({line["value"] for line in done}) > 1:
            evaluator = self.optuna.importance.FanovaImportanceEvaluator(seed=self.seed)
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


def _place(trial: Any) -> int:
    return int(trial.user_attrs.get("place", trial.number))


def _overrides(settings: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{key}={text}" for key, text in settings.items())

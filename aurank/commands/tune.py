"""``tune``: a search for the settings of a training, by class-disjoint cross-validation on its training classes."""

import csv
import dataclasses
import io
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
from filelock import FileLock, Timeout

from aurank.config import Config, dump_config
from aurank.config.load import read_mapping
from aurank.config.messages import one_line
from aurank.config.schema import known_keys
from aurank.data import Manifest
from aurank.data.manifest import ValidationUnit
from aurank.data.readers.given import GIVEN
from aurank.data.saved_embeddings import EmbeddingSource
from aurank.distributed import launched
from aurank.embedding.named import read_whole
from aurank.embedding.select_images import class_folds, require_distinct
from aurank.errors import AurankError, UserError
from aurank.extras import import_library
from aurank.files import reading, write_text
from aurank.names import meant, nearest, signature
from aurank.ranges import Range, range_of, ranges_of
from aurank.reporting.tune_page import tune_page
from aurank.training.components import CHOICES, read_config
from aurank.training.optim import RATES
from aurank.training.run import differences, train

Ranges = Mapping[str, Range | None]
Line = dict[str, Any]
_PAUSE = 0.3  # seconds between two looks at the trials of other processes
_ONE_PROCESS = "it trains in one process; start the command several times with the same --out, without a launcher"


@dataclass(frozen=True)
class Tuned:
    """What a search found.

    Attributes:
        overrides: the settings of the best trial, such as "optim.lr=0.00031".
        value: its mean validation mAUPRC over the folds.
        at_end: settings whose value lies within 5 % of an end of their range, beyond which there may be better ones.
        trials: how many there were, those included that were pruned or diverged.

    Example:
        >>> Tuned(("optim.lr=0.001",), 0.64, at_end=(), trials=40).value
        0.64
    """

    overrides: tuple[str, ...]
    value: float
    at_end: tuple[str, ...]
    trials: int


# -- ranges -----------------------------------------------------------------------------------------------------------


def declared_ranges(config: Config) -> dict[str, Range]:
    """Return the ranges that the optimiser, the sampler, the miner and the loss of a configuration declare, by key.

    Each holds the configuration's own value. Those of a sum of losses are not among them: no override names its parts.

    Example:
        >>> from aurank.training import read_config
        >>> str(declared_ranges(read_config("digits/soprc"))["loss.params.tau1"])
        '0.01 to 0.5, log'
    """
    ranges = {key: found for key, field in known_keys().items() if (found := range_of(field.metadata)) is not None}
    ranges["optim.lr"] = RATES.get(config.optim.name, ranges["optim.lr"])
    for path in ("sampler", "miner", "loss"):
        component = getattr(config, path)
        if name := getattr(component, "name", None):
            own = ranges_of(CHOICES[path].table[name])
            ranges |= {f"{path}.params.{argument}": each for argument, each in own.items()}
    fitting = {}
    for key, each in ranges.items():
        each = each.including(_value_of(config, key))
        if each.choices:  # some may not go with other settings
            fit = [choice for choice in each.choices if not _trouble(config, key, choice)]
            each = dataclasses.replace(each, choices=tuple(fit))
        if len(each.ends) > 1:
            fitting[key] = each
    return fitting


def read_ranges(file: Path) -> dict[str, Range | None]:
    """Return the ranges in a YAML file by their keys; null leaves out one that is declared.

    Raises:
        UserError: names the key whose range is wrong.
    """
    ranges: dict[str, Range | None] = {}
    for key, value in read_mapping(file, {}, "ranges such as optim.lr: [1e-4, 1e-2, log]").items():
        with reading(f"{file}: {key}", "a range"):
            ranges[key] = None if value is None else Range.read(value)
    return ranges


def searched_ranges(config: Config, others: Ranges) -> dict[str, Range]:
    """Return the declared ranges with others in their place or beside them; None leaves one out.

    Raises:
        UserError: there is no such key, or a value of its range is wrong there.
    """
    ranges: dict[str, Range] = declared_ranges(config)
    for key, each in others.items():
        if each is not None:
            if trouble := next(filter(None, (_trouble(config, key, end) for end in each.ends)), None):
                raise UserError(f"ranges: {trouble}")
            ranges[key] = each
        elif ranges.pop(key, None) is None:
            raise UserError(f"ranges: {key} has none to leave out{meant(nearest(key, ranges))}")
    if not ranges:
        raise UserError("there is no range to search in; name one with --ranges")
    return ranges


def _trouble(config: Config, key: str, value: Any) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read_config(config.model_dump(mode="json"), [_override(key, value)])
    except UserError as error:
        return one_line(str(error))
    return None


def _value_of(config: Config, key: str) -> Any:
    """Return the value at a key of a configuration; of an argument that it leaves out the default."""
    path, _, argument = key.rpartition(".params.")
    section: Any = config
    for part in (path or key).split("."):
        section = getattr(section, part, None)
    if not path or section is None or argument in section.params:
        return section.params[argument] if path and section is not None else section
    known = signature(CHOICES[path].table[section.name])[0] if path in CHOICES else {}
    return known[argument].default if argument in known else None


def _override(key: str, value: Any) -> str:
    return f"{key}={json.dumps(value)}"


# -- the search -------------------------------------------------------------------------------------------------------


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
    storage: str | None = None,
    listener: Callable[[Line], None] | None = None,
) -> Tuned:
    """Search the settings with the best mean validation mAUPRC over class-disjoint folds of the training classes.

    The first trial is the configuration itself; Optuna's tree-structured Parzen estimator chooses the others, and
    those below the median at a fold or a validation are pruned. A search goes on where it was left. Processes with the
    same ``out`` share it, and each returns once all trials have ended. Test images are never looked at.

    Args:
        out: folder of the search, which gets study.log and, at the end, best.yaml, trials.csv and tune.html.
        dataset: the images, in place of a reader's; its split "test" is left aside.
        ranges: by key, in place of those in `declared_ranges` or beside them; None leaves one out.
        trials: how many in all, over all processes.
        by: what a fold holds out whole, "class" or "super_category".
        seed: of the folds and of the search; trainings have the configuration's own.
        storage: URL of an Optuna storage, in place of study.log.
        listener: called with what trials.csv has of a trial, at its end.

    Raises:
        UserError: the ranges, the data or the folder do not fit, or the configuration itself does not train.
        AurankError: no trial came to an end.
    """
    chosen = searched_ranges(config, ranges or {})
    if config.model.text is not None:
        raise UserError("aurank tune compares images with each other: leave out model.text")
    if launched() > 1:
        raise UserError(f"aurank tune: {_ONE_PROCESS}")
    whole = read_whole(config.data) if dataset is None else dataset
    require_distinct(whole, config.data)
    training = whole.select(whole.splits != "test")
    fold = class_folds(training, folds, by=by, seed=seed)
    data = [dataclasses.replace(training, splits=np.where(fold == one, "val", "train")) for one in range(folds)]
    search = _Search(config, out, chosen, data, trials=trials, seed=seed, storage=storage)
    search.require_same({"folds": folds, "by": by, "seed": seed, "images": training.sha256[:16]})
    while (trial := search.next()) is not None:
        line = search.run(trial)
        if listener is not None:
            listener(line)
    return search.conclude()


class _Search:
    """The trials of a study, each at a place from 0 on; a killed trial is done again at its place."""

    def __init__(
        self,
        config: Config,
        out: Path,
        ranges: dict[str, Range],
        data: Sequence[Manifest],
        *,
        trials: int,
        seed: int,
        storage: str | None,
    ) -> None:
        self.optuna = optuna = import_library("optuna", "aurank tune")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.config, self.out, self.ranges, self.data, self.trials, self.seed = config, out, ranges, data, trials, seed
        out.mkdir(parents=True, exist_ok=True)
        self.turn = FileLock(out / ".turn.lock")  # held while trials are begun and ended
        kept: Any = storage
        if storage is None:
            journal = optuna.storages.journal
            # A lock that ends with its process: Optuna's own would have to be waited for.
            file = journal.JournalFileBackend(str(out / "study.log"), lock_obj=FileLock(out / ".study.lock"))
            kept = optuna.storages.JournalStorage(file)
        with self.turn, reading(storage or out / "study.log", "the study of a search", remedy="name another --out"):
            self.study = optuna.create_study(
                storage=kept,
                study_name=f"aurank {out.resolve().name}",
                direction="maximize",
                pruner=optuna.pruners.MedianPruner(n_startup_trials=5),
                load_if_exists=True,
            )
        self.spaces = {key: self._space(each) for key, each in ranges.items()}
        # Images that a program gave, or a file held: read once for all trials.
        fixed = ["train.trackers=[]"] + [f"data.name={GIVEN}"] * (not isinstance(data[0].source, EmbeddingSource))
        with warnings.catch_warnings():  # of the reader's arguments, which are left out
            warnings.simplefilter("ignore")
            self.base = read_config(config.model_dump(mode="json"), fixed).model_dump(mode="json")

    def _space(self, each: Range) -> Any:
        kinds = self.optuna.distributions
        if each.choices:
            return kinds.CategoricalDistribution([json.dumps(choice) for choice in each.choices])
        kind = kinds.IntDistribution if each.is_whole else kinds.FloatDistribution
        return kind(each.low, each.high, log=each.log)

    def require_same(self, asked: Line) -> None:
        """Raise UserError where the folder holds a search of another kind."""
        asked |= {"ranges": {key: str(each) for key, each in sorted(self.ranges.items())}}
        with self.turn:
            before = self.study.user_attrs.get("asked")
            if before is None:
                self.study.set_user_attr("asked", asked | {"config": self.config.model_dump(mode="json")})
                return
        differing = differences(read_config(before.pop("config")), self.config)
        differing += [f"{name}: {before[name]} != {asked[name]}" for name in asked if before[name] != asked[name]]
        if differing:
            text = f"{self.out} holds another search (saved != given): {'; '.join(differing)}"
            raise UserError(f"{text}; search with the same settings, or name another --out")

    def _place(self, trial: Any) -> int:
        return int(trial.user_attrs.get("place", trial.number))

    def _folder(self, trial: Any) -> Path:
        return self.out / f"trial{trial.number}"

    def _is_lost(self, trial: Any) -> bool:
        """Whether the process of a trial ended before it did."""
        states = self.optuna.trial.TrialState
        if trial.state == states.RUNNING:
            self._folder(trial).mkdir(exist_ok=True)
            with suppress(Timeout), FileLock(self._folder(trial) / ".lock", timeout=0):
                shutil.rmtree(self._folder(trial), ignore_errors=True)
                self.study.tell(trial.number, state=states.FAIL)
                return True
        return bool(trial.state == states.FAIL and "error" not in trial.user_attrs)

    def next(self) -> Any:
        """Return a trial to run, None once all have ended, those of other processes too."""
        while True:
            with self.turn:
                trials = self.study.get_trials(deepcopy=False)
                lost = [trial for trial in trials if self._is_lost(trial)]
                kept = {self._place(trial) for trial in trials if trial not in lost}
                places = {self._place(trial): trial for trial in lost if self._place(trial) not in kept}
                for place, trial in places.items():
                    params = trial.params if place else self._start()
                    self.study.enqueue_trial(params, user_attrs={"place": place})
                trials = self.study.get_trials(deepcopy=False)
                is_waiting = any(trial.state.name == "WAITING" for trial in trials)
                if is_waiting or len(kept | places.keys()) < self.trials:
                    return self._ask(len(kept | places.keys()))
                if not any(trial.state.name == "RUNNING" for trial in trials):
                    return None
            time.sleep(_PAUSE)

    def _ask(self, place: int) -> Any:
        if place == 0:
            self.study.enqueue_trial(self._start(), user_attrs={"place": 0})
        # Seeded anew for each trial: a search that goes on draws what it would have drawn.
        random = int(np.random.default_rng([self.seed, place]).integers(2**31))
        self.study.sampler = self.optuna.samplers.TPESampler(seed=random, n_startup_trials=min(10, self.trials // 3))
        trial = self.study.ask(self.spaces)
        if "place" not in trial.user_attrs:
            trial.set_user_attr("place", place)
        self._folder(trial).mkdir(exist_ok=True)
        self.lock = FileLock(self._folder(trial) / ".lock", timeout=0)
        self.lock.acquire()
        return trial

    def _start(self) -> Line:
        """Return the configuration's own values as the study has them, those left out that no range holds."""
        own = {key: _value_of(self.config, key) for key in self.ranges}
        held = {key: value for key, value in own.items() if value in self.ranges[key]}
        return {key: json.dumps(value) if self.ranges[key].choices else value for key, value in held.items()}

    def overrides(self, trial: Any) -> tuple[str, ...]:
        """Return the settings of a trial; of the first those of the configuration, in its range or not."""
        if self._place(trial) == 0:
            return tuple(_override(key, _value_of(self.config, key)) for key in self.ranges)
        values = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in trial.params.items()}
        return tuple(f"{key}={values[key]}" for key in self.ranges)

    def run(self, trial: Any) -> Line:
        """Train in every fold, and tell the study; return the line of the trial."""
        states, started, first = self.optuna.trial.TrialState, time.perf_counter(), self._place(trial) == 0
        state, value = states.FAIL, None
        values: list[float] = []
        try:
            self._train(trial, values)
            state, value = states.COMPLETE, float(np.mean(values))
        except self.optuna.TrialPruned:
            state = states.PRUNED
        except AurankError as error:
            if first and isinstance(error, UserError):
                raise
            trial.set_user_attr("error", str(error).splitlines()[0])
        finally:
            trial.set_user_attr("values", values)
            trial.set_user_attr("seconds", round(time.perf_counter() - started, 2))
            with self.turn:
                self.study.tell(trial, value, state=state)
                self.lock.release()
                shutil.rmtree(self._folder(trial), ignore_errors=True)
        lines = self.lines()
        return next(line for line in lines if line["number"] == self._place(trial) + 1) | {"best": self._best(lines)}

    def _train(self, trial: Any, values: list[float]) -> None:
        config = read_config(self.base, self.overrides(trial))
        each = -(-config.train.steps // config.train.validate_every)  # validations of a fold
        count = 0

        def listen(kind: str, metrics: Line) -> None:
            nonlocal count
            if kind == "validation":
                best.append(metrics["mauprc"])
                trial.report(float(np.mean([*values, max(best)])), count)
                count += 1
                if self._place(trial) > 0 and count < each * len(self.data) and trial.should_prune():
                    raise self.optuna.TrialPruned

        for fold, data in enumerate(self.data):
            best: list[float] = []
            count = fold * each  # that of a training that stops early too
            result = train(config, self._folder(trial) / f"fold{fold}", dataset=data, listener=listen)
            if result.stopped_by is not None:
                signal.raise_signal(result.stopped_by)
                raise KeyboardInterrupt
            values.append(max(best))
            shutil.rmtree(result.out, ignore_errors=True)

    # -- what was found -----------------------------------------------------------------------------------------------

    def lines(self) -> list[Line]:
        """Return what is known of each trial that ended, in their order."""
        ended = {}
        for trial in self.study.get_trials(deepcopy=False):
            about = trial.user_attrs
            if trial.state.is_finished() and ("error" in about or trial.state.name != "FAIL"):
                ended[self._place(trial)] = {
                    "number": self._place(trial) + 1,
                    "state": {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}[trial.state.name],
                    "value": trial.value if trial.state.name == "COMPLETE" else None,
                    "folds": about.get("values", []),
                    "seconds": about.get("seconds"),
                    "overrides": self.overrides(trial),
                    "error": about.get("error", ""),
                }
        return [ended[place] for place in sorted(ended)]

    @staticmethod
    def _best(lines: Sequence[Line]) -> float | None:
        return max((line["value"] for line in lines if line["value"] is not None), default=None)

    def conclude(self) -> Tuned:
        """Write what was found, and return it."""
        lines = self.lines()
        if (value := self._best(lines)) is None:
            errors = [line["error"] for line in lines if line["error"]]
            raise AurankError(f"none of {len(lines)} trials came to an end: {next(iter(errors), 'all were pruned')}")
        best = next(line for line in lines if line["value"] == value)
        config = read_config(self.config.model_dump(mode="json"), best["overrides"])
        at_end = tuple(key for key, each in self.ranges.items() if each.at_end(_value_of(config, key)))
        write_text(self.out / "best.yaml", dump_config(config))
        write_text(self.out / "trials.csv", _to_csv(lines, list(self.ranges)))
        page = tune_page(lines, self.ranges, self._importance(), at_end, name=self.out.resolve().name)
        write_text(self.out / "tune.html", page)
        return Tuned(best["overrides"], value, at_end, len(lines))

    def _importance(self) -> dict[str, float]:
        """Return how much of the variance of values each setting explains (fANOVA); nothing of few trials."""
        done = [trial for trial in self.study.get_trials(deepcopy=False) if trial.state.name == "COMPLETE"]
        if len(done) < 5 or len({trial.value for trial in done}) < 2:
            return {}
        evaluator = self.optuna.importance.FanovaImportanceEvaluator(seed=self.seed)
        return dict(self.optuna.importance.get_param_importances(self.study, evaluator=evaluator))


def _to_csv(lines: Sequence[Line], keys: Sequence[str]) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["number", "state", "value", "folds", "seconds", *keys, "error"])
    for line in lines:
        values = [override.partition("=")[2] for override in line["overrides"]]
        folds = " ".join(f"{value:.6f}" for value in line["folds"])
        table.writerow([line["number"], line["state"], line["value"], folds, line["seconds"], *values, line["error"]])
    return text.getvalue()

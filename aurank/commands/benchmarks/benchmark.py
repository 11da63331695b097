"""A benchmark: methods compared over splits, settings and seeds, each training done once, by whatever process."""

import hashlib
import json
import math
import platform
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from aurank.commands.tune import declared_ranges, searched_ranges, train_aside, tune
from aurank.config import Config, load_config, shipped_configs
from aurank.config.schema import EMBEDDINGS, Strict
from aurank.data import Manifest
from aurank.data.manifest import ValidationUnit
from aurank.data.prepared import contents
from aurank.embedding.embedded import described, evaluation_options, trial_of
from aurank.embedding.image_selection import read_whole
from aurank.embedding.image_text_pairs import require_one_label
from aurank.embedding.select_images import class_folds, split_of
from aurank.errors import AurankWarning, Diverged, UserError, first_line
from aurank.evaluation import PostProcessing, Report
from aurank.files import InUse, checked, claimed, reading, require_ordinary, write_text
from aurank.names import meant, nearest
from aurank.ranges import Range
from aurank.reporting.benchmark_page import (
    LINES,
    Line,
    SplitLine,
    benchmark_page,
    blocks_of,
    checked_line,
    to_markdown_tables,
)
from aurank.reporting.tables import class_names
from aurank.training import read_config
from aurank.training.build import build_loss, build_sampler

Overrides = tuple[str, ...]


class Folds(Strict):
    folds: int = Field(ge=2, le=100)
    by: ValidationUnit = "class"


class BenchmarkSpec(Strict):
    """What a benchmark compares, as its YAML file says it.

    Attributes:
        config: the base of every training: the name of a shipped configuration, or a path from the file's folder.
        methods, settings: the overrides of each by its name; every method is trained in every setting.
        without_training: post-processing steps, fitted on training rows, behind which saved embeddings are measured.
        splits: those of the data, or folds of all classes, each of which is the test once.
        trials: of the search for hyper-parameters that each method has in each setting and split; 0: none.
        choose_by: folds of the training classes that the search validates on.
        ranges: of the search; others are those that the loss, the sampler and the optimiser declare.
        reference: the method that the others are compared with; default: the first.
    """

    config: str
    methods: dict[str, Overrides] = Field(min_length=1)
    settings: dict[str, Overrides] = Field(default={"": ()}, min_length=1)
    overrides: Overrides = ()
    without_training: Overrides = ()
    splits: Literal["published"] | Folds = "published"
    seeds: int = Field(default=5, ge=1, le=1000)
    trials: int = Field(default=0, ge=0, le=10_000)
    choose_by: Folds = Folds(folds=3)
    ranges: dict[str, Any] = Field(default={})
    reference: str | None = None


@dataclass(frozen=True)
class Unit:
    """A piece of work: a choice of hyper-parameters, a training with its test, or a test without training."""

    kind: Literal["choice", "run", "untrained"]
    method: str  # of what is not trained: its steps
    setting: str
    split: str
    seed: int = 0
    chosen: Overrides = ()

    def __str__(self) -> str:
        seed = f"seed {self.seed}" if self.kind == "run" else self.kind
        return ", ".join(filter(None, [self.setting, self.method, self.split, seed]))


Listener = Callable[[Unit, Line, int, int], None]
"""Called with a unit that was done, its line, and how many are done of how many."""
_WHEREABOUTS = {"root": None, "workers": 0, "cache": ""}  # of data: what may differ between machines


class BenchmarkRun:
    """A benchmark with its data and the folder of its results, which processes may share."""

    def __init__(self, file: Path, out: Path) -> None:
        self.spec: BenchmarkSpec = load_config(file, choices={}, schema=BenchmarkSpec)
        self.out = out
        self._base = shipped_configs().get(self.spec.config, file.parent / self.spec.config)
        self._lines: dict[Path, Line] = {}
        self.config_of, self.path_of = cache(self._config_of), cache(self._path_of)
        with reading(file, "a benchmark"):
            self.reference = self.spec.reference or next(iter(self.spec.methods))
            if self.reference not in self.spec.methods:
                names = ", ".join(self.spec.methods)
                hint = meant(nearest(self.reference, self.spec.methods))
                raise UserError(f"the reference {self.reference!r} is none of the methods: {names}{hint}")
            self.ranges = {key: None if each is None else Range.read(each) for key, each in self.spec.ranges.items()}
            self.base = self.config_of(Unit("untrained", "", "", ""))
            if self.spec.without_training and self.base.data.name != EMBEDDINGS:
                saved = f"saved embeddings (aurank embed), not data.name={self.base.data.name}"
                raise UserError(f"without_training measures {saved}: see docs/heads.md, or leave it out")
            for steps in filter(None, self.spec.without_training):
                PostProcessing.parse(steps)
            self._check_methods()
            self._content = contents(next(iter(self.splits.values())))

    def _check_methods(self) -> None:
        for split, manifest in self.splits.items():
            training, test = (split_of(manifest, self.base.data, name) for name in ("train", "test"))
            if is_pairs := self.base.model.text is not None:
                require_one_label(test)
            if self.spec.trials:
                by = self.spec.choose_by
                class_folds(manifest.select(manifest.splits != "test"), by.folds, by=by.by)
            for setting, method in self._pairs:
                with reading(f"{setting} {method}".strip(), "a method"):
                    config = self.config_of(Unit("run", method, setting, split))
                    if any(getattr(config.data, key) != getattr(self.base.data, key) for key in ("name", "params")):
                        raise UserError("all are compared on the same data: set data.name and data.params in overrides")
                    measured = trial_of(manifest).evaluate(**evaluation_options(config)).metrics
                    if not is_pairs and "recall@1" not in measured:
                        raise UserError("Recall@1 compares methods: name it in evaluate.recall_at and evaluate.metrics")
                    build_loss(config, training)
                    sampler = build_sampler(config, training, rank=0, world_size=1, neighbours=lambda _: None)
                    if (most := sampler.largest_batch) < config.sampler.batch:
                        raise UserError(f"a batch has only {most} images: set sampler.batch={most}")
                    if self.spec.trials:
                        searched_ranges(config, self._ranges_of(config))

    def _ranges_of(self, config: Config) -> dict[str, Range | None]:
        declared = declared_ranges(config)  # of another method null may leave out nothing
        return {key: each for key, each in self.ranges.items() if each is not None or key in declared}

    def _config_of(self, unit: Unit) -> Config:
        with warnings.catch_warnings():  # that another loss leaves out the params of the one before
            warnings.simplefilter("ignore", AurankWarning)
            return read_config(self._base, [*self._overrides(unit), *unit.chosen, f"seed={unit.seed}"])

    def _overrides(self, unit: Unit) -> list[str]:
        of_method = () if unit.kind == "untrained" else self.spec.methods[unit.method]
        return [*self.spec.overrides, *self.spec.settings.get(unit.setting, ()), *of_method]

    @cached_property
    def splits(self) -> dict[str, Manifest]:
        manifest, by = read_whole(self.base.data), self.spec.splits
        if not isinstance(by, Folds):
            return {by: manifest}
        fold = class_folds(manifest, by.folds, by=by.by)
        parts = (np.where(fold == number, "test", "train") for number in range(by.folds))
        return {f"fold {number} of {by.folds}": replace(manifest, splits=part) for number, part in enumerate(parts, 1)}

    @property
    def _pairs(self) -> list[tuple[str, str]]:
        return [(setting, method) for setting in self.spec.settings for method in self.spec.methods]

    # -- units --------------------------------------------------------------------------------------------------------

    def known_units(self) -> Iterator[Unit]:
        for split in self.splits:
            yield from (Unit("untrained", steps, "", split) for steps in self.spec.without_training)
            yield from (Unit("choice", method, setting, split) for setting, method in self._pairs if self.spec.trials)
        for seed in range(self.spec.seeds):
            for split in self.splits:
                for setting, method in self._pairs:
                    choice = Unit("choice", method, setting, split)
                    if (line := self.line_of(choice) if self.spec.trials else vars(choice)) is not None:
                        yield Unit("run", method, setting, split, seed, tuple(line["chosen"]))

    @property
    def total(self) -> int:
        trainings = len(self._pairs) * (self.spec.seeds + (self.spec.trials > 0))
        return len(self.splits) * (len(self.spec.without_training) + trainings)

    @property
    def done(self) -> int:
        return sum(self.line_of(unit) is not None for unit in self.known_units())

    def _path_of(self, unit: Unit) -> Path:
        config = self.config_of(unit).model_dump(mode="json")
        config["data"] |= _WHEREABOUTS
        content: list[Any] = [unit.kind, config, self.splits[unit.split].sha256, self._content]
        if unit.kind == "untrained":
            content.append(unit.method)
        elif unit.kind == "choice":
            content += [self.spec.trials, self.spec.choose_by.model_dump(), self.spec.ranges]
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        return self.out / "units" / f"{digest[:32]}.json"

    def line_of(self, unit: Unit) -> Line | None:
        path = self.path_of(unit)
        if path not in self._lines and path.exists():
            require_ordinary(path)
            with reading(path, "a unit of a benchmark", remedy="remove it"):
                done = checked_line(json.loads(path.read_bytes()))
                if "ap_by_class" in done:
                    checked(done, SplitLine)
                self.config_of(replace(unit, chosen=tuple(done["chosen"])))
                self._lines[path] = done
        line = self._lines.get(path)
        return None if line is None else line | {"method": unit.method, "setting": unit.setting}  # two may share a file

    # -- work ---------------------------------------------------------------------------------------------------------

    def work(self, until: float = math.inf, listener: Listener = lambda *_: None) -> None:
        """Do units, beside other processes, until all are done, or one might end after the time.time() `until`."""
        commit, longest = package_commit(), dict[str, float]()
        while (before := self.done) < self.total:
            for unit in self.known_units():
                if self.line_of(unit) is not None:
                    continue
                if time.time() + longest.get(unit.kind, 0.0) > until:
                    return
                with suppress(InUse), claimed(path := self.path_of(unit), is_file=True):
                    if self.line_of(unit) is None:  # still: no other process was faster
                        line = self._do(unit) | {"commit": commit}
                        write_text(path, json.dumps(line) + "\n")
                        longest[unit.kind] = max(longest.get(unit.kind, 0.0), line["seconds"])
                        listener(unit, line, self.done, self.total)
            if self.done == before:  # other processes have what is left
                time.sleep(1)

    def _do(self, unit: Unit) -> Line:
        begun, spent = time.perf_counter(), time.process_time()
        do = {"choice": self._choose, "run": self._train, "untrained": self._measure}[unit.kind]
        try:
            result = do(unit)
        except UserError as error:
            raise UserError(f"{unit}: {error}") from error
        except Diverged as error:  # a result too
            result = {"error": first_line(error)}
        return {
            **vars(unit),
            "overrides": self._overrides(unit),
            **result,
            "seconds": round(time.perf_counter() - begun, 2),
            "processor_seconds": round(time.process_time() - spent, 2),
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU",
            "threads": torch.get_num_threads(),
            "aurank": version("aurank"),
            "torch": torch.__version__,
        }

    def _choose(self, unit: Unit) -> Line:
        by, folder = self.spec.choose_by, self.out / "choices" / self.path_of(unit).stem
        config = self.config_of(unit)
        options: Any = {"ranges": self._ranges_of(config), "trials": self.spec.trials, "folds": by.folds, "by": by.by}
        tuned = tune(config, folder, dataset=self.splits[unit.split], **options)
        return {"chosen": tuned.overrides, "val_mauprc": round(tuned.value, 6), "at_end": tuned.at_end}

    def _train(self, unit: Unit) -> Line:
        folder = self.out / "running" / self.path_of(unit).stem
        result = train_aside(self.config_of(unit), folder, self.splits[unit.split])
        if (both := result.two_way.get("all")) is None:
            assert result.report is not None  # the run has a test split
            return _tested(result.report)
        names = split_of(self.splits[unit.split], self.base.data, "test").classes
        line = _tested(both.image_to_text, both.text_to_image)
        return line | {"classes": [names[int(label)] for label in line["classes"]]}

    def _measure(self, unit: Unit) -> Line:
        parts = {}
        for name in ("train", "test"):
            manifest = split_of(self.splits[unit.split], self.base.data, name)
            source: Any = manifest.source
            rows = [source.entries[path] for path in manifest.paths]
            parts[name] = described(manifest, np.arange(len(rows)), source.rows[rows])
        options = evaluation_options(self.base)
        if unit.method:
            options["postprocess"] = PostProcessing.parse(unit.method).fit(parts["train"].embeddings)
        return _tested(parts["test"].evaluate(**options))

    # -- results ------------------------------------------------------------------------------------------------------

    def collect(self) -> list[Line]:
        about = {"kind": "benchmark", **self.spec.model_dump(mode="json"), "reference": self.reference}
        splits, lines = dict[str, Line](), list[Line]()
        for line in filter(None, map(self.line_of, self.known_units())):
            of_split: Line = {
                key: line.pop(key) for key in ("classes", "queries") if key in line
            }  # alike in all its lines
            if of_split:
                splits[line["split"]] = {"kind": "split", "split": line["split"], **of_split}
            lines.append(line)
        lines = [about | {"units": self.total}, *splits.values(), *lines]
        with reading(self.out / "units", "units of one benchmark", remedy="remove the one that differs"):
            blocks = blocks_of(lines)
        write_text(self.out / LINES, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
        write_text(self.out / "table.md", to_markdown_tables(blocks) + "\n")
        write_text(self.out / "benchmark.html", benchmark_page(lines, blocks))
        return lines


def _tested(*directions: Report) -> Line:
    """Return means over all queries: images and texts, which have the same classes, count together."""
    tables = [report.class_table() for report in directions]
    queries = np.array([table["num_queries"] for table in tables])
    names = [name for name in ("mauprc", "recall@1", "recall@10") if name in directions[0].metrics]
    means = np.average([[report.metrics[name] for name in names] for report in directions], 0, queries.sum(axis=1))
    ap = np.average([table["mauprc"] for table in tables], axis=0, weights=queries)
    metrics = dict(zip(names, means.round(6).tolist(), strict=True)) | {"ap_by_class": ap.round(4).tolist()}
    return {**metrics, "classes": class_names(directions[0]), "queries": queries.sum(axis=0).tolist()}


def run_benchmark(file: Path, out: Path, *, limit: float = math.inf, listener: Listener = lambda *_: None) -> bool:
    """Do what is left of a benchmark, beside other processes with the same folder; return whether all is done.

    Args:
        file: a YAML file of methods.
        limit: seconds after which no unit may end.

    Raises:
        UserError: a mistake in the file or in a method.

    Example:
        >>> import tempfile
        >>> spec = "config: digits/soprc\\nmethods: {SOPRC: []}\\nreference: SupCon\\n"
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "spec.yaml").write_text(spec)
        ...     try:
        ...         run_benchmark(Path(folder, "spec.yaml"), Path(folder, "out"))
        ...     except UserError as error:
        ...         print(str(error).partition(": ")[2])
        the reference 'SupCon' is none of the methods: SOPRC
    """
    until, benchmark = time.time() + limit, BenchmarkRun(file, out)
    try:
        benchmark.work(until, listener)
    finally:
        with suppress(OSError):  # others may be running
            (out / "running").rmdir()
        benchmark.collect()
    return benchmark.done == benchmark.total


def package_commit() -> str:
    def git(*words: str) -> str | None:
        command = ["git", "-C", str(Path(__file__).parents[2]), *words]
        with suppress(OSError):  # there is no git
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            return done.stdout.strip() if done.returncode == 0 else None
        return None

    if git("ls-files", "--error-unmatch", "__init__.py") is None:  # installed, perhaps below somebody's repository
        return "unknown"
    return f"{git('rev-parse', '--short=12', 'HEAD')}{'-dirty' * bool(git('status', '--porcelain', '.'))}"

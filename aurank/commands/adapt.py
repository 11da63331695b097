"""``adapt``: the best that a published network becomes in a given time; what is not surely better is not kept."""

import json
import re
import shutil
import signal
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from typing_extensions import TypedDict

from aurank.commands.average import average_models
from aurank.commands.evaluate import evaluate_model
from aurank.commands.init import write_first_configuration
from aurank.commands.run_options import RunOptions
from aurank.config import Config, dump_config
from aurank.config.schema import EMBEDDINGS
from aurank.data import Manifest
from aurank.embedding.build import build_dataset, build_encoder, fill_preprocessing
from aurank.embedding.embed import embed
from aurank.embedding.embedded import Embedded, evaluation_options
from aurank.embedding.image_selection import ALL, ImageSelection, read_whole
from aurank.embedding.locations import BEST
from aurank.embedding.select_images import class_folds
from aurank.embedding.settings import read_data
from aurank.embedding.stored.checkpoint import image_weights, load_checkpoint, save_checkpoint
from aurank.embedding.stored.trained_model import joined_config
from aurank.errors import Diverged, UserError, first_line
from aurank.evaluation import PostProcessing, Report, Resampling
from aurank.evaluation.bootstrap import resampled_means
from aurank.evaluation.metrics import Classes
from aurank.evaluation.significance import over_seeds
from aurank.files import claimed, read_record, write_text
from aurank.models.adapters.by_name import load_model
from aurank.models.encoder import Encoder, Pooled
from aurank.reporting.adapt_page import adapt_page
from aurank.reporting.page import duration
from aurank.training import profile_training, read_config, train
from aurank.training.build import build_splits
from aurank.training.state import seed_everything

PUBLISHED, FINE_TUNING, SEEDS = "published", "fine-tuning", 3
AVERAGE = f"average of {SEEDS} seeds"
LINEAR = {"centred": "center", "whitened": "whiten:shrinkage=0.5"}
HEADS = {"head, SOPRC": [], "head, SupCon": ["loss.name=sup_con", "loss.params.temperature=0.1"]}
IMAGES = {"LoRA": ["model.freeze=null", "model.lora={rank: 8}"], FINE_TUNING: [], AVERAGE: []}
HEAD_SECONDS, TRIED = 6.0, 48  # of the 300 steps of a head, as assumed; images of the trial
ALPHA = 0.05  # chance that any step is kept which is no better
Line = dict[str, Any]


class _Step(TypedDict, total=False):
    """A step of adapt.json; what was not tried has the first four."""

    name: str
    folds: int  # that it is tried on
    reason: str  # why it is not tried
    expected: float  # seconds
    seconds: float
    ap: list[list[float]]  # by fold: mean average precision of each held-out class
    queries: list[list[int]]  # and its images
    mauprc: tuple[float, float, float]  # over the folds, and its interval over classes
    against: str  # the best step before it
    difference: tuple[float, float, float]  # from that one on the same classes, and its interval
    p: float  # of so great a difference if there were none, one-sided
    bytes: int  # of an image in an index
    ms: float  # to read and embed an image, in the trial
    kept: bool


class _Saved(TypedDict):
    settings: Line
    steps: list[_Step]
    kept: str | None  # None: it has not ended
    test: dict[
        str, tuple[float, float, float]
    ]  # mAUPRC of the start and of what is kept, and their difference, with intervals


def adapt(
    data: str | Manifest,
    out: Path = Path("runs/adapted"),
    *,
    backbones: str = "",
    hours: float = 0.5,
    listener: Callable[[str], None] = lambda line: None,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> Line:
    """Try what may make a published network better, cheapest first; keep what surely does; return adapt.json.

    A step is measured on held-out training classes, and kept if it is surely better than the best so far: the 95 %
    interval of the difference, by a paired bootstrap over these classes, is above 0, and p (one-sided, by Student's t,
    as a bootstrap of few classes is too sure) below 0.05 / steps tried. A trial of some batches decides which steps fit
    in the time. The same call goes on with what was stopped, and ends the same.

    Args:
        data: a folder of images by class, a configuration, or READER:PATH; from Python a manifest too.
        out: folder for adapt.json, adapt.html, best.safetensors and best.yaml.
        backbones: networks to choose from, with commas: timm:NAME[,weights=FILE,input_size=128]; default: the
            configuration's, else a small one of timm.
        hours: the time to plan with.
        listener: called with lines: the plan, each result, the test.
        progress: called with a stage, how much of it is done and how much there is.

    Raises:
        UserError: the data do not fit, the time is too short for one step, or the folder holds something else.

    Example:
        >>> adapt("digits:", backbones="timm:resnet999")
        Traceback (most recent call last):
        aurank.errors.UserError: timm:resnet999: timm has no model 'resnet999'...
    """
    with claimed(out):
        config, manifest = _read(data, out)
        names = [name if ":" in name else f"timm:{name}" for name in re.split(r",(?!\w+=)", backbones) if name]
        configs = {PUBLISHED: config}
        for number, name in enumerate(names):
            configs[PUBLISHED + f", {name}" * (number > 0)] = _with_backbone(config, name)
        fold, training = np.full(len(manifest), -1), manifest.splits == "train"
        for folds, by in product((3, 2), ("class",) if manifest.super_labels is None else ("super_category", "class")):
            with suppress(UserError):
                fold[training] = class_folds(manifest.select(training), folds, by=by)  # type: ignore[arg-type]
                break
        else:
            raise UserError(f"{manifest.name} has too few training classes to hold some out: 4 are needed")
        settings: Line = {"config": config.model_dump(mode="json"), "images": manifest.sha256[:16], "backbones": names}
        settings |= {"hours": hours, "folds": f"{folds} folds by {by}"}
        saved: _Saved = {"settings": settings, "steps": [], "kept": None, "test": {}}
        search = _Search(out, configs, manifest, fold, saved, listener, progress)
        if (out / "adapt.json").exists():
            remedy: Any = {"named": "aurank adaptation", "remedy": "name another --out"}
            search.saved = saved = read_record(out / "adapt.json", _Saved, "an adaptation", **remedy)
            if differing := [key for key, value in settings.items() if saved["settings"].get(key) != value]:
                raise UserError(f"{out} holds an adaptation of other {', '.join(differing)}: {remedy['remedy']}")
        else:
            search.plan(hours)
        for step in saved["steps"]:
            if step["folds"] and "kept" not in step:
                search.run(step)
        if saved["kept"] is None:
            search.conclude()
        shutil.rmtree(out / "work", ignore_errors=True)
        listener(f"kept: {saved['kept']}{' network, as nothing is surely better' * (saved['kept'] == PUBLISHED)}")
        return {**saved}


def _read(data: str | Manifest, out: Path) -> tuple[Config, Manifest]:
    """Return the configuration that names the data, or else a first one for them, and all images."""
    folder = Path(data.removeprefix("folder:") if isinstance(data, str) else "")
    if isinstance(data, str) and folder.exists() and folder.suffix not in (".yaml", ".yml"):
        data = str(out / "first.yaml")
        write_first_configuration(folder, data, overwrite=True)
    overrides = ["data.validation_fraction=0", "train.early_stopping=null", "train.trackers=[]"]
    if (section := read_data(data)) is not None:
        own = section.model_dump(mode="json", include={"name", "params", "root"})
        overrides += [f"data.{key}={json.dumps(value)}" for key, value in own.items()] + HEADS["head, SupCon"]
    config = _changed(read_config("grocery/finetuned" if section else str(data)), *overrides)
    if config.data.name == EMBEDDINGS or config.model.text is not None or config.data.train_labels == "image":
        raise UserError(f"{data}: aurank adapt takes images of classes, and these are rows, texts or views")
    whole = build_splits(config, data if isinstance(data, Manifest) else read_whole(config.data)).manifest
    return config, replace(whole, splits=np.where(whole.splits == "test", "test", "train"))


def _with_backbone(config: Config, name: str) -> Config:
    joined = joined_config(config, load_model(name))
    data = joined.data.model_copy(update={key: getattr(config.data, key) for key in ("name", "params", "root")})
    model = joined.model.model_copy(update={"freeze": config.model.freeze})
    return joined.model_copy(update={"data": data, "model": model})


def _changed(config: Config, *overrides: str) -> Config:
    with warnings.catch_warnings():  # of parameters of what is replaced
        warnings.simplefilter("ignore")
        return read_config(config, overrides)


def _published(config: Config) -> tuple[Config, Encoder]:
    """Return the configuration of a network's own embeddings, and the network before its training."""
    keys = ("discard_head=true", "freeze=null", "lora=null", "gradient_checkpointing=false")
    config = fill_preprocessing(_changed(config, *(f"model.{key}" for key in keys)))
    seed_everything(config.seed)  # as training does, for random weights
    return config, build_encoder(config.model, channels=config.data.channels).eval()


def _by_class(report: Report) -> tuple[np.ndarray, np.ndarray]:
    classes = Classes.of(report.per_query["label"])
    return classes.means(report.per_query["ap"]), classes.count


def _resampled(ap: np.ndarray, queries: np.ndarray) -> tuple[float, float, float]:
    """Return the mean over queries and its 95 % interval over classes."""
    how, terms = Resampling(10_000), np.stack([ap * queries, queries], axis=1).astype(np.float64)
    (draws,) = resampled_means(terms[None], resamples=how.resamples, seed=how.seed)
    return float(terms[:, 0].sum() / queries.sum()), *how.interval(draws)


@dataclass(eq=False)
class _Search:
    out: Path
    configs: dict[str, Config]  # of the training of each published network, by its step
    manifest: Manifest
    fold: np.ndarray  # of each image, −1 for testing
    saved: _Saved
    listener: Callable[[str], None]
    progress: Callable[[str, int, int], None]

    @property
    def kept(self) -> list[str]:
        """The steps kept so far, the best last."""
        return [step["name"] for step in self.saved["steps"] if step.get("kept")] or [PUBLISHED]

    def network(self, step: str = "") -> str:
        """Return the published network of a step, which is the one kept last but for the published ones."""
        return step if step in self.configs else [name for name in self.kept if name in self.configs][-1]

    def save(self) -> None:
        content = {"format": "aurank adaptation", "version": 1, **self.saved}
        write_text(self.out / "adapt.json", json.dumps(content, indent=1) + "\n")

    def plan(self, hours: float) -> None:
        """Decide by a trial of some batches of each network, the slowest of which counts, which steps fit."""
        started, first, folds = time.perf_counter(), self.configs[PUBLISHED], int(self.fold.max()) + 1
        trials = {name: self.trial(config) for name, config in self.configs.items()}
        image, step = np.max([*trials.values()], axis=0).tolist()
        embedding, training = len(self.manifest) * image, int((self.fold >= 0).sum()) * image
        tuning = first.train.steps * step + training * (first.model.head_start == "pca")
        costs = dict.fromkeys(self.configs, (embedding / folds, 0.0))  # seconds of a fold, and at the end
        costs |= dict.fromkeys(LINEAR, (1.0, 1.0)) | dict.fromkeys(HEADS, (HEAD_SECONDS, HEAD_SECONDS))
        costs |= dict.fromkeys(IMAGES, (tuning + training / folds, tuning))
        costs[AVERAGE] = (SEEDS - 1) * tuning + training / folds, SEEDS * tuning
        tests = 2 * image * self.manifest.split_sizes.get("test", 0)
        left, last = 3600 * hours - (time.perf_counter() - started) - tests, 0.0
        if left < embedding:
            needed = hours + (embedding - left) / 3600
            raise UserError(f"--hours {hours:g} is too short for one step: the published features need {needed:.2g}")
        for name, (cost, end) in costs.items():
            fitting = [n for n in range(1, folds + 1) if n * cost + max(last, end) <= left]
            reason = self.misfit(name)
            if not fitting and not reason:
                times = duration(cost + end), duration(max(0.0, left - last))
                reason = "for lack of time: {} are expected at least, {} are left".format(*times)
            if not reason:
                folds, last = max(fitting), max(last, end)
                left -= folds * cost
            line: _Step = {"name": name, "folds": 0 if reason else folds, "reason": reason, "expected": folds * cost}
            line |= {"ms": 1000 * trials[name][0]} if name in trials else {}
            self.saved["steps"].append(line)
            self.listener(f"{name}: " + (f"not tried {reason}" if reason else f"{duration(folds * cost)} expected"))
        self.save()

    def trial(self, config: Config) -> tuple[float, float]:
        """Return the seconds of an image embedded and of a training step."""
        images, (start, encoder) = self.manifest.select(self.fold >= 0), _published(config)
        data, rows = build_dataset(start.data, images, train=False), np.arange(min(TRIED, len(images)))
        embed(Pooled(encoder), data, rows=rows[:8], batch=8)  # the first call allocates
        started = time.perf_counter()
        embed(Pooled(encoder), data, rows=rows, batch=16)
        image = (time.perf_counter() - started) / len(rows)
        config = _changed(config, "data.name=given", "model.head_start=null")
        return image, sum(profile_training(config, dataset=images, steps=2).phases.values())

    def misfit(self, name: str) -> str:
        """Return why a step does not go with the network, nothing where it does."""
        model = self.configs[PUBLISHED].model
        if name == AVERAGE and not (model.pretrained or model.weights or model.init_from):
            return "(trainings from random weights have no average)"
        try:
            if name in IMAGES:  # LoRA finds no layer in some
                build_encoder(self.config(name).model, channels=3, load=False)
        except UserError as error:
            return f"({first_line(error)})"
        return ""

    def run(self, step: _Step) -> None:
        name, started = step["name"], time.perf_counter()
        best = next(each for each in self.saved["steps"] if each["name"] == self.kept[-1])
        try:
            for fold in range(len(step.setdefault("ap", [])), step["folds"]):
                ap, queries = _by_class(self.measure(name, fold))
                step["ap"].append(ap.tolist())
                step.setdefault("queries", []).append(queries.tolist())
                self.save()
        except (Diverged, UserError) as error:
            if name == PUBLISHED:
                raise
            step |= {"folds": 0, "reason": f"({first_line(error)})"}
            text = f"not tried {step['reason']}"
        else:
            config, ap, queries = self.config(name), np.concatenate(step["ap"]), np.concatenate(step["queries"])
            is_projected = name in {**HEADS, **IMAGES} and not config.model.discard_head
            width = config.model.dim if is_projected else self.features(self.network(name)).embeddings.shape[1]
            ms = next(each["ms"] for each in self.saved["steps"] if each["name"] == self.network(name))
            mauprc = _resampled(ap, queries)
            step |= {"mauprc": mauprc, "bytes": 4 * width, "ms": ms, "kept": True}
            text = "mAUPRC {:.4f} [{:.4f}, {:.4f}]".format(*mauprc)
            if name != PUBLISHED:
                change = ap - np.concatenate(best["ap"][: step["folds"]])
                difference, two_sided = _resampled(change, queries), over_seeds(change)[2]  # of classes here
                p = 1.0 if two_sided is None or change.mean() <= 0 else two_sided / 2
                tried = sum(not each["reason"] for each in self.saved["steps"][1:])
                is_better = difference[1] > 0 and p < ALPHA / tried
                step |= {"against": best["name"], "difference": difference, "p": p, "kept": is_better}
                text += ", {:+.4f} [{:+.4f}, {:+.4f}] against ".format(*difference) + best["name"]
                text += ": kept" if is_better else ": not kept"
        self.listener(f"{name}: {text}")
        step["seconds"] = step.get("seconds", 0.0) + time.perf_counter() - started
        self.save()

    def config(self, name: str) -> Config:
        """Return the configuration of the training of a step."""
        network = self.network(name)
        config = self.configs[network]
        if name not in HEADS:
            return _changed(config, *IMAGES.get(name, ()))
        width, per_class = self.features(network).embeddings.shape[1], config.sampler.params.get("per_class", 4)
        own = {"data.root": str(self.out), "data.params": {"file": self.file(network).name}, "seed": config.seed}
        own |= {"model.dim": min(128, width), "sampler.params.per_class": min(4, per_class)}
        return _changed(read_config("grocery/head"), *(f"{key}={json.dumps(own[key])}" for key in own), *HEADS[name])

    def file(self, name: str) -> Path:
        return self.out / f"features{[*self.configs].index(name)}.npz"

    def features(self, name: str) -> Embedded:
        """Return a published network's features of all images; they are embedded once."""
        if not self.file(name).exists():
            config, encoder = _published(self.configs[name])
            data, progress = build_dataset(config.data, self.manifest, train=False), partial(self.progress, name)
            how: Line = {"batch": None, "workers": config.data.workers, "progress": progress}
            embed(Pooled(encoder), data, **how).save(self.file(name))
        return Embedded.load(self.file(name))

    def measure(self, name: str, fold: int) -> Report:
        if name in IMAGES:
            save_checkpoint(path := self.out / "work/fold.safetensors", self.learn(name, fold))
            return self.evaluate(path, ImageSelection(self.manifest.select(self.fold == fold), split=ALL))
        features = self.features(self.network(name))
        held = features.select(self.fold[features.ids] == fold)
        if name not in self.configs:
            weights = self.learn(name, fold)["encoder"]
            rows = torch.from_numpy(np.asarray(held.embeddings, np.float64)) @ weights["head.weight"].double().T
            held = replace(held, embeddings=(rows + weights["head.bias"]).numpy())
        return held.evaluate(**evaluation_options(self.configs[PUBLISHED]))

    def evaluate(self, path: Path, images: ImageSelection) -> Report:
        return evaluate_model(f"aurank:{path}", images, running=RunOptions(listener=self.progress))

    def learn(self, name: str, fold: int = -1) -> Line:
        """Return the checkpoint of a step that learns from all training classes, or from all but those of a fold."""
        config, network, learning = self.config(name), self.network(name), (self.fold >= 0) & (self.fold != fold)
        if name in IMAGES:
            seeds = range(config.seed, config.seed + (SEEDS if name == AVERAGE else 1))
            kind, images = FINE_TUNING if name == AVERAGE else name, self.manifest.select(learning)
            configs = {f"{kind} {seed} {fold}": _changed(config, "data.name=given", f"seed={seed}") for seed in seeds}
            runs = [self.train(each, run, images) for run, each in configs.items()]
            shutil.rmtree(out := self.out / "work/average", ignore_errors=True)
            content = load_checkpoint(average_models(runs, out) if name == AVERAGE else runs[0])
            content["config"]["data"] |= config.data.model_dump(mode="json", include={"name", "params", "root"})
            return content | {"manifest": self.manifest.sha256}
        start, encoder = _published(self.configs[network])
        state = encoder.state_dict()
        if name not in self.configs:
            features = self.features(network)
            rows = learning[features.ids]
            if name in HEADS:
                run = self.train(config, f"{name} {fold}", read_whole(config.data).select(rows))
                head = image_weights(load_checkpoint(run))
            else:
                matrix = np.asarray(features.embeddings, np.float64)
                steps = PostProcessing.parse(LINEAR[name], distance="dot").fit(matrix[rows])
                ends = torch.from_numpy(steps.rows(np.eye(matrix.shape[1] + 1, matrix.shape[1], k=-1))).float()
                head = {"head.weight": (ends[1:] - ends[0]).T, "head.bias": ends[0]}
            state = {key: value for key, value in state.items() if not key.startswith("head.")} | head
            shape = f"model.dim={len(head['head.bias'])}", "model.head_layers=1", "model.head_start=null"
            start = _changed(start, "model.discard_head=false", *shape)
        content = {"config": start.model_dump(mode="json"), "manifest": self.manifest.sha256, "encoder": state}
        return content | {"data": None, "progress": {}, "average": None, "tokeniser": None}

    def train(self, config: Config, name: str, data: Manifest) -> Path:
        def listen(kind: str, values: Line) -> None:
            if kind == "step":
                self.progress(name, values["step"], values["steps"])

        result = train(config, self.out / "work" / name, resume=True, dataset=data, page=False, listener=listen)
        if result.stopped_by is not None:
            signal.raise_signal(result.stopped_by)
            raise KeyboardInterrupt
        return result.out / BEST

    def conclude(self) -> None:
        """Write what is kept, learnt from all training classes, and look at the test split, once."""
        name, test, images = self.kept[-1], self.saved["test"], ImageSelection(self.manifest, split="test")
        paths = {PUBLISHED: self.out / "work/start.safetensors"} | {name: self.out / BEST}
        for each, path in paths.items():
            save_checkpoint(path, self.learn(each))
        config, how = self.config(name), "nothing is trained, best.safetensors is all"
        if name in {**HEADS, **IMAGES}:
            how = f"aurank train {self.out / 'best.yaml'}"
        if name == AVERAGE:
            how += f" seed=…, from {config.seed} to {config.seed + SEEDS - 1}, and aurank average of the {SEEDS}"
        write_text(
            self.out / "best.yaml", f"# Kept by aurank adapt: {name}. To repeat it: {how}\n{dump_config(config)}"
        )
        if "test" in self.manifest.split_sizes:
            reports = [_by_class(self.evaluate(path, images)) for path in paths.values()]
            test |= {each: _resampled(*report) for each, report in zip(paths, reports, strict=True)}
            if len(reports) > 1:
                test["difference"] = _resampled(reports[1][0] - reports[0][0], reports[0][1])
            for each, values in test.items():
                self.listener("test, {}: mAUPRC {:.4f} [{:.4f}, {:.4f}]".format(each, *values))
        self.saved["kept"] = name
        write_text(self.out / "adapt.html", adapt_page(self.saved))
        self.save()

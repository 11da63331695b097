"""``adapt``: the best that a published network becomes in a given time; what is not surely better is not kept."""

import json
import re
import shlex
import shutil
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aurank.commands.average import average_models
from aurank.commands.embed import embed_model
from aurank.commands.init import published_model, write_first_configuration
from aurank.config import Config, dump_config
from aurank.config.schema import EMBEDDINGS
from aurank.data import Manifest
from aurank.data.manifest import count_labels
from aurank.embedding.build import build_encoder, with_features
from aurank.embedding.embedded import Embedded, evaluation_options
from aurank.embedding.image_selection import ALL, ImageSelection, read_whole
from aurank.embedding.locations import BEST
from aurank.embedding.select_images import class_folds
from aurank.embedding.settings import read_data
from aurank.embedding.stored.checkpoint import image_weights, load_checkpoint, save_checkpoint
from aurank.embedding.stored.trained_model import joined_config, with_backbone
from aurank.errors import Diverged, UserError, first_line
from aurank.evaluation import PostProcessing
from aurank.evaluation.significance import SeedsAndClasses, over_seeds
from aurank.files import claimed, read_record, write_text
from aurank.models.adapters.by_name import load_model
from aurank.reporting.page import duration, render
from aurank.training import profile_training, read_config, train
from aurank.training.build import build_splits
from aurank.training.run import differences

PUBLISHED, FINE_TUNING, SEEDS = "published", "fine-tuning", 3
AVERAGE = f"average of {SEEDS} seeds"
LINEAR = {"centred": "center", "whitened": "whiten:shrinkage=0.5"}
HEADS = {"head, SOPRC": [], "head, SupCon": ["loss.name=sup_con", "loss.params.temperature=0.1"]}
IMAGES = {"LoRA": ["model.freeze=null", "model.lora={rank: 8}"], FINE_TUNING: [], AVERAGE: []}
TRIED = 64  # images whose embedding is timed
ALPHA = 0.05  # chance that any step is kept which is no better
SOURCE = {"name", "params", "root"}
Line = dict[str, Any]


def adapt(
    data: str | Manifest,
    out: Path = Path("runs/adapted"),
    overrides: Sequence[str] = (),
    *,
    backbones: str = "",
    hours: float = 0.5,
    listener: Callable[[str], None] = lambda line: None,
) -> Line:
    """Try what may make a published network better, cheapest first; keep what surely does; return adapt.json.

    A step is measured on held-out classes of the splits train and val. It is kept if it is surely better than the best
    so far: the 95 % interval of the difference, by a paired bootstrap over these classes, is above 0, and p (one-sided,
    by Student's t, as a bootstrap of few classes is too sure) below 0.05 / steps tried. A trial of some batches decides
    which steps fit in the time. The same call goes on with what was stopped, and ends the same.

    Args:
        data: a folder of images by class, a configuration, or READER:PATH; from Python a manifest too.
        out: folder for adapt.json, adapt.html, best.safetensors and, where what is kept was trained, best.yaml.
        overrides: of the configuration, such as "train.steps=600" or "model.weights=FILE".
        backbones: networks to choose from, with commas: timm:NAME[,weights=FILE,input_size=128]; default: the
            configuration's, else a small one of timm.
        hours: the time to plan with.
        listener: called with lines: the plan, each training and result, the test.

    Raises:
        UserError: the data do not fit, the time is too short for one step, or the folder holds something else.

    Example:
        >>> adapt("digits:", backbones="timm:resnet999")
        Traceback (most recent call last):
        aurank.errors.UserError: timm:resnet999: timm has no model 'resnet999'...
    """
    with claimed(out):
        config, manifest = _read(data, out, overrides)
        names = [name if ":" in name else f"timm:{name}" for name in re.split(r",(?!\w+=)", backbones) if name]
        configs = {f"{PUBLISHED}, {name}": _with_backbone(config, name) for name in names[1:]}
        configs = {PUBLISHED: _with_backbone(config, names[0]) if names else config} | configs
        fold, training = np.full(len(manifest), -1), manifest.splits == "train"
        for folds, by in product((3, 2), ("super_category", "class")):
            with suppress(UserError):
                fold[training] = class_folds(manifest.select(training), folds, by=by)  # type: ignore[arg-type]
                break
        else:
            raise UserError(f"{manifest.name} has too few training classes to hold some out: 4 are needed")
        settings: Line = {"config": config.model_dump(mode="json"), "images": manifest.sha256[:16], "backbones": names}
        settings |= {"hours": hours, "folds": f"{folds} folds by {by}"}
        saved: Line = {"format": "aurank adaptation", "version": 2, "settings": settings}
        saved |= {"steps": [], "ms": {}, "kept": PUBLISHED, "network": PUBLISHED}
        if (out / "adapt.json").exists():
            title, remedy = "an adaptation", "name another --out"
            saved = read_record(out / "adapt.json", Line, title, named="aurank adaptation", version=2, remedy=remedy)
            before = saved["settings"]
            unequal = [key for key in settings if key != "config" and before[key] != settings[key]]
            differing = differences(read_config(before["config"]), config)
            if differing := differing + [f"{key}: {before[key]} != {settings[key]}" for key in unequal]:
                raise UserError(f"{out} holds an adaptation with another {differing[0]} (saved != given): {remedy}")
        search = _Search(out, configs, manifest, fold, saved, listener)
        if not saved["steps"]:
            search.plan(hours)
        listener("Results on held-out training classes:")
        for step in saved["steps"]:
            if step["folds"] and "kept" not in step:
                search.run(step)
        if "test" not in saved:
            search.conclude()
        sizes = ", ".join(f"{count:,} {split}" for split, count in manifest.split_sizes.items())
        facts = {"data": f"{len(manifest):,} images of {manifest.name}, {count_labels(manifest)}; {sizes}"}
        facts["published"] = published_model(configs[PUBLISHED])
        if isinstance(data, str):
            command = ["aurank", "adapt", data, *overrides, f"--out={out}", f"--hours={hours}"]
            facts["command"] = shlex.join([*command, *([f"--backbones={backbones}"] if backbones else [])])
        write_text(out / "adapt.html", render("adapt.html", saved=saved, facts=facts))
        shutil.rmtree(out / "work", ignore_errors=True)
        listener(f"kept: {saved['kept']}{' network, as nothing is surely better' * (saved['kept'] == PUBLISHED)}")
        return saved


def _read(data: str | Manifest, out: Path, changes: Sequence[str]) -> tuple[Config, Manifest]:
    """Return the configuration that names the data, or else a first one for them, and all images."""
    base, overrides = data, ["data.validation_fraction=0", "train.early_stopping=null", "train.trackers=[]"]
    path = str(data).removeprefix("folder:")
    if isinstance(data, str) and Path(path).exists() and not path.endswith((".yaml", ".yml")):
        base = str(out / "first.yaml")
        write_first_configuration(path, base, overwrite=True)
    elif not isinstance(section := read_data(data), Config):
        base, settings = "grocery/finetuned", section.data.model_dump(mode="json", exclude_unset=True)
        images = [f"data.{key}={json.dumps(value)}" for key, value in settings.items()]
        overrides = [*images, *HEADS["head, SupCon"], *overrides]
    config = _changed(read_config(str(base)), *overrides, *changes)
    is_unfit = config.data.name == EMBEDDINGS or config.data.train_labels == "image" or config.model.text is not None
    if is_unfit or config.model.init_from is not None:
        takes = "images of classes and a published network, no rows, texts, views or model.init_from"
        raise UserError(f"{data}: aurank adapt takes {takes}")
    manifest = build_splits(config, data if isinstance(data, Manifest) else read_whole(config.data)).manifest
    return config, replace(manifest, splits=np.where(manifest.splits == "test", "test", "train"))


def _with_backbone(config: Config, name: str) -> Config:
    joined = joined_config(config, load_model(name))
    data = joined.data.model_copy(update=config.data.model_dump(include=SOURCE))
    model = joined.model.model_copy(update={"freeze": config.model.freeze})
    return joined.model_copy(update={"data": data, "model": model})


def _changed(config: Config, *overrides: str) -> Config:
    with warnings.catch_warnings():  # of parameters of what is replaced
        warnings.simplefilter("ignore")
        return read_config(config, overrides)


def _with_interval(ap: np.ndarray, queries: np.ndarray) -> tuple[float, float, float]:
    """Return the mean over queries and its 95 % interval over classes."""
    answer = SeedsAndClasses(queries.astype(np.float64)).answer(ap[None])
    return answer.mean, *(answer.interval or (answer.mean, answer.mean))


@dataclass(eq=False)
class _Search:
    out: Path
    configs: dict[str, Config]  # of the training of each published network, by its step
    manifest: Manifest
    fold: np.ndarray  # of each image, −1 for testing
    saved: Line
    listener: Callable[[str], None]

    def save(self) -> None:
        write_text(self.out / "adapt.json", json.dumps(self.saved, indent=1) + "\n")

    def plan(self, hours: float) -> None:
        """Decide by a trial of some batches of each network, the slowest of which counts, which steps fit."""
        self.listener(f"Plan for {duration(3600 * hours)}, by a trial of some batches:")
        images, folds, embedding, tuning = self.manifest.select(self.fold >= 0), int(self.fold.max()) + 1, 0.0, 0.0
        for name, config in self.configs.items():
            trial = _changed(config, "data.name=given", "model.head_start=null")
            profile = profile_training(trial, dataset=images, steps=2)
            seconds, counts = list[float](), (min(TRIED, len(images)) // 4, min(TRIED, len(images)))
            for count in counts:  # their difference leaves out the loading of the network
                started = time.perf_counter()
                self.embed(config, images.select(np.arange(count)))
                seconds.append(time.perf_counter() - started)
            image = max(seconds[1] - seconds[0], 1e-3) / (counts[1] - counts[0])
            self.saved["ms"][name], embedding = 1000 * image, max(embedding, image * len(self.manifest))
            tuning = max(tuning, embedding + sum(profile.phases.values()) * config.train.steps)
        costs = dict.fromkeys(self.configs, embedding / folds)  # seconds of a fold
        costs |= dict.fromkeys(LINEAR, 1.0) | dict.fromkeys(HEADS, 6.0)  # as assumed
        costs |= {"LoRA": tuning, FINE_TUNING: tuning, AVERAGE: SEEDS * tuning}
        left, reserved, full, all_folds = 3600 * hours, 0.0, 0.0, folds  # full: what all folds of the steps so far take
        if embedding > left:
            raise UserError(f"--hours {hours:g} is too short for one step: the features need {duration(embedding)}")
        for name, cost in costs.items():
            final = max(reserved, cost) if name in IMAGES else 0.0  # what is kept learns again, from all classes
            folds = 1 if name in IMAGES and folds * cost + final > left else folds
            expected, reason = folds * cost, ""
            try:
                if name == "LoRA":  # some networks have no layer for it
                    build_encoder(self.config(name).model, channels=3, load=False)
            except UserError as error:
                reason, cost = f"({first_line(error).rpartition('; ')[2]})", 0.0
            if not reason and expected + final > left:
                enough = np.ceil((full + expected + final) / 36) / 100
                reason = f"for lack of time: --hours {enough:.2f} is enough, with the final training"
            elif not reason:
                left, reserved = left - expected, final
            full += all_folds * cost
            line: Line = {"name": name, "folds": 0 if reason else folds, "reason": reason, "expected_seconds": expected}
            self.saved["steps"].append(line | {"classes": [], "queries": [], "ap": []})
            self.listener(f"  {name}: {duration(expected)} expected" + f", not tried {reason}" * bool(reason))
        unspent = f"{duration(left - reserved)} not needed"
        self.listener(f"  final training on all classes: {duration(reserved)} reserved; {unspent}")
        self.save()

    def run(self, step: Line) -> None:
        """Measure a step on its folds, and keep it if it is surely better than the best before it."""
        name, best = step["name"], self.step(self.saved["kept"])
        try:
            for fold in range(len(step["ap"]), step["folds"]):
                table, step["bytes"] = self.measure(name, fold)
                step["classes"].append([self.manifest.classes[label] for label in table["label"]])
                step["queries"].append(table["num_queries"].tolist())
                step["ap"].append(table["mauprc"].tolist())
                self.save()
        except (Diverged, UserError) as error:
            if name == PUBLISHED:
                raise
            step |= {"folds": 0, "reason": f"({first_line(error)})"}
            self.listener(f"{name}: not tried {step['reason']}")
            return self.save()
        ap, queries = np.concatenate(step["ap"]), np.concatenate(step["queries"])
        step |= {"mauprc": _with_interval(ap, queries), "ms": self.saved["ms"][self.network(name)], "kept": True}
        text = "mAUPRC {:.4f} [{:.4f}, {:.4f}]".format(*step["mauprc"])
        if name != PUBLISHED:
            change = ap - np.concatenate(best["ap"][: step["folds"]])
            difference, two_sided = _with_interval(change, queries), over_seeds(change)[2]  # of classes here
            p = 1.0 if two_sided is None else two_sided / 2 if change.mean() > 0 else 1 - two_sided / 2
            tried = sum(not each["reason"] for each in self.saved["steps"][1:])
            is_better = difference[1] > 0 and p < ALPHA / tried
            step |= {"against": best["name"], "difference": difference, "p": p, "kept": is_better}
            text += ", {:+.4f} [{:+.4f}, {:+.4f}] against {}: ".format(*difference, best["name"])
            text += "kept" if is_better else f"not kept (p {p:.2g}, {ALPHA / tried:.2g} is needed)"
        if step["kept"]:
            self.saved |= {"kept": name, "network": self.network(name)}
        self.listener(f"{name}: {text}")
        return self.save()

    def step(self, name: str) -> Line:
        return next(step for step in self.saved["steps"] if step["name"] == name)

    def network(self, name: str) -> str:
        """Return the published network of a step: the best so far, or the one that the step is of."""
        return name if name in self.configs else self.saved["network"]

    def config(self, name: str, *overrides: str) -> Config:
        """Return the configuration of the training of a step; what learns from no images is a head on features."""
        config = self.configs[self.network(name)]
        if name in IMAGES:
            return _changed(config, *IMAGES[name], *overrides)
        file, per_class = self.features(name), config.sampler.params.get("per_class", 4)
        width = Embedded.load(file).embeddings.shape[1]
        changes = [f"data.root={json.dumps(str(self.out))}", f"data.params.file={file.name}", f"seed={config.seed}"]
        changes += [f"model.dim={min(128, width) if name in HEADS else width}"]
        changes += [f"sampler.params.per_class={min(4, per_class)}"]
        return _changed(read_config("grocery/head"), *changes, *HEADS.get(name, ()))

    def features(self, name: str) -> Path:
        """Return the file of all images' features by the published network of a step; they are embedded once."""
        network = self.network(name)
        file, config = self.out / f"features{[*self.configs].index(network)}.npz", self.configs[network]
        if not file.exists():
            self.embed(config, self.manifest).save(file)
        return file

    def embed(self, config: Config, manifest: Manifest) -> Embedded:
        images = ImageSelection(manifest, ALL, overrides=[f"data.on_error={config.data.on_error}"])
        return embed_model(published_model(config), images)

    def measure(self, name: str, fold: int) -> tuple[dict[str, np.ndarray], int]:
        """Return the table of the classes of a fold, by a step that learns from the others, and its bytes."""
        path = self.learn(name, fold)
        if name in IMAGES:
            embedded = embed_model(f"aurank:{path}", ImageSelection(self.manifest.select(self.fold == fold), ALL))
        else:
            features, head = Embedded.load(self.features(name)), image_weights(load_checkpoint(path))
            embedded = features.select(self.fold[features.ids] == fold)
            rows = torch.from_numpy(np.asarray(embedded.embeddings, np.float64)) @ head["head.weight"].double().T
            embedded = replace(embedded, embeddings=(rows + head["head.bias"]).numpy())
        table = embedded.evaluate(**evaluation_options(self.configs[PUBLISHED])).class_table()
        return table, 4 * embedded.embeddings.shape[1]

    def learn(self, name: str, fold: int = -1) -> Path:
        """Return the checkpoint of a step that learns from all training classes, or from all but those of a fold."""
        config, learning = self.config(name), (self.fold >= 0) & (self.fold != fold)
        features = Embedded.load(self.features(name))
        rows = learning[features.ids]
        if name in {**HEADS, **IMAGES}:
            data = read_whole(config.data).select(rows) if name in HEADS else self.manifest.select(learning)
            runs = []
            seeds = SEEDS if name == AVERAGE else 1
            for seed in range(config.seed, config.seed + seeds):
                runs.append(self.out / "work" / f"{FINE_TUNING if name == AVERAGE else name} {seed} {fold}")
                if name in IMAGES and not (runs[-1] / BEST).exists():
                    step, part = self.step(name), "all classes" if fold < 0 else f"fold {fold + 1}"
                    expected = duration(step["expected_seconds"] / step["folds"] / seeds)
                    self.listener(f"  {name} on {part}, seed {seed}: {expected} expected")
                config = self.config(name, "data.name=given").model_copy(update={"seed": seed})
                result = train(config, runs[-1], resume=True, dataset=data, page=False)
                if result.stopped_by is not None:
                    raise KeyboardInterrupt
            shutil.rmtree(out := self.out / "work/average", ignore_errors=True)
            return average_models(runs, out) if name == AVERAGE else runs[0] / BEST
        matrix = np.asarray(features.embeddings, np.float64)
        ends = np.eye(matrix.shape[1] + 1, matrix.shape[1], k=-1)  # 0 and the unit vectors, which tell a linear map
        if name in LINEAR:
            ends = np.asarray(PostProcessing.parse(LINEAR[name], distance="dot").fit(matrix[rows]).rows(ends))
        bias, *axes = torch.from_numpy(ends).float()
        head = {"head.weight": (torch.stack(axes) - bias).T, "head.bias": bias}
        config = with_features(config, read_whole(config.data))
        content: Line = {"config": config.model_dump(mode="json"), "manifest": self.manifest.sha256, "encoder": head}
        content |= {"data": None, "progress": {}, "average": None, "tokeniser": None}
        save_checkpoint(path := self.out / "work/linear.safetensors", content)
        return path

    def conclude(self) -> None:
        """Write what is kept, learnt from all training classes, and look at the test split, once."""
        name, best, values = self.saved["kept"], self.out / BEST, {}
        content = with_backbone(load_checkpoint(self.learn(name)), str(best))
        content["config"]["data"] |= self.configs[PUBLISHED].data.model_dump(mode="json", include=SOURCE)
        save_checkpoint(best, content | {"manifest": self.manifest.sha256})
        if name in {**HEADS, **IMAGES}:
            write_text(self.out / "best.yaml", f"# Kept by aurank adapt: {name}\n{dump_config(self.config(name))}")
        if "test" in self.manifest.split_sizes:
            tables = {each: self.measure(each, -1)[0] for each in dict.fromkeys((PUBLISHED, name))}
            queries, values = tables[name]["num_queries"], {each: table["mauprc"] for each, table in tables.items()}
            if name != PUBLISHED:
                values["difference"] = values[name] - values[PUBLISHED]
        self.saved["test"] = {each: _with_interval(ap, queries) for each, ap in values.items()}
        for each, interval in self.saved["test"].items():
            self.listener("test, {}: mAUPRC {:.4f} [{:.4f}, {:.4f}]".format(each, *interval))
        self.save()

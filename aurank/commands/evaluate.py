"""Embedding and measuring with any model: what ``aurank embed`` and ``aurank evaluate`` call."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from aurank.config import Config, DataConfig, EvaluateConfig
from aurank.data import ImageDataset, Manifest
from aurank.embedding.cache import EmbeddingCache, data_sha256, weights_sha256
from aurank.embedding.checkpoint import image_weights, load_checkpoint, resolve_checkpoint
from aurank.embedding.choices import read_trained
from aurank.embedding.embed import Embedded, ModelImages, embed
from aurank.embedding.evaluation_options import TRIAL, evaluation_options
from aurank.embedding.from_config import build_dataset, build_encoder, build_transform
from aurank.embedding.image_text_pairs import each_image_once
from aurank.embedding.load_weights import load_weights
from aurank.embedding.preprocessing import with_preprocessing
from aurank.embedding.protocols import Protocol
from aurank.embedding.read_manifest import require_distinct, require_likely_classes, require_room_for
from aurank.embedding.select_images import (
    ImageSelection,
    Selected,
    meaning_of_split,
    require_comparable,
    select,
)
from aurank.errors import UserError
from aurank.evaluation.engine.inputs import ProgressCallback, byte_count
from aurank.evaluation.index.neighbours import Index
from aurank.evaluation.report import Report
from aurank.evaluation.trec import evaluate_run, read_qrels, read_run, run_names, write_run
from aurank.models.adapters.images import ADAPTERS, check_model, load_model

_KEEP = "data.repeated=keep"

Listener = Callable[[str, int, int], None]
"""Told a stage, such as "embedding" or "ranking", how much of it is done and how much there is."""


@dataclass(frozen=True)
class RunOptions:
    """How a model is run; none of it is meant to change a number.

    `batch`: images embedded at once (default: the configuration's 256). `device`: default CUDA where there is one.
    `cache`: folder of the embedding cache, None for none. `allow_code`: whether ``python:`` models may run. `listener`
    draws progress; `say` is given lines such as what was read from the cache. `finished` is given each result with its
    name, before what follows is begun. `given`: these options as they were typed.
    """

    batch: int | None = None
    device: str | None = None
    cache: Path | None = None
    allow_code: bool = False
    listener: Listener | None = None
    say: Callable[[str], None] | None = None
    finished: Callable[[str, Any], None] | None = None
    given: Sequence[str] = ()

    def finish(self, name: str, result: Any) -> None:
        """Give `finished` a result, where there is one to be told."""
        if self.finished is not None:
            self.finished(name, result)

    def stage(self, name: str) -> ProgressCallback | None:
        """What tells the listener how far that stage is; None without a listener."""
        return None if self.listener is None else partial(self.listener, name)


def evaluate_model(
    model: str,
    images: ImageSelection | None = None,
    *,
    labels: Path | None = None,
    trec_run: Path | None = None,
    running: RunOptions | None = None,
    **options: Any,
) -> Report:
    """The exact report of a model, or of saved embeddings, on the images chosen.

    Args:
        model: ``aurank:DIR/best``, a name as for ``aurank.models.adapters.images.load_model``, ``embeddings:FILE``, or
            ``trec:RUN``, a file of ranked lists.
        labels: for ``embeddings:FILE.npy``: the file of their labels; for ``trec:RUN`` the qrels.
        trec_run: a file to write the nearest 1000 images of each query to, with the qrels beside it, for trec_eval: by
            the images' paths, or by their ids where no paths are known.
        images: with ``embeddings:FILE`` at most a protocol, whose data, read too, must be what was embedded.
        options: arguments of ``aurank.evaluate``; where absent, those of a checkpoint's configuration hold.

    Raises:
        UserError: whatever is wrong with the options, before anything is embedded where that can be known.
    """
    images, running = images or ImageSelection(), running or RunOptions()
    if model.startswith("trec:"):
        given = [*images.given, *([] if trec_run is None else [f"--trec-run {trec_run}"]), *running.given]
        report = _evaluate_run(model, labels, given, options)
        running.finish("report", report)
        return report
    kind, what = split_name(model)
    images.check()
    protocol = images.find_protocol()
    if trec_run is not None and protocol is not None and protocol.seeds:
        raise UserError(f"--trec-run has no use with --protocol {protocol.name}, which draws several galleries")
    device = choose_device(running.device)
    options = {**options, "device": device}
    if kind == "embeddings":
        given = [option for option in images.given if option != _KEEP]
        if given and protocol is None:
            raise UserError(f"{given[0]} has no use with --model {model}: saved embeddings bring their own labels")
        _check_options(options, protocol)
        embedded = Embedded.load(Path(what), labels)
        again = [path for path, count in Counter(embedded.paths.tolist()).items() if path and count > 1]
        if again and _KEEP not in images.overrides:
            raise UserError(f"{what} holds image {again[0]!r} twice; embed each image once, or add {_KEEP}")
        if protocol is not None:
            protocol.require_same(embedded, select(images, None).images)
        notes = [f"model {model}; {len(set(embedded.labels.tolist())):,} classes"]
    else:
        if labels is not None:
            raise UserError(f"--labels {labels} has no use with --model {model}: the labels come with the images")
        prepared = prepare(model, images, running)
        require_comparable(prepared.dataset.manifest)
        if protocol is None or not protocol.seeds:
            require_room_for(prepared.dataset.manifest)
        inherited = {**prepared.options, **options}
        if protocol is not None and "recall_at" not in options:
            inherited.pop("recall_at", None)
        options = inherited
        _check_options(options, protocol)
        if images.data is not None or images.query is not None:  # a folder too high can have been named
            manifest = prepared.dataset.manifest
            sides = f"{int(manifest.is_query.sum()):,} queries, {int(manifest.is_gallery.sum()):,} gallery rows"
            require_likely_classes(manifest, prepared.data, counts=sides)
        require_distinct(prepared.dataset.manifest, prepared.data)
        embedded = embed_prepared(prepared, device, running)
        notes = [prepared.note, *prepared.remarks, *skipped(prepared.dataset, embedded)]
    options.setdefault("progress", running.stage("ranking"))
    names = embedded.paths if all(embedded.paths.tolist()) else embedded.ids
    if trec_run is not None:
        run_names(names.tolist())  # refused before the ranking
    report = embedded.evaluate(**options) if protocol is None else protocol.evaluate(embedded, **options)
    report = dataclasses.replace(report, notes=[*report.notes, *notes])
    running.finish("report", report)
    if trec_run is not None:
        _write_run(trec_run, embedded, names, options.get("distance", "cosine"))
    return report


def _evaluate_run(model: str, qrels: Path | None, given: list[str], options: dict[str, Any]) -> Report:
    """The report of a file of ranked lists."""
    known = ("recall_at", "metrics", "resampling")
    given += [f"--{name.replace('_', '-')} {value}" for name, value in options.items() if name not in known]
    if given:
        raise UserError(f"{given[0]} has no use with --model {model}, whose lists are ranked already")
    if qrels is None:
        raise UserError(f"--model {model} needs the judgements: give the file of qrels as --labels FILE")
    report = evaluate_run(read_run(Path(model.removeprefix("trec:"))), read_qrels(qrels), **options)
    return dataclasses.replace(report, notes=[*report.notes, f"model {model}"])


def _write_run(path: Path, embedded: Embedded, names: np.ndarray, distance: str) -> None:
    """A run of trec_eval and its qrels."""
    roles = {name: getattr(embedded, name) for name in ("is_query", "is_gallery", "groups")}
    qrels = path.with_suffix(".qrels")
    write_run(path, qrels, embedded.embeddings, embedded.labels, names.tolist(), **roles, distance=distance)


def embed_model(model: str, images: ImageSelection | None = None, *, running: RunOptions | None = None) -> Embedded:
    """The embeddings of the images chosen, under the model's own preprocessing; arguments as for `evaluate_model`."""
    images, running = images or ImageSelection(), running or RunOptions()
    if split_name(model)[0] == "embeddings":
        raise UserError(f"--model {model}: these are embeddings already; name a model")
    device = choose_device(running.device)
    prepared = prepare(model, images, running)
    embedded = embed_prepared(prepared, device, running)
    if running.say is not None:
        for line in (*prepared.remarks, *skipped(prepared.dataset, embedded)):
            running.say(line)
    return embedded


def choose_device(name: str | None) -> torch.device:
    """The device of that name, tried out; by default CUDA where there is one, else the CPU."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        text = str(error).splitlines()[0]
        raise UserError(f"--device {name!r} cannot be used here ({text}); cpu always can") from error
    return device


@dataclass(frozen=True, eq=False)
class Prepared:
    """A model and the images as it wants them.

    `description` decides an embedding together with weights and images; `remarks` say what a split means.
    """

    name: str
    module: nn.Module
    dataset: ImageDataset
    description: str
    batch: int
    workers: int
    options: dict[str, Any]
    data: DataConfig
    config: Config | None  # of a model that was trained here
    dataset_of: Callable[[Manifest], ImageDataset]  # other images for the same model
    remarks: list[str]

    @property
    def note(self) -> str:
        manifest = self.dataset.manifest
        of = f"{manifest.name}, manifest {manifest.sha256[:16]}, {len(manifest.classes):,} classes"
        return f"model {self.name}; {len(manifest):,} images of {of}"


def prepare(model: str, images: ImageSelection, running: RunOptions) -> Prepared:
    """The model, which is not run yet, and the images chosen; UserError for either."""
    kind, what = split_name(model)
    if kind != "aurank":
        check_model(model, allow_code=running.allow_code)
        selected = select_images(images, None)
        keys = ("image_size", "channels", "normalise", "interpolation", "test_transform", "train_transform", "cache")
        unusable = tuple(f"data.{key}" for key in keys)
        for override in images.overrides:
            if override.startswith(unusable):
                raise UserError(f"{override} has no use with --model {model}, which brings its own preprocessing")
        loaded = load_model(model, allow_code=running.allow_code)
        data = selected.data

        def dataset_of(manifest: Manifest) -> ImageDataset:
            return ModelImages(manifest, loaded, on_error=data.on_error, max_pixels=data.max_pixels)

        config, module, description, options = None, loaded.module, loaded.description, {}
    else:
        checkpoint = load_checkpoint(resolve_checkpoint(what))
        selected = select_images(images, checkpoint)
        saved = read_trained(checkpoint["config"])
        config = saved.model_copy(update={"data": selected.data})
        config = with_preprocessing(config, saved)  # where it was set to null
        module = build_encoder(config.model, channels=config.data.channels, load=False)
        load_weights(module, image_weights(checkpoint), what)
        data = config.data
        description = own_description(config)

        def dataset_of(manifest: Manifest) -> ImageDataset:
            return build_dataset(data, manifest, train=False)

        options = evaluation_options(config)
    usual = EvaluateConfig() if config is None else config.evaluate
    batch = usual.batch if running.batch is None else running.batch
    dataset = dataset_of(selected.images)
    remarks = meaning_of_split(images, selected)
    workers = data.workers
    return Prepared(model, module, dataset, description, batch, workers, options, data, config, dataset_of, remarks)


def select_images(images: ImageSelection, checkpoint: dict[str, Any] | None) -> Selected:
    """What `select` gives, but of pairs with texts each image once."""
    selected = select(images, checkpoint)
    return selected._replace(images=each_image_once(selected.images))


def own_description(config: Config) -> str:
    """All that decides an embedding of a model that was trained here, beside its weights and the images."""
    return f"{config.model!r} {build_transform(config.data, train=False)!r}"


def opened_cache(
    running: RunOptions, name: str, module: nn.Module, *, description: str, manifest: Manifest
) -> EmbeddingCache | None:
    """The cache of a model's embeddings of the images of a manifest, None where none is wanted."""
    if running.cache is None:
        return None
    return EmbeddingCache(
        running.cache,
        weights=weights_sha256(module),
        transform=description,
        data=data_sha256(manifest),
        about={"model": name, "images": len(set(manifest.paths)), "of": manifest.name},
        say=running.say,
    )


def embed_prepared(prepared: Prepared, device: torch.device, running: RunOptions) -> Embedded:
    """The embeddings of the images of ``prepared``, from the cache as far as it holds them."""
    manifest = prepared.dataset.manifest
    return embed(
        prepared.module.to(device),
        prepared.dataset,
        batch=prepared.batch,
        workers=prepared.workers,
        device=device,
        progress=running.stage("embedding"),
        cache=opened_cache(
            running, prepared.name, prepared.module, description=prepared.description, manifest=manifest
        ),
    )


def skipped(dataset: ImageDataset, embedded: Embedded) -> list[str]:
    """A line on the images that were left out, if any were."""
    kept = set(embedded.ids.tolist())
    paths = [path for row, path in enumerate(dataset.manifest.paths) if row not in kept]
    if not paths:
        return []
    more = f", and {len(paths) - 3} more" if len(paths) > 3 else ""
    return [f"skipped, unreadable: {len(paths):,} of {len(dataset):,} images ({'; '.join(paths[:3])}{more})"]


def _check_options(options: dict[str, Any], protocol: Protocol | None) -> None:
    """Raises UserError for options that cannot be met, by evaluating four rows: hours before they would be needed."""
    byte_count(options.get("max_memory", "1GiB"))
    if isinstance(index := options.get("index"), str):
        _check_factory(index, options.get("distance", "cosine"), options["device"])
    # An index has to be trained on more rows than these, the memory needed grows with them, and no progress is made.
    tried = {name: value for name, value in options.items() if name not in ("index", "max_memory", "progress")}
    _ = TRIAL.evaluate(**tried) if protocol is None else protocol.evaluate(TRIAL, **tried)


def _check_factory(factory: str, distance: str, device: torch.device) -> None:
    """Raises UserError for a text that makes no index, whatever the width of the embeddings."""
    try:
        Index(256, factory, distance=distance, device=device)
    except UserError as error:
        # Codes divide the width, which only the first embedding tells.
        if "should be a multiple" not in str(error):
            raise


def split_name(model: str) -> tuple[str, str]:
    """The kind of a model, "aurank", "embeddings" or an adapter's, and what follows the colon; UserError for others."""
    kind, _, what = model.partition(":")
    known = ("aurank", "embeddings", *ADAPTERS)
    if kind == "trec":
        raise UserError(
            f"--model {model}: a file of ranked lists, which `aurank evaluate` measures, and nothing else; name a model"
        )
    if kind not in known or not what:
        shapes = "aurank:DIR/best, embeddings:FILE, timm:NAME[,pretrained=false]"
        raise UserError(
            f"--model {model!r}: expected {shapes}, or one of {', '.join(f'{name}:…' for name in known[3:])}"
        )
    return kind, what

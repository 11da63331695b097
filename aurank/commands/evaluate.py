"""Measuring any model: what ``aurank evaluate``, ``aurank calibrate`` and ``aurank mine`` call."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
from pydantic import PositiveInt

from aurank.arrays import Rows
from aurank.commands.galleries.align import mapped_rows
from aurank.commands.galleries.postprocess import fitted_on_training, read_steps
from aurank.commands.report import Measurement, evaluation_page
from aurank.commands.run_options import RunOptions, prepare_model
from aurank.data.checks.findings import DoctorReport
from aurank.data.checks.negatives import TEXTS, Table, examine_negatives, write_negatives
from aurank.data.manifest import count_labels
from aurank.data.saved_embeddings import EmbeddingSource
from aurank.embedding.collection import is_collection, read_collection
from aurank.embedding.embedded import TRIAL, Embedded, evaluate_together, noted, trial_of
from aurank.embedding.image_selection import ALL, ImageSelection
from aurank.embedding.locations import split_name
from aurank.embedding.protocols import Protocol
from aurank.embedding.select_images import require_distinct, require_likely_classes, require_measurable, select
from aurank.errors import UserError
from aurank.evaluation.bootstrap import Resampling
from aurank.evaluation.calibration import Calibration, calibrate, check_aim
from aurank.evaluation.compare import compare
from aurank.evaluation.engine.scores import DISTANCES
from aurank.evaluation.evaluate import EvaluateOptions
from aurank.evaluation.index.neighbours import check_index, check_rows
from aurank.evaluation.index.overview import class_cosines, farthest_first
from aurank.evaluation.inputs import byte_count, numbered
from aurank.evaluation.metrics import pooled_names
from aurank.evaluation.negatives import mine_negatives
from aurank.evaluation.postprocessing import Codes, PostProcessing
from aurank.evaluation.report import Report
from aurank.files import csv_text, write_text
from aurank.names import require_choice
from aurank.reporting.doctor_page import doctor_page
from aurank.reporting.results import CALIBRATION, PAGE, STEPS, require_same_command, write_results

_KEEP = "data.repeated=keep"
RESAMPLES, NEIGHBOURS = 1000, 10  # of a page: 0.25 s for 60,502 queries of 11,316 classes, 15 metrics


def evaluate_model(
    model: str,
    images: ImageSelection | None = None,
    *,
    out: Path | None = None,
    labels: Path | None = None,
    postprocess: str | None = None,
    fit_on: Path | None = None,
    dims: Sequence[int] = (),
    precisions: Sequence[str] = (),
    rescore: int | None = None,
    intervals: int | None = None,
    seed: int = 0,
    report: bool = True,
    show_class: Sequence[str] = (),
    gallery_embeddings: Path | None = None,
    map_file: Path | None = None,
    overwrite: bool = False,
    running: RunOptions | None = None,
    **options: Unpack[EvaluateOptions],
) -> Report:
    """Return the exact report of a model, or of saved embeddings, on the images chosen.

    Args:
        model: aurank:DIR/best, hf-hub:OWNER/NAME, timm:NAME[,pretrained=false], open_clip:NAME, transformers:NAME,
            onnx:FILE, python:MODULE:FUNCTION, or embeddings:FILE (.npz, or .npy with `labels`).
        images: with ``embeddings:FILE`` at most a protocol, whose data must be what was embedded, or a split; of
            several it is the test split.
        out: folder for report.html, report.json, per_query.parquet and per_class.csv.
        labels: labels (.npy) of an .npy of embeddings.
        postprocess: steps such as "whiten:dim=128, query_expansion:k=5", or a .safetensors of them.
        fit_on: embeddings (.npz) to fit the steps on; default: the split train.
        dims: measure the first numbers of embeddings too, such as 64,128.
        precisions: measure coarser numbers too: int8, binary, with commas.
        rescore: score the best so many of those again in float32, such as 100.
        intervals: bootstrap resamples of the 95% intervals, 0 for none; default: 1000, without a page 0.
        seed: seed of the bootstrap.
        report: whether to write report.html, a page to look at.
        show_class: a class whose queries the page shows; may be given repeatedly.
        gallery_embeddings: an old model's embeddings of the images (.npz, a folder or an index), to be the gallery.
        map_file: what ``aurank align`` wrote to take them into the space of the new model.
        overwrite: replace the result of another command in `out`.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/rows.npz", embeddings=np.eye(2)[[0, 0, 1, 1]], labels=[5, 5, 6, 6])
        ...     evaluate_model(f"embeddings:{folder}/rows.npz", out=Path(folder, "out"), report=False).mauprc
        ...     sorted(path.name for path in Path(folder, "out").iterdir())
        1.0
        ['per_class.csv', 'per_query.parquet', 'report.json']
    """
    images, running = images or ImageSelection(), running or RunOptions()
    has_page = report and out is not None
    options.setdefault("neighbours", NEIGHBOURS if has_page else 0)
    if resamples := (RESAMPLES if has_page else 0) if intervals is None else intervals:
        options["resampling"] = Resampling(resamples, seed)
    if dims or precisions:
        options["codes"] = Codes(dims=tuple(dims), precisions=tuple(precisions) or ("float32",), rescore=rescore)
    steps = read_steps(postprocess, fit_on, options.get("distance", "cosine"))
    protocol = images.find_protocol()
    if gallery_embeddings is not None:
        mapped_rows(gallery_embeddings, map_file, [])  # a damaged one is refused before any image is embedded
    measured, settings = _measure(model, images, labels, steps, running, {**options})
    settings.setdefault("progress", running.stage("ranking"))
    embedded, beside = measured.embedded, dict[str, Embedded]()
    if gallery_embeddings is not None:
        names = embedded.paths.tolist() if any(embedded.paths) else [f"row {row}" for row in embedded.ids.tolist()]
        plain, mapped, fitted = mapped_rows(gallery_embeddings, map_file, names)
        beside = {"new on new": embedded, "old on old": replace(embedded, embeddings=plain)}
        embedded = replace(embedded, gallery_embeddings=mapped)
        too_good = f"{map_file} was fitted on {fitted:,} of these {len(names):,} images, so the figures are too good"
        remedy = [f"{too_good}: fit it on others, such as those of a split train"] * (fitted > 0)
        measured = replace(measured, embedded=embedded, notes=[*measured.notes, *remedy])
    measure = embedded.evaluate if protocol is None else partial(protocol.evaluate, embedded)
    result = noted(evaluate_together(measure, running.group, **settings), *measured.notes)
    for name, other in beside.items():
        change = compare(evaluate_together(other.evaluate, running.group, **{**settings, "neighbours": 0}), result)
        text = "{:.4f}, this {:+.4f} [{:+.4f}, {:+.4f}]".format(change.a, change.difference, *change.interval)
        result = noted(result, f"{name}: mAUPRC {text} on {gallery_embeddings}; {change.how}")
    if "postprocess" not in settings and running.group.rank == 0:
        result = replace(result, group_pairs=embedded.group_pairs(settings))
    if (steps := settings.get("postprocess")) is not None:
        running.finished("postprocessing", steps)
    running.finished("measured", measured)
    running.finished("report", result)
    if out is not None and running.group.rank == 0:
        result = result.made_by(running.command)
        write_results(result, out, overwrite=overwrite)
        if steps is not None:
            steps.save(out / STEPS)
        if report:
            write_text(out / PAGE, evaluation_page(result, measured, classes=show_class))
    return result


def calibrate_model(
    model: str,
    images: ImageSelection | None = None,
    *,
    precision: float | None = None,
    false_match_rate: float | None = None,
    labels: Path | None = None,
    postprocess: str | None = None,
    fit_on: Path | None = None,
    distance: str | None = None,
    max_memory: str | int | None = None,
    out: Path | None = None,
    overwrite: bool = False,
    running: RunOptions | None = None,
) -> Calibration:
    """Return the lowest threshold with a precision, or a false-match rate, over all pairs of the images chosen.

    Args:
        precision: the part of the matches that has to be right, such as 0.99.
        false_match_rate: instead: the part of the negative pairs that may match, such as 1e-4.
        distance: cosine (the default), dot or euclidean.
        max_memory: bound on the working memory, such as 1GiB.
        out: folder for calibrate.html and calibration.json.
        overwrite: replace the result of another command in `out`.
        model, images, labels, postprocess, fit_on, running: as for ``evaluate_model``; steps that order lists
            anew are refused.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/rows.npz", embeddings=[[1.0, 0.0], [0.9, 0.1], [0.8, 0.6]], labels=[5, 5, 6])
        ...     calibrate_model(f"embeddings:{folder}/rows.npz", precision=1.0).threshold
        0.99
    """
    check_aim(precision, false_match_rate)
    images, running = images or ImageSelection(), running or RunOptions()
    options = {"distance": distance, "max_memory": max_memory}
    options = {name: value for name, value in options.items() if value is not None}
    steps = read_steps(postprocess, fit_on, distance or "cosine")
    if steps is not None and steps.list_step is not None:
        raise UserError(f"{steps.list_step.name} re-scores lists, so a score threshold does not apply")
    measured, settings = _measure(model, images, labels, steps, running, options)
    problem, steps = measured.embedded.problem(), settings.get("postprocess")
    if steps is not None:
        steps.check_ready(distance or "cosine")
        problem = steps.apply(problem, device=str(running.torch_device)).problem
    calibration = calibrate(
        problem,
        precision=precision,
        false_match_rate=false_match_rate,
        progress=running.stage("counting pairs"),
        **{name: value for name, value in settings.items() if name in ("distance", "max_memory", "device")},
    )
    if steps is not None:
        calibration = replace(calibration, notes=[steps.note, *calibration.notes])
    if out is not None:
        if not overwrite:
            require_same_command(out, running.command, CALIBRATION[0])
        from aurank.reporting.calibration_page import write_calibration  # matplotlib takes most of a second

        write_calibration(calibration, out, of=model, command=running.command)
    return calibration


def mine_model(
    model: str,
    images: ImageSelection | None = None,
    *,
    per_query: PositiveInt = 10,
    margin: float = np.inf,
    suspect: float = 0.3,
    distance: str = "cosine",
    select: PositiveInt | None = None,
    by: Literal["diverse", "uncertain"] = "diverse",
    labelled: Path | None = None,
    labels: Path | None = None,
    out: Path | None = None,
    running: RunOptions | None = None,
) -> tuple[Table, DoctorReport | str]:
    """Return pairs of images and their hard negatives, by labels alone, and what the doctor finds in them.

    With `select` return instead a table of the images to label, and its coverage in words.

    Args:
        model, labels, running: as for ``evaluate_model``.
        images: its ``data``, ``split`` (default: train, or all images where there is none) and ``overrides``.
        per_query: hard negatives of each image.
        margin: keep those less than this behind the best positive, such as 0.1.
        suspect: part of a negative's neighbours that makes it suspect.
        distance: cosine, dot or euclidean.
        select: instead of mining, choose so many images to label, by cosine distance.
        by: diverse: each the farthest from all before it; uncertain: the least margin between two labelled classes.
        labelled: the model's embeddings (.npz) of images that have labels already.
        out: folder for negatives.parquet and mine.html, or for selected.csv.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/rows.npz", embeddings=np.eye(4)[[0, 0, 1, 1]] + 1, labels=[5, 5, 6, 6])
        ...     table, report = mine_model(f"embeddings:{folder}/rows.npz", per_query=1)
        >>> table["negative"].tolist(), table["margin"].round(3).tolist()
        (['row 2', 'row 2', 'row 0', 'row 0'], [0.143, 0.143, 0.143, 0.143])
    """
    images, running, manifest = replace(images or ImageSelection(), usual="train"), running or RunOptions(), None
    require_choice("distance", distance, DISTANCES)
    require_choice("by", by, ("diverse", "uncertain"))
    examples = None if labelled is None else Embedded.load(labelled)
    if by == "uncertain" and (examples is None or examples.multi_label or len(np.unique(examples.labels)) < 2):
        raise UserError("--by uncertain needs --labelled FILE: embeddings of images, one label each, of two classes")
    source, prepared = split_name(model)[1], None
    if model.startswith("embeddings:"):
        embedded, notes = saved_embeddings(model, source, labels, images)
    else:
        prepared = prepare_model(model, images, running, labels=labels)
        manifest = prepared.dataset.manifest
        source = manifest.name
        if select is None:
            require_measurable(manifest, pooled=False)
            require_likely_classes(manifest, prepared.data, counts="to be mined")
    listed = embedded if manifest is None else manifest
    paths = [*map(str, listed.paths)] if any(listed.paths) else [f"row {row}" for row in embedded.ids.tolist()]
    is_plain = listed.positives is None and not listed.multi_label and len(set(paths)) == len(paths)
    if select is None and not is_plain:
        raise UserError(
            f"negatives of {source} are mined by classes and named by paths: list each image once, in one class"
        )
    if prepared is not None:
        embedded, notes = prepared.embed()
        running.tell(*prepared.remarks, *notes[1:])
    images_named = np.array(paths if prepared is None else embedded.paths.tolist(), object)
    if select is not None:
        count = min(select, len(images_named))
        table, coverage = _choose(embedded.embeddings, images_named, count, by, examples)
        if out is not None:
            write_text(out / "selected.csv", csv_text([table, *zip(*table.values(), strict=True)]))
        return table, f"{count:,} of {len(images_named):,} images of {source}, {by}: {coverage}"
    pairs = mine_negatives(
        embedded.embeddings,
        embedded.labels,
        per_query,
        suspect=suspect,
        distance=distance,
        device=running.torch_device,
        progress=running.stage("mining"),
    )
    pairs = {name: values[pairs["margin"] < margin] for name, values in pairs.items()}
    if not len(pairs["query"]):
        raise UserError(f"no image of {source} has a positive, and a negative within --margin {margin}")
    names = embedded.labels if embedded.classes is None else embedded.classes[embedded.labels]
    texts = [kind[pairs[side]] for kind in (images_named, names.astype(str).astype(object)) for side in TEXTS[:2]]
    table = {**pairs, **dict(zip(TEXTS, texts, strict=True))}
    counts = {"images": len(images_named), "classes": len(np.unique(names)), "pairs": len(texts[0])}
    report = DoctorReport(f"hard negatives of {source}", counts, (), manifest)
    report = report.with_findings(examine_negatives(table, paths))
    if out is not None:
        write_negatives(table, out / "negatives.parquet")
        summary = "The nearest images of other classes: what is odd among them. negatives.parquet has all pairs."
        page = doctor_page(report, title="Mining", summary=summary, command=running.command or "")
        write_text(out / "mine.html", page)
    return table, report


def _choose(rows: Rows, paths: np.ndarray, count: int, by: str, examples: Embedded | None) -> tuple[Table, str]:
    labelled = np.asarray(rows[:0] if examples is None else examples.embeddings)
    if labelled.shape[1] != rows.shape[1]:
        raise UserError(f"--labelled has {labelled.shape[1]} numbers a row, the model {rows.shape[1]}: use one model")
    for side, embeddings in (("query", rows), ("labelled", labelled)):
        check_rows(embeddings, side=side, distance="cosine")
    if examples is not None and by == "uncertain":
        labels, _, texts = numbered(examples.labels, None, name="label")
        cosine, nearest = class_cosines(rows, labelled, np.asarray(labels), 2)
        margin = cosine[:, 0] - cosine[:, 1]
        chosen = np.argsort(margin, kind="stable")[:count]
        classes = examples.classes if texts is None else texts
        names = nearest[chosen] if classes is None else classes[nearest[chosen]]
        columns = {"margin": margin[chosen], "nearest": names[:, 0], "second": names[:, 1]}
    else:
        covered = np.inf if examples is None else _distance(rows, labelled)
        chosen, distance = farthest_first(rows, count, covered)
        columns = {"distance": np.array([None if gap == np.inf else gap for gap in distance.tolist()])}
    draws = [np.random.default_rng(seed).choice(len(rows), count, replace=False) for seed in range(5)]
    largest, *random = (_distance(rows, np.concatenate([labelled, rows[choice]])).max() for choice in (chosen, *draws))
    of = "one" if examples is None else "one or a labelled image"
    compared = f"{np.mean(random):.4f} for as many at random, the mean of 5 draws"
    return {"path": paths[chosen], **columns}, f"no image is farther than {largest:.4f} from a chosen {of}; {compared}"


def _distance(rows: Rows, centres: np.ndarray) -> np.ndarray:
    return 1 - class_cosines(rows, centres, np.zeros(len(centres), np.int64), 1)[0][:, 0]


def _measure(
    model: str,
    images: ImageSelection,
    labels: Path | None,
    steps: PostProcessing | None,
    running: RunOptions,
    options: dict[str, Any],
) -> tuple[Measurement, dict[str, Any]]:
    kind, source = split_name(model)
    options, protocol = {**options, "device": running.torch_device}, images.find_protocol()
    if kind == "embeddings":
        if steps is not None:
            steps.check_ready(options.get("distance", "cosine"))
        _check_options(options, protocol)
        embedded, notes = saved_embeddings(model, source, labels, images)
        if steps is not None:
            options["postprocess"] = steps
        return Measurement(model, embedded, notes=notes), options
    prepared = prepare_model(model, images, running, labels=labels)
    manifest = prepared.dataset.manifest
    require_measurable(manifest, pooled=bool(pooled_names(options.get("metrics"))))
    options = prepared.evaluation_options(protocol, options)
    _check_options(options, protocol, trial_of(manifest))
    if isinstance(images.data, str):  # a folder too high can have been named
        sides = f"{int(manifest.is_query.sum()):,} queries, {int(manifest.is_gallery.sum()):,} gallery rows"
        require_likely_classes(manifest, prepared.data, counts=sides)
    require_distinct(manifest, prepared.data)
    if steps is not None:
        options["postprocess"] = fitted_on_training(steps, prepared)
    embedded, notes = prepared.embed()
    measured = None if isinstance(manifest.source, EmbeddingSource) else manifest
    notes = [notes[0], *prepared.remarks, *prepared.overlap, *notes[1:]]
    return Measurement(model, embedded, measured, notes, prepared.model), options


def saved_embeddings(model: str, path: str, labels: Path | None, images: ImageSelection) -> tuple[Embedded, list[str]]:
    split_option = f"--split {images.split}"
    protocol = images.find_protocol()
    options = [option for option in images.given if option not in (_KEEP, split_option)]
    if options and protocol is None:
        raise UserError(f"{options[0]} has no use with --model {model}: saved embeddings bring their own labels")
    if labels is not None and is_collection(path):
        raise UserError(f"--labels {labels} has no use with {path}, which brings its own classes")
    embedded = read_collection(path) if is_collection(path) else Embedded.load(Path(path), labels)
    several = embedded.splits is not None and len(set(embedded.splits.tolist())) > 1
    if images.split is not None and embedded.splits is None:
        raise UserError(f"{split_option} has no use with --model {model}: {path} holds no array 'splits'")
    notes = []
    split = images.split or (images.usual if several and protocol is None else ALL)
    if split != ALL and embedded.splits is not None:
        rows = embedded.splits == split
        if not rows.any():
            splits = ", ".join(dict.fromkeys(embedded.splits.tolist()))
            raise UserError(f"{path} has no embeddings of split {split!r}, only of {splits}; choose one with --split")
        notes.append(f"split {split}: {int(rows.sum()):,} of {len(rows):,} rows")
        embedded = embedded.select(rows)
    names = np.sort(embedded.paths)
    repeated = names[1:][(names[1:] == names[:-1]) & (names[1:] != "")]
    if len(repeated) and _KEEP not in images.overrides:
        raise UserError(f"{path} holds image {str(repeated[0])!r} twice; embed each image once, or add {_KEEP}")
    if protocol is not None:
        protocol.require_same(embedded, select(images, None).images)
    return embedded, [f"model {model}; {count_labels(embedded)}", *notes]


def _check_options(options: dict[str, Any], protocol: Protocol | None, trial: Embedded = TRIAL) -> None:
    byte_count(options.get("max_memory", "1GiB"))
    if isinstance(index := options.get("index"), str):
        check_index(index, options.get("distance", "cosine"), options["device"])
    # An index has to be trained on more rows than these, the memory needed grows with them, and no progress is made.
    # What is learnt, and widths, do not fit four rows of two numbers.
    untried = ("index", "max_memory", "progress", "postprocess", "codes")
    if protocol is not None and protocol.roles:
        is_query = np.array([True, False, True, False])
        trial = replace(trial, is_query=is_query, is_gallery=~is_query)
    tried = {name: value for name, value in options.items() if name not in untried} | {"distributed": False}
    _ = trial.evaluate(**tried) if protocol is None else protocol.evaluate(trial, **tried)

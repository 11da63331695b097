"""Looking at data and embeddings before they are used: what ``aurank doctor`` calls."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int64

from aurank.arrays import select_rows
from aurank.commands.run_options import RunOptions, prepare_model
from aurank.config import Config
from aurank.data import Manifest
from aurank.data.checks.doctor import examine
from aurank.data.checks.findings import DoctorReport, Finding, finding_of, require_table
from aurank.data.checks.negatives import examine_negatives, read_negatives
from aurank.data.manifest import labels_among
from aurank.embedding.embedded import Embedded
from aurank.embedding.image_selection import ImageSelection
from aurank.embedding.image_text_pairs import each_image_once
from aurank.embedding.select_images import asks_about_classes, read_manifest
from aurank.embedding.settings import read_data
from aurank.errors import UserError
from aurank.evaluation.checks import (
    close_rows,
    crowded,
    doubtful_labels,
    faulty_rows,
    has_collapsed,
    near_rows,
    spread,
    with_cosines,
)
from aurank.evaluation.engine.nearest import NearestRows

CANDIDATES = 0.9  # cosine from which images are compared by their pixels
_CLOSE = "nearly equal embeddings"
NEARLY_EQUAL = 0.98  # cosine of embeddings that are taken for one, where pixels are not compared


def examine_rows(
    embedded: Embedded,
    labelled: Bool[np.ndarray, " row"],
    *,
    rows: Int64[np.ndarray, " row"] | None = None,
    lists: NearestRows | None = None,
    by_cosine: bool = False,
) -> tuple[list[Finding], NearestRows]:
    """Return what is wrong by embeddings alone, and their lists by cosine; faulty rows have findings of their own only.

    Args:
        labelled: which embeddings have a label.
        rows: of the data set, by embedding; None of embeddings without one.
        lists: of an evaluation of `embedded`, its queries and gallery counted each by itself; None searches new ones.
        by_cosine: whether their scores are cosines.
    """
    embeddings, classes = embedded.embeddings, embedded.classes
    faulty = faulty_rows(embeddings)
    sound = np.setdiff1d(np.arange(len(embeddings)), np.concatenate([faulty["not_finite"], faulty["zero"]]))

    def name(row: int) -> str:
        return str(embedded.paths[row]) or f"row {row}"

    def of(kind: str, positions: np.ndarray, remarks: Sequence[str] = ()) -> Finding:
        remarks = remarks or [""] * len(positions)
        names = [name(row) + remark for row, remark in zip(positions.tolist(), remarks, strict=True)]
        data_rows = positions if rows is None else rows[positions]
        return finding_of(kind, names, [[row] for row in data_rows.tolist()])

    if lists is None:
        searched, near = sound, near_rows(embeddings, sound)
    else:
        searched = np.flatnonzero(embedded.is_gallery)
        query = np.flatnonzero(embedded.is_query)[lists.query]
        near = replace(lists, query=query, row=np.where(lists.row >= 0, searched[lists.row], -1))
        near = near if by_cosine else with_cosines(near, embeddings)
    findings = [of(kind, positions) for kind, positions in faulty.items()]
    if len(sound) > 1:
        usual = np.setdiff1d(sound, faulty["length"])
        rank, cosine, silent = spread(select_rows(embeddings, usual if len(usual) > 1 else sound))
        dim = embeddings.shape[1]
        text = f"effective rank {rank:.1f} of {dim}, mean cosine {cosine:.2f}"
        findings.append(finding_of("collapsed", [text] * has_collapsed(rank, cosine, dim)))
        findings.append(finding_of("silent", [f"dimension {index}, from 0" for index in silent.tolist()]))
        hubs = crowded(near, searched)
        words = [f": in {count:,} lists, usual {hubs['expected']:.0f}" for count in hubs["lists"].tolist()]
        findings.append(of("hubs", hubs["row"], words))
    with_label = sound[labelled[sound]] if not embedded.multi_label else sound[:0]  # a prediction is of one label
    if len(with_label) > 1:
        doubtful, predicted, _ = doubtful_labels(embeddings[with_label], embedded.labels[with_label])
        wrong = with_label[doubtful]
        sides = [embedded.labels[wrong], predicted]
        named = [(side if classes is None else classes[side]).tolist() for side in sides]
        findings.append(of("doubtful", wrong, [*map(": labelled {}, looks like {}".format, *named)]))
    if rows is None:
        pairs = close_rows(near, at_least=NEARLY_EQUAL)
        asks, answers = embedded.is_query & ~embedded.is_gallery, embedded.is_gallery & ~embedded.is_query
        across = (asks[pairs] & answers[pairs[:, ::-1]]).any(axis=1)
        for check, close in ((f"{_CLOSE} in query and gallery", pairs[across]), (_CLOSE, pairs[~across])):
            names = [" = ".join(map(name, pair)) for pair in close.tolist()]
            findings.append(finding_of("close", names, close.tolist(), check=check))
    return findings, near


def examine_data(
    data: str | Manifest,
    overrides: Sequence[str] = (),
    *,
    model: str | None = None,
    out: Path | None = None,
    negatives: Path | None = None,
    running: RunOptions | None = None,
) -> DoctorReport:
    """Return what is wrong with data: missing, broken or repeated images, lone classes, leaks between splits.

    Args:
        data: READER:PATH, a YAML file, the name of a shipped configuration, or a manifest.
        overrides: dotted changes of the data section, such as data.workers=4, or of the configuration.
        model: examine its embeddings of the images too, for wrong labels and more; needs READER:PATH.
        out: a table (.csv) that will be written, of the data without what fixes leave out.
        negatives: hard negatives (.parquet) of aurank mine, which are looked at too.

    Example:
        >>> report = examine_data("digits:", ["data.validation_fraction=0.3", "seed=1"])
        >>> report.errors, report.counts["val images"]
        ([], 269)
    """
    running, config = running or RunOptions(), read_data(data, overrides)
    section = config.data
    manifest = read_manifest(section, seed=config.seed, dataset=data if isinstance(data, Manifest) else None)
    if out is not None:
        require_table(manifest)
    train_labels = section.train_labels == "class"
    if isinstance(config, Config) and train_labels and "train" in manifest.split_sizes:
        from aurank.training import build, read_config  # which measuring does without

        build.build_loss(read_config(str(data), overrides), manifest.split("train"))  # refuses what training would
    mined = [] if negatives is None else examine_negatives(read_negatives(negatives), manifest.paths)
    findings: list[Finding] = []
    candidates = None
    if model is not None:
        # Of the originals, whatever was prepared of them, and of all splits.
        unprepared = [each for each in overrides if each.startswith("data.") and "data.prepared=" not in each]
        images = ImageSelection(data, next(iter(manifest.split_sizes)), overrides=[*unprepared, "data.on_error=skip"])
        embedded, notes = prepare_model(model, images, running).embed(each_image_once(manifest))
        running.tell(*notes[1:])
        row_of = {path: row for row, path in reversed(list(enumerate(manifest.paths)))}
        rows = np.array([row_of[path] for path in embedded.paths.tolist()], np.int64)
        is_class = manifest.classes != manifest.paths
        labelled = is_class & (train_labels | (manifest.splits[rows] != "train"))
        findings, near = examine_rows(embedded, labelled, rows=rows)
        candidates = np.asarray(rows[close_rows(near, at_least=CANDIDATES)])
    report = examine(
        manifest,
        train_labels=train_labels,
        ask_classes=asks_about_classes(section, manifest),
        max_pixels=section.max_pixels,
        candidates=candidates,
        listener=running.listener,
    )
    return report.with_findings([*findings, *mined])


def examine_embeddings(path: Path, labels: Path | None = None) -> DoctorReport:
    """Return what is wrong with saved embeddings: rows of no number, collapse, hubs, wrong labels, rows nearly equal.

    Args:
        path: as ``aurank embed`` writes it, or .npy.
        labels: of an .npy.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/rows.npz", embeddings=np.eye(3)[[0, 1, 2, 0]] * [1, 1, np.nan], labels=[5, 5, 6, 6])
        ...     examine_embeddings(Path(folder, "rows.npz")).errors[0]
        'embeddings with NaN or infinity: 4 (row 0; row 1; row 2, and 1 more)'
    """
    embedded = Embedded.load(path, labels)
    if embedded.embeddings.dtype.kind != "f" or not embedded.embeddings.size:
        shape = f"{embedded.embeddings.dtype} {embedded.embeddings.shape}"
        raise UserError(f"{path}: embeddings are {shape}; expected floating-point numbers, one row an image")
    counts = {"embeddings": len(embedded.labels), "dimensions": embedded.embeddings.shape[1]}
    number, unit = labels_among(embedded)
    counts[unit] = number
    labelled = np.full(len(embedded.labels), number < len(embedded.labels))
    return DoctorReport(path.name, counts, ()).with_findings(examine_rows(embedded, labelled)[0])

"""Looking at data and embeddings before they are used: what ``aurank doctor`` calls."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int64

from aurank.arrays import select_rows
from aurank.commands.run_options import RunOptions, prepare_model, split_name
from aurank.config import DataConfig
from aurank.data import Manifest
from aurank.data.checks.doctor import check_prepared, examine
from aurank.data.checks.findings import DoctorReport, Finding, finding_of, require_table
from aurank.embedding.embed import Embedded
from aurank.embedding.from_config import open_prepared
from aurank.embedding.image_text_pairs import each_image_once
from aurank.embedding.select_images import ImageSelection, asks_about_classes, read_data, read_manifest
from aurank.errors import UserError
from aurank.evaluation.checks import (
    DoubtfulLabels,
    FaultyRows,
    close_rows,
    crowded,
    doubtful_labels,
    faulty_rows,
    near_rows,
    spread,
    with_cosines,
)
from aurank.evaluation.engine.nearest import NearestRows

CANDIDATES = 0.9  # cosine from which images are compared by their pixels
NEARLY_EQUAL = 0.98  # cosine of embeddings that are taken for one, where pixels are not compared


@dataclass(frozen=True, eq=False)
class EmbeddingExamination:
    """Embeddings with what they are of, to be examined; faulty rows are left out of all but their own findings.

    Args:
        rows: of the data set, by embedding; None of embeddings without one.
        labelled: which embeddings have a label.
        lists: of an evaluation of `embedded`, its queries and gallery counted each by itself; None searches new ones.
    """

    embedded: Embedded
    rows: Int64[np.ndarray, " row"] | None
    labelled: Bool[np.ndarray, " row"]
    lists: NearestRows | None = None

    @cached_property
    def faulty(self) -> FaultyRows:
        return faulty_rows(self.embedded.embeddings)

    @cached_property
    def _sound(self) -> Int64[np.ndarray, " sound"]:
        """The embeddings that can be compared."""
        broken = np.concatenate([self.faulty.not_finite, self.faulty.zero])
        return np.setdiff1d(np.arange(len(self.embedded.embeddings)), broken)

    @cached_property
    def _searched(self) -> Int64[np.ndarray, " searched"]:
        """The embeddings that lists could hold."""
        return self._sound if self.lists is None else np.flatnonzero(self.embedded.is_gallery)

    @cached_property
    def _near(self) -> NearestRows:
        """The lists with their cosines, of rows of `embedded`."""
        lists, embeddings = self.lists, self.embedded.embeddings
        if lists is None:
            return near_rows(embeddings, self._sound)
        query = np.flatnonzero(self.embedded.is_query)[lists.query]
        row = np.where(lists.row >= 0, self._searched[lists.row], -1)
        return with_cosines(replace(lists, query=query, row=row), embeddings)

    def candidates(self) -> Int64[np.ndarray, "pair 2"]:
        """Return pairs of rows of the data set that may show one image."""
        assert self.rows is not None
        return np.asarray(self.rows[close_rows(self._near, at_least=CANDIDATES)])

    def findings(self) -> list[Finding]:
        """Return what is wrong, by embeddings alone."""
        faulty, sound = self.faulty, self._sound
        found = [
            self._of("not_finite", faulty.not_finite),
            self._of("zero", faulty.zero),
            self._of("length", faulty.odd_length),
        ]
        if len(sound) > 1:
            found += self._of_the_whole()
            hubs = crowded(self._near, self._searched)
            words = [f": in {lists:,} lists, usual {hubs.expected:.0f}" for lists in hubs.lists.tolist()]
            found.append(self._of("hubs", hubs.row, words))
        known = sound[self.labelled[sound]]
        if len(known) > 1:
            found.append(self._doubtful(known))
        return found + ([] if self.rows is not None else self._close())

    def _of_the_whole(self) -> list[Finding]:
        usual = np.setdiff1d(self._sound, self.faulty.odd_length)
        found = spread(select_rows(self.embedded.embeddings, usual if len(usual) > 1 else self._sound))
        said = f"effective rank {found.effective_rank:.1f} of {found.dim}, mean cosine {found.mean_cosine:.2f}"
        silent = [str(dimension) for dimension in found.silent.tolist()]
        return [
            finding_of("collapsed", [said] if found.is_collapsed else []),
            finding_of("silent", silent),
        ]

    def _doubtful(self, known: Int64[np.ndarray, " known"]) -> Finding:
        labels = self.embedded.labels
        found: DoubtfulLabels = doubtful_labels(self.embedded.embeddings[known], labels[known])
        rows = known[found.row]
        named = self._class_name
        pairs = zip(labels[rows].tolist(), found.label.tolist(), strict=True)
        words = [f": labelled {named(own)}, looks like {named(other)}" for own, other in pairs]
        return self._of("doubtful", rows, words)

    def _close(self) -> list[Finding]:
        query, gallery = self.embedded.is_query, self.embedded.is_gallery
        pairs = close_rows(self._near, at_least=NEARLY_EQUAL)
        asks, answers = query & ~gallery, gallery & ~query
        across = (asks[pairs] & answers[pairs[:, ::-1]]).any(axis=1)
        names = np.array([" = ".join(map(self._name, pair)) for pair in pairs.tolist()], np.object_)
        return [
            finding_of("close", names[chosen].tolist(), pairs[chosen].tolist(), check=check)
            for check, chosen in (
                ("nearly equal embeddings in query and gallery", across),
                ("nearly equal embeddings", ~across),
            )
        ]

    def _of(
        self,
        kind: str,
        rows: Int64[np.ndarray, " found"],
        words: Sequence[str] | None = None,
    ) -> Finding:
        names = [self._name(row) for row in rows.tolist()]
        if words is not None:
            names = [name + said for name, said in zip(names, words, strict=True)]
        given = rows if self.rows is None else self.rows[rows]
        return finding_of(kind, names, [[row] for row in given.tolist()])

    def _name(self, row: int) -> str:
        return str(self.embedded.paths[row]) or f"row {row}"

    def _class_name(self, label: int | str) -> str:
        classes = self.embedded.classes
        return str(label if classes is None else classes[int(label)])


def examine_data(
    data: str,
    overrides: Sequence[str] = (),
    *,
    model: str | None = None,
    table: Path | None = None,
    running: RunOptions | None = None,
) -> DoctorReport:
    """Return what is wrong with data: missing, broken, repeated or poor images, lone classes, leaks between splits.

    Args:
        data: READER:PATH, a YAML file, or the name of a shipped configuration.
        overrides: dotted changes of the data section, or of the configuration.
        model: whose embeddings are examined too, for wrong labels and more; needs READER:PATH.
        table: that the rows kept will be written to.

    Example:
        >>> report = examine_data("digits:", ["data.validation_fraction=0.3", "seed=1"])
        >>> report.errors, report.counts["val images"]
        ([], 269)
    """
    section, seed = _section(data, overrides)
    examination = None
    if model is not None:
        running = running or RunOptions()
        if split_name(model)[0] == "embeddings":
            raise UserError(f"--model {model}: give saved embeddings as --embeddings FILE, without data")
        if read_data(data, [override for override in overrides if override.startswith("data.")]) is None:
            raise UserError(f"--model goes with data named as READER:PATH, such as folder:photos; got {data}")
    manifest = read_manifest(section, seed=seed)
    if table is not None:
        require_table(manifest)
    train_labels = section.train_labels == "class"
    if model is not None and running is not None:
        embedded = _embedded(model, data, manifest, overrides, running)
        row_of = {path: row for row, path in reversed(list(enumerate(manifest.paths)))}
        rows = np.array([row_of[path] for path in embedded.paths.tolist()], np.int64)
        labelled = np.full(len(rows), manifest.classes != manifest.paths)
        examination = EmbeddingExamination(
            embedded, rows, labelled & (train_labels | (manifest.splits[rows] != "train"))
        )
    report = examine(
        manifest,
        train_labels=train_labels,
        ask_classes=asks_about_classes(section, manifest),
        max_pixels=section.max_pixels,
        candidates=None if examination is None else examination.candidates(),
    )
    if (prepared := open_prepared(section)) is not None:
        report = report.with_findings(check_prepared(prepared, manifest))
    return report if examination is None else report.with_findings(examination.findings())


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
    counts["classes"] = len(np.unique(embedded.labels))
    labelled = np.full(len(embedded.labels), counts["classes"] < len(embedded.labels))
    found = EmbeddingExamination(embedded, None, labelled).findings()
    return DoctorReport(path.name, counts, ()).with_findings(found)


def _section(data: str, overrides: Sequence[str]) -> tuple[DataConfig, int]:
    """Return the data section that applies, and the seed of its splits."""
    seeds = [override.removeprefix("seed=") for override in overrides if override.startswith("seed=")]
    section = read_data(data, [override for override in overrides if not override.startswith("seed=")])
    if section is None:  # a configuration
        from aurank.training import read_config

        settings = read_config(data, overrides)
        return settings.data, settings.seed
    if not all(seed.isdecimal() for seed in seeds):
        raise UserError(f"seed={seeds[-1]}: expected a whole number >= 0")
    return section, int(seeds[-1]) if seeds else 0


def _embedded(model: str, data: str, manifest: Manifest, overrides: Sequence[str], running: RunOptions) -> Embedded:
    """Return the embeddings of all readable images of all splits."""
    # Of the originals, whatever was prepared of them.
    own = [one for one in overrides if one.startswith("data.") and not one.startswith("data.prepared=")]
    split = next(iter(manifest.split_sizes))
    images = ImageSelection(data, split, overrides=[*own, "data.on_error=skip"])
    embedded, notes = prepare_model(model, images, running).embed(each_image_once(manifest))
    running.tell(*notes[1:])
    return embedded

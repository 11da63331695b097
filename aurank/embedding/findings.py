"""What embeddings show that is wrong with them, or with the labels and images they are of."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Int64

from aurank.data.checks.findings import Advice, Finding, finding_of
from aurank.embedding.embed import Embedded
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
_BROKEN = Advice(
    "They have no similarity to anything: measuring refuses them.",
    "Look at what the model does with these images; aurank doctor --fix leaves them out.",
)
_LENGTH = Advice(
    "By the dot product or the Euclidean distance they are compared by their length; the cosine does not mind.",
    "Normalise all rows, or measure with the cosine.",
)
_COLLAPSED = Advice(
    "All images look alike to the model, so small noise decides who is found.",
    "Look at the loss and its temperature, the learning rate and the normalisation of the images.",
)
_SILENT = Advice("They cost memory and time in every search and tell nothing.", "Leave them out, or whiten.")
_HUBS = Advice(
    "They take places in lists that they have no business in.",
    "Look at the images; centring or whitening (--postprocess) makes hubs rarer.",
)
_LABELS = Advice(
    "Right results count as wrong, and training pulls the image to strangers.",
    "Look at them and correct the label; aurank doctor --fix leaves them out.",
)
_CLOSE = Advice(
    "They find each other first, so scores are too high, above all between query and gallery.",
    "Look at the images; aurank doctor DATA --model … compares them by their pixels.",
)


@dataclass(frozen=True, eq=False)
class EmbeddingExamination:
    """Embeddings with what they are of, to be examined; faulty rows are left out of all but their own findings.

    Args:
        embedded: with at least one row.
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
            self._of("embeddings with NaN or infinity", faulty.not_finite, _BROKEN, is_error=True),
            self._of("embeddings of zeros", faulty.zero, _BROKEN, is_error=True),
            self._of("embeddings of another length", faulty.odd_length, _LENGTH),
        ]
        if len(sound) > 1:
            found += self._of_the_whole()
            hubs = crowded(self._near, self._searched)
            words = [f": in {lists:,} lists, usual {hubs.expected:.0f}" for lists in hubs.lists.tolist()]
            found.append(self._of("hubs", hubs.row, _HUBS, words))
        known = sound[self.labelled[sound]]
        if len(known) > 1:
            found.append(self._doubtful(known))
        return found + ([] if self.rows is not None else self._close())

    def _of_the_whole(self) -> list[Finding]:
        usual = np.setdiff1d(self._sound, self.faulty.odd_length)
        found = spread(self.embedded.embeddings[usual if len(usual) > 1 else self._sound])
        said = f"effective rank {found.effective_rank:.1f} of {found.dim}, mean cosine {found.mean_cosine:.2f}"
        silent = [str(dimension) for dimension in found.silent.tolist()]
        return [
            finding_of("collapsed embeddings", [said] if found.is_collapsed else [], _COLLAPSED, is_error=True),
            finding_of("dimensions that say nothing", silent, _SILENT),
        ]

    def _doubtful(self, known: Int64[np.ndarray, " known"]) -> Finding:
        labels = self.embedded.labels
        found: DoubtfulLabels = doubtful_labels(self.embedded.embeddings[known], labels[known])
        rows = known[found.row]
        named = self._class_name
        pairs = zip(labels[rows].tolist(), found.label.tolist(), strict=True)
        words = [f": labelled {named(own)}, looks like {named(other)}" for own, other in pairs]
        return self._of("doubtful labels", rows, _LABELS, words, is_dropped=True)

    def _close(self) -> list[Finding]:
        query, gallery = self.embedded.is_query, self.embedded.is_gallery
        pairs = close_rows(self._near, at_least=NEARLY_EQUAL)
        asks, answers = query & ~gallery, gallery & ~query
        across = (asks[pairs] & answers[pairs[:, ::-1]]).any(axis=1)
        names = np.array([" = ".join(map(self._name, pair)) for pair in pairs.tolist()], np.object_)
        return [
            finding_of(check, names[chosen].tolist(), _CLOSE, rows=pairs[chosen].tolist())
            for check, chosen in (
                ("nearly equal embeddings in query and gallery", across),
                ("nearly equal embeddings", ~across),
            )
        ]

    def _of(
        self,
        check: str,
        rows: Int64[np.ndarray, " found"],
        advice: Advice,
        words: Sequence[str] | None = None,
        *,
        is_error: bool = False,
        is_dropped: bool = False,
    ) -> Finding:
        names = [self._name(row) for row in rows.tolist()]
        if words is not None:
            names = [name + said for name, said in zip(names, words, strict=True)]
        given = rows if self.rows is None else self.rows[rows]
        drop = given.tolist() if is_error or is_dropped else []
        return finding_of(check, names, advice, is_error=is_error, rows=[[row] for row in given.tolist()], drop=drop)

    def _name(self, row: int) -> str:
        return str(self.embedded.paths[row]) or f"row {row}"

    def _class_name(self, label: int | str) -> str:
        classes = self.embedded.classes
        return str(label if classes is None else classes[int(label)])

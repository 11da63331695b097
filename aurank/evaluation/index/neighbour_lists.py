"""Queries, gallery and who is positive for whom, as one."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64

from aurank.evaluation.engine.inputs import Embeddings, Integers, integer_array
from aurank.evaluation.engine.positives import Matching, find_rows, match_sides


@dataclass(frozen=True, eq=False)
class Sides:
    """Queries, gallery and who is what to whom: the first arguments of `positive_ranks`, carried as one."""

    embeddings: Embeddings
    labels: Integers | None = None
    gallery: Embeddings | None = None
    gallery_labels: Integers | None = None
    ids: Integers | None = None
    gallery_ids: Integers | None = None
    groups: Integers | None = None
    gallery_groups: Integers | None = None
    positives: Integers | None = None
    ignore: Integers | None = None
    junk: Integers | None = None

    @property
    def target(self) -> Embeddings:
        """The gallery's embeddings, which may be the queries' own."""
        return self.embeddings if self.gallery is None else self.gallery

    def relations(self) -> dict[str, Any]:
        """Return the fields that are no embeddings and no labels, as `match_sides` and `positive_ranks` take them."""
        names = ("ids", "gallery_ids", "groups", "gallery_groups", "positives", "ignore", "junk")
        return {name: getattr(self, name) for name in names}

    def matching(self) -> Matching:
        """Return who is positive for whom; UserError where the arguments do not fit each other."""
        return match_sides(self.embeddings, self.labels, self.gallery, self.gallery_labels, **self.relations())

    def own_rows(self) -> Int64[np.ndarray, " query"] | None:
        """Return the gallery row that is each query's own item, -1 for none; None if no query has one."""
        if self.gallery is None:
            return np.arange(len(self.embeddings))
        if self.ids is None or self.gallery_ids is None:
            return None
        ids = integer_array(self.ids, name="id", rows=len(self.embeddings), side="query")
        return find_rows(ids, integer_array(self.gallery_ids, name="id", rows=len(self.gallery), side="gallery"))

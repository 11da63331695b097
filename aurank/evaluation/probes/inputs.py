"""The border of the probes: rows and labels checked once, and the two sides of each draw read from them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from aurank.errors import UserError
from aurank.evaluation.engine.inputs import Embeddings, Integers, check_embeddings, integer_array, unique_ids
from aurank.evaluation.index.faiss_bridge import check_rows, take
from aurank.evaluation.probes.splits import Draw, Plan, plan_probe


@dataclass(frozen=True, eq=False)
class ProbeInputs:
    """The rows of a probe, checked, and the plan for them."""

    embeddings: Embeddings
    test: Embeddings | None
    plan: Plan

    @classmethod
    def check(
        cls,
        embeddings: Embeddings,
        labels: Integers,
        test: Embeddings | None,
        test_labels: Integers | None,
        *,
        distance: str,
        ids: Integers | None,
        seeds: Sequence[int] | None,
    ) -> "ProbeInputs":
        if (test is None) != (test_labels is None):
            raise UserError("test and test_labels go together: give both, or neither to probe within the one set")
        side = "probed" if test is None else "training"
        check_embeddings(embeddings, side=side)
        classes = integer_array(labels, name="label", rows=len(embeddings), side=side)
        numbers = None if ids is None else unique_ids(ids, rows=len(embeddings), side=side)
        test_classes = None
        if test is not None and test_labels is not None:
            check_embeddings(test, side="test")
            if test.shape[1] != embeddings.shape[1]:
                raise UserError(
                    f"the training embeddings have {embeddings.shape[1]} columns and the test embeddings "
                    f"{test.shape[1]}: both must come from the same model"
                )
            test_classes = integer_array(test_labels, name="label", rows=len(test), side="test")
        plan = plan_probe(classes, test_classes, ids=numbers, seeds=seeds)
        for rows, name in ((embeddings, side), (test, "test")):
            if rows is not None:
                check_rows(rows, side=name, distance=distance)
        return cls(embeddings, test, plan)

    def sides(self, draw: Draw) -> tuple[Embeddings, Embeddings]:
        """The training and the test rows of a draw; copied only where they are not the whole side in order."""
        tested = self.embeddings if self.test is None else self.test
        return _rows(self.embeddings, draw.train), _rows(tested, draw.test)


def _rows(embeddings: Embeddings, rows: Int64[np.ndarray, " row"]) -> Embeddings:
    whole = len(rows) == len(embeddings) and bool((np.diff(rows) > 0).all())
    return embeddings if whole else take(embeddings, rows)

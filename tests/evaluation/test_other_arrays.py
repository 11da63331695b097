"""Embeddings and labels as other libraries hold them, by protocol: the digits are those of an array of NumPy."""

from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pytest
import torch

import aurank
from aurank.arrays import as_plain
from aurank.evaluation import (
    AccuracyCalculator,
    Index,
    PostProcessing,
    RetrievalProblem,
    calibrate,
    neighbours,
    positive_ranks,
    probe,
    two_way,
    zero_shot,
)

ROWS = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
LABELS = np.repeat(np.arange(8), 3)
NAMES = [f"class {label}" for label in LABELS]


class OnDevice:
    """As CuPy and JAX: memory that is given by DLPack alone."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __len__(self) -> int:
        return len(self.held)

    def __dlpack__(self, **options: Any) -> Any:
        return self.held.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.held.__dlpack_device__()


class Convertible:
    def __init__(self, held: np.ndarray) -> None:
        self.held = held

    def __len__(self) -> int:
        return len(self.held)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.held


FORMS: dict[str, Any] = {
    "list": ROWS.tolist(),
    "tuples": tuple(map(tuple, ROWS)),
    "list of tensors": list(torch.from_numpy(ROWS)),
    "tensor with a gradient": torch.from_numpy(ROWS).requires_grad_(),
    "pandas": pandas.DataFrame(ROWS),
    "column of pandas": pandas.Series(list(ROWS)),
    "polars": polars.DataFrame(ROWS),
    "column of polars": polars.Series(ROWS.tolist()),
    "pyarrow": pyarrow.array(ROWS.tolist()),
    "__dlpack__": OnDevice(torch.from_numpy(ROWS)),
    "__array__": Convertible(ROWS),
}
LABEL_FORMS: dict[str, Any] = {
    "list": LABELS.tolist(),
    "pandas": pandas.Series(LABELS),
    "polars": polars.Series(LABELS),
    "pyarrow": pyarrow.array(LABELS),
    "__dlpack__": OnDevice(torch.from_numpy(LABELS)),
    "categorical": pandas.Categorical(NAMES),
    "column of categories": pandas.Series(NAMES, dtype="category"),
    "text of pandas": pandas.Series(NAMES),
    "text of polars": polars.Series(NAMES),
    "categories of polars": polars.Series(NAMES, dtype=polars.Categorical),
}


@pytest.mark.parametrize("form", FORMS)
def test_embeddings_give_the_digits_of_their_array(form: str) -> None:
    rows = FORMS[form]
    metrics = aurank.evaluate(ROWS, LABELS).metrics
    # Text has more digits than float32, so lists may be read as float64.
    assert aurank.evaluate(rows, LABELS).metrics == pytest.approx(metrics, abs=1e-12)
    assert aurank.evaluate(rows, LABELS, rows, LABELS).num_queries == 24
    assert positive_ranks(rows, LABELS).rank.tolist() == positive_ranks(ROWS, LABELS).rank.tolist()


@pytest.mark.parametrize("form", LABEL_FORMS)
def test_labels_give_the_digits_of_their_array(form: str) -> None:
    assert aurank.evaluate(ROWS, LABEL_FORMS[form]).metrics == aurank.evaluate(ROWS, LABELS).metrics


def test_every_function_of_evaluation_takes_a_frame() -> None:
    frame, few = pandas.DataFrame(ROWS), pandas.DataFrame(ROWS[:3])
    assert neighbours(frame, 2).row.tolist() == neighbours(ROWS, 2).row.tolist()
    assert Index.build(frame, device="cpu").search(few, 1).row.tolist() == [[0], [1], [2]]
    thresholds = [calibrate(RetrievalProblem(rows, LABELS), precision=0.1).threshold for rows in (frame, ROWS)]
    assert thresholds[0] == thresholds[1]
    for protocol in ("knn", "linear_probe"):
        results = [probe(rows, LABELS, protocol=protocol, k=2) for rows in (frame, ROWS)]
        assert results[0].metrics == results[1].metrics
    assert two_way(frame, frame, LABELS).recall == two_way(ROWS, ROWS, LABELS).recall
    assert zero_shot(few, [0, 1, 2], torch.from_numpy(ROWS[:3, None]), top=(1,)).metrics == {"recall@1": 1.0}
    steps = PostProcessing.parse("center", distance="cosine")
    assert np.array_equal(steps.fit(frame).rows(frame), steps.fit(ROWS).rows(ROWS))
    calculator = AccuracyCalculator()
    assert calculator.get_accuracy(frame, LABELS) == calculator.get_accuracy(ROWS, LABELS)


def test_memory_that_is_given_is_not_copied() -> None:
    given = torch.from_numpy(ROWS)
    shared = as_plain(OnDevice(given), "rows")
    assert isinstance(shared, torch.Tensor)
    assert shared.data_ptr() == given.data_ptr()
    assert np.shares_memory(np.asarray(as_plain(pandas.DataFrame(ROWS, copy=False), "rows")), ROWS)

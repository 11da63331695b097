"""The text form, the file, and what raises in one line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import aurank
from aurank.errors import UserError
from aurank.evaluation import Codes, RetrievalProblem
from aurank.evaluation.postprocessing import PostProcessing

ROWS = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
WHOLE = "center, whiten:dim=4,shrinkage=0.1, int8, query_expansion:k=3, k_reciprocal:depth=30,k1=7"


@pytest.mark.parametrize("text", [WHOLE, "truncate:dim=4, binary, rescore:depth=9"])
def test_the_text_form_is_read_and_written(text: str) -> None:
    assert str(PostProcessing.parse(text)) == text
    assert str(PostProcessing.parse(text.replace(", ", ",").replace("=", " = "))) == text


def fit(text: str, rows: np.ndarray = ROWS) -> PostProcessing:
    return PostProcessing.parse(text).fit(rows)


def apply(processing: PostProcessing) -> Any:
    return processing.apply(RetrievalProblem(ROWS, np.arange(60) // 2))


def evaluate(**given: Any) -> Any:
    return aurank.evaluate(ROWS, np.arange(60) // 2, **given)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: PostProcessing.parse("whitn"), "step must be one of center, .*'whitn'.* 'whiten'"),
        (lambda: PostProcessing.parse("whiten:dims=4"), "of whiten must be one of dim, shrinkage.*'dims'.* 'dim'"),
        (lambda: PostProcessing.parse("whiten:dim=4.5"), "whiten: dim: .*'4.5'"),
        (lambda: PostProcessing.parse("whiten:dim=4,dim=5"), "'dim=5'"),
        (lambda: PostProcessing.parse("query_expansion, center"), "come first"),
        (lambda: PostProcessing.parse("query_expansion", distance="dot"), "query_expansion .* dot"),
        (lambda: fit("whiten:dim=8", ROWS[:6]), "whiten:dim=8: the 6 training rows vary in 5 of 8"),
        (lambda: fit("whiten", np.where(np.arange(60)[:, None] == 3, np.nan, ROWS)), "row 3 of the training"),
        (lambda: apply(PostProcessing.parse("whiten")), "has to be fitted"),
        (lambda: apply(fit("whiten", ROWS[:, :5])), "whiten was fitted on rows of width 5, and these have 8"),
        (lambda: apply(PostProcessing.parse("truncate:dim=9")), "truncate: dim .* got 9"),
        (lambda: evaluate(postprocess=PostProcessing.parse("binary"), distance="dot"), "cosine, not for dot"),
        (lambda: evaluate(postprocess="k_reciprocal", index="Flat"), "index"),
        (lambda: evaluate(postprocess="query_expansion", codes=Codes()), "codes"),
        (lambda: evaluate(codes=Codes(dims=(17,))), "dims asks for 17"),
        (lambda: Codes(dims=(0,)), "dims"),
        (lambda: Codes(rescore=0), "rescore"),
        (lambda: Codes(precisions=("int4",)), "one of float32, .* got 'int4'"),
    ],
)
def test_what_cannot_be_raises(call: Callable[[], Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        call()


def test_a_saved_post_processing_does_the_same_digits(tmp_path: Path) -> None:
    processing, path = fit(WHOLE), tmp_path / "steps.safetensors"
    processing.save(path)
    loaded = PostProcessing.load(path)
    assert (str(loaded), loaded.distance, loaded.fitted_rows, loaded.is_fitted) == (WHOLE, "cosine", 60, True)
    np.testing.assert_array_equal(loaded.rows(ROWS[:9]), processing.rows(ROWS[:9]))
    save_file({"mean": ROWS}, path)
    with pytest.raises(UserError, match="cannot be read as post-processing"):
        PostProcessing.load(path)

"""The text form, the file, and what is refused in one line."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from aurank.errors import UserError
from aurank.evaluation import RetrievalProblem
from aurank.evaluation.postprocessing import PostProcessing
from aurank.files import write_bundle

ROWS = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
WHOLE = "center, whiten:dim=4,shrinkage=0.1, int8, query_expansion:k=3, k_reciprocal:depth=30,k1=7"


@pytest.mark.parametrize("text", ["center", WHOLE, "truncate:dim=4, binary, rescore:depth=9"])
def test_the_text_form_is_read_and_written(text: str) -> None:
    assert str(PostProcessing.parse(text)) == text
    assert str(PostProcessing.parse(text.replace(", ", ",").replace("=", " = "))) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no post-processing step ''"),
        ("whitn", "no post-processing step 'whitn', expected some of center, .* did you mean 'whiten'"),
        ("whiten:dims=4", "whiten has no parameter 'dims'; its parameters are dim, shrinkage; did you mean 'dim'"),
        ("center:dim=4", "center has no parameter 'dim'; it has none"),
        ("whiten:dim=4.5", "whiten: dim: .*valid integer.*, got '4.5'"),
        ("whiten:dim", "expected NAME=VALUE, each name once, got 'dim'"),
        ("whiten:dim=4,dim=5", "expected NAME=VALUE, each name once, got 'dim=5'"),
        ("whiten:shrinkage=nan", "whiten: shrinkage: .*, got 'nan'"),
        ("k_reciprocal:weight=2", "k_reciprocal: weight: .*, got '2'"),
        ("query_expansion:k=0", "query_expansion: k: .*, got '0'"),
        ("query_expansion, center", "steps that change single rows come first"),
        ("rescore, k_reciprocal", "at most one that orders lists anew"),
    ],
)
def test_a_wrong_text_is_refused_with_a_remedy(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        PostProcessing.parse(text)


def test_steps_by_cosine_are_refused_under_another_distance() -> None:
    with pytest.raises(UserError, match="query_expansion goes by cosines, and the distance is dot"):
        PostProcessing.parse("query_expansion", distance="dot")


def test_what_is_not_fitted_or_does_not_fit_is_refused() -> None:
    problem = RetrievalProblem(ROWS, np.arange(60) // 2)
    with pytest.raises(UserError, match="whiten has to be fitted on training rows"):
        PostProcessing.parse("whiten").apply(problem)
    with pytest.raises(UserError, match="whiten was fitted on rows of width 5, and these have 8"):
        PostProcessing.parse("whiten").fit(ROWS[:, :5]).apply(problem)
    with pytest.raises(UserError, match="row 3 of the training embeddings holds NaN"):
        PostProcessing.parse("whiten").fit(np.where(np.arange(60)[:, None] == 3, np.nan, ROWS))
    with pytest.raises(UserError, match="truncate: dim must be at most the 8 numbers of a row, got 9"):
        PostProcessing.parse("truncate:dim=9").apply(problem)


def test_a_saved_post_processing_does_the_same_digits(tmp_path: Path) -> None:
    processing = PostProcessing.parse(WHOLE).fit(ROWS)
    processing.save(tmp_path / "steps.safetensors")
    loaded = PostProcessing.load(tmp_path / "steps.safetensors")
    assert (str(loaded), loaded.distance, loaded.fitted_rows, loaded.is_fitted) == (WHOLE, "cosine", 60, True)
    np.testing.assert_array_equal(loaded.rows(ROWS[:9]), processing.rows(ROWS[:9]))


def test_a_damaged_or_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "steps.safetensors"
    with pytest.raises(UserError, match=r"steps\.safetensors: cannot be read"):
        PostProcessing.load(path)
    path.write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"steps\.safetensors: cannot be read"):
        PostProcessing.load(path)
    save_file({"mean": ROWS}, path)
    with pytest.raises(UserError, match="cannot be read as post-processing"):
        PostProcessing.load(path)
    write_bundle(path, {"steps": "whiten", "distance": "cosine", "fitted_rows": 60, "states": [{}]}, "post-processing")
    with pytest.raises(UserError, match="'mean' is missing"):
        PostProcessing.load(path)

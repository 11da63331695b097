"""The text form, the file, and what raises in one line."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from aurank.errors import UserError
from aurank.evaluation.postprocessing import PostProcessing

ROWS = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
WHOLE = "center, whiten:dim=4,shrinkage=0.1, int8, query_expansion:k=3, k_reciprocal:depth=30,k1=7"


@pytest.mark.parametrize("text", [WHOLE, "truncate:dim=4, binary, rescore:depth=9"])
def test_the_text_form_is_read_and_written(text: str) -> None:
    assert str(PostProcessing.parse(text)) == text
    assert str(PostProcessing.parse(text.replace(", ", ",").replace("=", " = "))) == text


def fit(text: str, rows: np.ndarray = ROWS) -> PostProcessing:
    return PostProcessing.parse(text).fit(rows)


def test_a_saved_post_processing_does_the_same_digits(tmp_path: Path) -> None:
    processing, path = fit(WHOLE), tmp_path / "steps.safetensors"
    processing.save(path)
    loaded = PostProcessing.load(path)
    assert (str(loaded), loaded.distance, loaded.fitted_rows, loaded.is_fitted) == (WHOLE, "cosine", 60, True)
    np.testing.assert_array_equal(loaded.rows(ROWS[:9]), processing.rows(ROWS[:9]))
    save_file({"mean": ROWS}, path)
    with pytest.raises(UserError, match="cannot be read as post-processing"):
        PostProcessing.load(path)

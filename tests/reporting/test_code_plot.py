"""The picture of codes, and how a page shows post-processing and codes."""

import numpy as np
import pytest

import aurank
from aurank.errors import UserError
from aurank.evaluation import Codes
from aurank.reporting import draw_codes
from aurank.reporting.report_page import report_page

ROWS = np.random.default_rng(0).normal(size=(24, 8)) + 1
LABELS = np.arange(24) % 4


@pytest.mark.slow
def test_a_page_shows_the_plain_numbers_and_the_codes() -> None:
    codes = Codes(dims=(4, 8), precisions=("int8", "binary"), rescore=9)
    report = aurank.evaluate(ROWS, LABELS, postprocess="float16", codes=codes)
    page = report_page(report)
    assert report.postprocessing is not None
    assert report.codes is not None
    assert f"plain {report.postprocessing['plain']['mauprc']:.4f}" in page
    assert "<dt>post-processing</dt><dd>float16</dd>" in page
    assert page.count("<td>int8</td>") == 4
    assert "quality by bytes an image" in page
    assert "<th>plain</th>" not in report_page(aurank.evaluate(ROWS, LABELS))


def test_there_is_no_picture_of_nothing() -> None:
    with pytest.raises(UserError, match="the report holds no codes"):
        draw_codes([])

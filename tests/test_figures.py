"""Every figure of the pages that stands between markers is what the lines of its benchmark give."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from testing.benchmarks import made_up

from aurank.errors import UserError

ROOT = Path(__file__).parents[1]
RESULTS: dict[str, Any] = runpy.run_path(str(ROOT / "tools" / "results.py"))
PAGE = """SOPRC has <!-- value: heads / one / A / mAUPRC -->0.1<!-- /value -->, and with its interval
<!-- value: heads / one / A / mAUPRC -->0.1 ± 0.2<!-- /value -->;
whole: <!-- value: heads / one / A / mAUPRC --><!-- /value -->.
<!-- table: heads / one -->
stale
<!-- /table -->
"""


@pytest.mark.parametrize("page", RESULTS["PAGES"], ids=lambda page: page.name)
def test_the_figures_of_a_page_are_those_of_the_lines(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert RESULTS["fill"](text, ROOT / "docs" / "benchmark") == text, "write them anew: python tools/results.py"


def test_what_the_page_says_in_words_of_start_and_width_is_so() -> None:
    pca, identity = (
        {row.name: row for row in block.rows}
        for block in RESULTS["tables"](ROOT / "docs/benchmark/grocery_heads.jsonl")
    )
    features = pca["the embeddings as they are"].recall[0]
    losses = [name for name, row in pca.items() if row.seeds]
    assert len(losses) == 28
    assert all(pca[name].recall[0] < features < identity[name].recall[0] for name in losses)
    higher = {name for name in losses if pca[name].mauprc.mean > identity[name].mauprc.mean}
    assert higher == {"FastAP", "AUROC", "SupAP", "Contrastive"}


def runs(name: str) -> list[dict[str, Any]]:
    lines = (ROOT / "docs" / "benchmark" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == "run"]


def test_what_the_page_says_in_words_of_omniglot_and_of_fine_tuning_is_so() -> None:
    blocks = RESULTS["tables"](ROOT / "docs/benchmark/omniglot_heads.jsonl")
    assert [len([row for row in block.rows if row.seeds]) for block in blocks] == [28, 28]
    for block in blocks:
        rows = {row.name: row for row in block.rows}
        assert max(rows, key=lambda name: rows[name].mauprc.mean) == "Multi-Similarity"
        assert all(rows[name].difference.interval[0] > 0 for name in ("Multi-Similarity", "Circle", "SOPRC"))
    said = " ".join((ROOT / "docs/results.md").read_text(encoding="utf-8").split())
    by_seed = [f"{line['mauprc']:.4f}" for line in runs("grocery_recipe") if line["method"] == "SupCon"]
    assert f"in place of {', '.join(by_seed)}" in said
    (recipe,) = RESULTS["tables"](ROOT / "docs/benchmark/grocery_recipe.jsonl")
    rows = {row.name: row for row in recipe.rows}
    assert {row.seeds for row in rows.values()} == {3}
    start = rows["SupCon, projection from PCA"].difference
    assert start.mean - start.half_width > 0
    assert start.interval[0] > 0
    assert rows["SupCon, rate 1e-3"].difference.interval[1] < 0
    assert max(rows, key=lambda name: rows[name].mauprc.mean) == "SupCon, 160 pixels, projection from PCA"
    forty, fifty = (rows[f"Multi-Similarity, {beta}projection from PCA"].mauprc.mean for beta in ("", "β 50, "))
    assert abs(forty - fifty) < 0.001


def test_a_figure_is_found_by_its_name_and_a_wrong_one_is_seen(tmp_path: Path) -> None:
    (tmp_path / "heads.jsonl").write_text("".join(json.dumps(line) + "\n" for line in made_up()), encoding="utf-8")
    text = RESULTS["fill"](PAGE, tmp_path)
    assert "/ mAUPRC -->0.3250<!--" in text
    assert "/ mAUPRC -->0.3250 ± 0.0248<!--" in text
    assert "/ mAUPRC -->0.3250 ± 0.0248 [0." in text
    assert "<!-- table: heads / one -->\n| one | mAUPRC |" in text
    assert "stale" not in text
    assert RESULTS["fill"](text, tmp_path) == text
    assert RESULTS["fill"](text.replace("0.3250", "0.3251"), tmp_path) == text
    assert RESULTS["picture"](tmp_path / "heads.jsonl").read_bytes()[1:4] == b"PNG"
    with pytest.raises(UserError, match="has no 'mAUPRC' of 'C' in the setting 'one'"):
        RESULTS["fill"](PAGE.replace("/ A /", "/ C /"), tmp_path)

"""The miniatures of the global losses: exact values, runs found again, tables and pictures of what there is."""

import re
from pathlib import Path
from typing import Any

import miniature_global
import pytest
import torch
from global_miniatures import convergence, normalizers, training
from global_miniatures.plots import draw_all
from global_miniatures.store import Run, Store
from global_miniatures.tables import write_tables
from miniatures.tables import TO_RUN
from oracles import masks, mean
from testing import oracles_contrastive

from aurank.training import read_config

RESULTS = Path(__file__).parents[2] / "docs" / "results.md"
PAGE = Path(__file__).parents[2] / "docs" / "miniatures_global" / "tables.txt"
PLACE = {"device": "CPU", "cores": 2, "threads": 1, "torch": "2", "commit": "0", "seconds": 9.0, "load": 0.1}


def found(run: Run) -> dict[str, Any]:
    """What a run could have come to."""
    scores = {"mauprc": 0.1, "val_mauprc": 0.1, "recall@1": 0.2, "recall@10": 0.3}
    if run.experiment == "convergence":
        return {"course": [{"images": images, "loss": -0.5, "squared_gradient_norm": 1e-3} for images in (0, 100)]}
    if run.experiment == "representations":
        return scores | {
            "probe_top1": 0.4,
            "probe_top5": 0.5,
            "homogeneity": {"counts": [3, 1], "edges": [0.0, 0.1, 0.2]},
        }
    if run.experiment == "steady":
        return {"scale": 1.0, "noise": 7.0, "one batch": 0.1, "400 batches": 0.9, "cosine": 0.99}
    if run.experiment == "normalizers":
        return {"course": [{"samples": part, "error": 0.1, "alone": 0.2} for part in range(1, 6)]}
    if run.experiment == "temperatures":
        classes = [{"class": "plum", "size": 9, "temperature": 0.6}, {"class": "kiwi", "size": 2, "temperature": 0.7}]
        tails = {"head": 0.6, "tail": 0.7, "deviation": 0.1, "spearman": -0.5, "p": 0.01, "images": 11}
        return scores | tails | {"classes": classes, "coldest": classes, "hottest": classes[::-1]}
    return scores


def all_runs() -> list[Run]:
    return [run for runs, _ in miniature_global.EXPERIMENTS.values() for run in runs(1)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*leaves out the loss.params")
def test_every_run_is_another_one_and_its_configuration_is_valid() -> None:
    runs = all_runs()
    assert len({str(run) + str(run.settings) for run in runs}) == len(runs)
    for run in runs:
        if "config" in run.settings:
            read_config(run.settings["config"], [*run.settings["overrides"], "seed=0"])


def test_a_finished_run_is_found_again_after_a_restart(tmp_path: Path) -> None:
    first, second = all_runs()[:2]
    store = Store(tmp_path / "runs.jsonl")
    assert store.find(first) is None
    store.append(first, found(first) | PLACE)
    again = Store(tmp_path / "runs.jsonl")
    assert again.find(first) is not None
    assert again.find(second) is None
    assert again.find(Run(first.experiment, first.name, first.settings, seed=5)) is None


@pytest.mark.slow
def test_the_page_and_the_pictures_hold_every_run_and_say_what_is_missing(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    empty = Store(tmp_path / "none.jsonl")
    write_tables(empty, page)
    assert page.read_text(encoding="utf-8").count(TO_RUN) == 11
    assert list(draw_all(empty, tmp_path)) == []
    store = Store(tmp_path / "runs.jsonl")
    for run in all_runs():
        store.append(run, found(run) | PLACE)
    write_tables(store, page)
    text = page.read_text(encoding="utf-8")
    assert TO_RUN not in text
    variants = [title for title, options in normalizers.VARIANTS.items() if options is not None]
    for title in (*convergence.TITLES.values(), *variants, "kiwi (2): 0.700", "iSogCLR", "SOPRC"):
        assert title in text, title
    pictures = list(draw_all(store, tmp_path))
    assert len(pictures) == 6
    assert all(path.stat().st_size > 5_000 for path in pictures)
    shown = re.findall(r"miniatures_global/(\w+\.png)", RESULTS.read_text(encoding="utf-8"))
    assert {path.name for path in pictures} <= set(shown)


def test_the_loss_of_every_run_of_the_normalizers_can_be_made() -> None:
    for run in normalizers.runs(1):
        assert isinstance(normalizers.loss_of(run, 50), torch.nn.Module), run


def test_the_exact_loss_is_that_of_all_views_of_other_photos() -> None:
    rows = torch.nn.functional.normalize(torch.randn(8, 4, dtype=torch.float64))
    photos = (torch.arange(8) // 2).tolist()
    expected = oracles_contrastive.decoupled(rows @ rows.T, *masks(photos), temperature=convergence.TEMPERATURE)
    torch.testing.assert_close(convergence.exact_loss(rows), mean(expected), rtol=0, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("name", convergence.METHODS)
def test_a_training_lowers_the_exact_loss(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = torch.rand(100, 1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    views = photos + 0.1 * torch.randn(100, 2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(convergence, "views", lambda: views)
    monkeypatch.setattr(convergence, "IMAGES", 100)
    monkeypatch.setattr(convergence, "SAMPLES_SEEN", 320)
    monkeypatch.setattr(convergence, "CHECKS", 1)
    course = convergence.carry_out(Run("convergence", name, {"batch": 16}))["course"]
    assert [check["images"] for check in course] == [0, 320]
    assert course[1]["loss"] < course[0]["loss"]


def test_homogeneity_is_the_mean_squared_difference_of_two_views_to_the_other_images() -> None:
    first = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, -1.0]])
    second = torch.tensor([[0.0, 1.0], [0.6, 0.8], [-1.0, 0.0]])
    # of row 0: (0.6 − 0.8)² and (0 + 1)²; of row 2: (0 + 1)² and (−0.8 + 0.6)²
    assert training.differences(first, second).tolist() == pytest.approx([0.52, 0.0, 0.52])

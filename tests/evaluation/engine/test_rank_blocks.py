"""Blocks of queries bound the memory of positives, and change no digit of a report."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import aurank
from aurank.errors import UserError
from aurank.evaluation import Resampling, RetrievalProblem, positive_ranks
from aurank.evaluation.engine.ranks import RankBlocks, query_columns

CHANCE = np.random.default_rng(0)
ROWS = CHANCE.choice([-1.0, 0.5, 1.0], (60, 4))  # full of ties
LABELS = CHANCE.integers(0, 5, 60)
OTHERS, OTHER_LABELS = CHANCE.choice([-1.0, 0.5, 1.0], (50, 4)), CHANCE.integers(0, 6, 50)
PAIRS = np.unique(np.stack([CHANCE.integers(0, 60, 300), CHANCE.integers(0, 50, 300)], axis=1), axis=0)
IDS, OTHER_IDS = CHANCE.permutation(90)[:60], CHANCE.permutation(90)[:50]
GALLERY = {"gallery": OTHERS, "gallery_labels": OTHER_LABELS}
CASES: dict[str, dict[str, Any]] = {
    "its own gallery": {"labels": LABELS},
    "lone queries": {"labels": np.where(np.arange(60) % 3 == 0, np.arange(60) + 9, LABELS % 2)},
    "euclidean": {"labels": LABELS, "distance": "euclidean"},
    "a gallery": {"labels": LABELS, **GALLERY, "distance": "dot"},
    "ids": {"labels": LABELS, **GALLERY, "ids": IDS, "gallery_ids": OTHER_IDS, "distance": "euclidean"},
    "groups": {"labels": LABELS, "groups": CHANCE.integers(-1, 3, 60)},
    "groups of both": {
        "labels": LABELS,
        **GALLERY,
        "groups": CHANCE.integers(-1, 3, 60),
        "gallery_groups": CHANCE.integers(-1, 4, 50),
    },
    "ignored": {"labels": LABELS, **GALLERY, "ignore": PAIRS[::3]},
    "junk": {"labels": LABELS, "junk": [3, 17, 40], "ignore": [(0, 1), (5, 9)]},
    "listed": {"gallery": OTHERS, "positives": PAIRS},
    "graded": {
        "gallery": OTHERS,
        "positives": PAIRS,
        "ignore": PAIRS[::7],
        "junk": [4],
        "relevance": 1 + np.arange(len(PAIRS)) % 3,
    },
    "super-categories": {"labels": LABELS, "super_labels": LABELS % 2, "metrics": ["h_ap", "h_ndcg", "super:mauprc"]},
    "re-ranked": {"labels": LABELS, "postprocess": "k_reciprocal:depth=12,k1=4,k2=2"},
}
SMALL = {"one query": 9728, "a few": 12_000, "most": 60_000}  # bytes, beside the least of which tiles are made


def digits(report: aurank.Report) -> dict[str, Any]:
    """All numbers of a report, exactly."""
    columns = {name: values.tolist() for name, values in report.per_query.items()}
    intervals = report.intervals.bounds if report.intervals else None
    return {
        "metrics": report.metrics,
        "columns": columns,
        "curve": report.curve.precision.tolist(),
        "bounds": report.tie_bounds,
        "intervals": intervals,
        "lone": report.num_lone_queries,
        "plain": report.postprocessing and report.postprocessing["plain"],
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_report_is_the_same_whatever_the_size_of_blocks(name: str) -> None:
    given = {"resampling": Resampling(100), **CASES[name]}
    whole = digits(aurank.evaluate(ROWS, **given))
    for size in SMALL.values():
        assert digits(aurank.evaluate(ROWS, **given, max_memory=size + 2048 * ("distance" in given))) == whole


@pytest.mark.parametrize("name", ["its own gallery", "ids", "groups of both", "junk", "listed"])
def test_blocks_are_the_ranks_of_all_queries_in_parts(name: str) -> None:
    problem = RetrievalProblem(ROWS, **{key: value for key, value in CASES[name].items() if key != "distance"})
    distance = CASES[name].get("distance", "cosine")
    fields = {key: getattr(problem, key) for key in ("ids", "gallery_ids", "groups", "gallery_groups")}
    fields |= {key: getattr(problem, key) for key in ("positives", "ignore", "junk")}
    sides = (problem.embeddings, problem.labels, problem.gallery, problem.gallery_labels)
    whole = positive_ranks(*sides, **fields, distance=distance)
    blocks = RankBlocks(problem, distance=distance, max_memory=13_000)
    assert len(list(blocks.blocks())) > 3
    for column in ("query", "labels", "num_positives", "num_negatives", "num_queries", "num_lone_queries"):
        assert np.array_equal(getattr(blocks, column), getattr(whole, column)), column
    listed = query_columns(
        blocks, lambda part: {"rank": np.array([str(row) for row in np.split(part.rank, part.offset[1:-1])])}
    )
    assert listed["rank"].tolist() == [str(row) for row in np.split(whole.rank, whole.offset[1:-1])]


def test_what_fits_is_counted_at_once_and_for_both_sides_unless_thresholds_are_dense() -> None:
    few = RankBlocks(RetrievalProblem(np.eye(400), labels=np.arange(400) // 4))
    assert [(tiling.queries, tiling.symmetric) for tiling in few.tilings] == [(slice(0, 400), True)]
    rows = np.random.default_rng(0).normal(size=(4000, 2))
    dense = RankBlocks(RetrievalProblem(rows, labels=np.arange(4000) % 2), max_memory="1MiB")
    assert len(dense.tilings) > 1
    assert not any(tiling.symmetric for tiling in dense.tilings)
    assert max(other.stop - other.start for tiling in dense.tilings for other in tiling.others) > 500


def test_progress_goes_on_through_all_blocks() -> None:
    seen: list[tuple[int, int]] = []
    aurank.evaluate(ROWS, LABELS, max_memory=12_000, progress=lambda *at: seen.append(at))
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert {total for _, total in seen} == {seen[-1][0]}


def test_ranks_that_do_not_fit_are_refused_where_all_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aurank.evaluation.engine.problem.available_memory", lambda: 2000)
    with pytest.raises(UserError, match="positives, which take about"):
        positive_ranks(ROWS, LABELS)
    with pytest.raises(UserError, match="positives, which take about"):
        aurank.evaluate(ROWS, LABELS, metrics=["mauprc", "tpr@fpr=0.1"])
    aurank.evaluate(ROWS, LABELS)


MEASURE = """
import sys
from pathlib import Path
import numpy as np
import aurank
from aurank.errors import UserError
from aurank.evaluation import Resampling

def kibibytes(name):
    return next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith(name))

rows = np.random.default_rng(0).normal(size=(3000, 8)).astype(np.float32)
labels = np.arange(len(rows)) % 2
aurank.evaluate(rows[:100], labels[:100], resampling=Resampling(100), neighbours=5)
before = kibibytes("VmRSS")
aurank.evaluate(rows, labels, max_memory="16MiB", resampling=Resampling(100), neighbours=5)
print((kibibytes("VmHWM") - before) // 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_millions_of_positives_stay_within_the_budget() -> None:
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", MEASURE], check=True, capture_output=True, text=True, env=one_thread)
    assert int(done.stdout) <= 16 + 16  # 4.5 million positives, of 110 bytes each, would take 495

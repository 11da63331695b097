"""Who competes with whom: ranks and lists are those of a loop over all pairs, however it is said."""

import itertools
import resource
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.brute_force import left_out
from testing.listing import same

from aurank.errors import UserError
from aurank.evaluation import Ranks, RetrievalProblem, inputs, positive_ranks
from aurank.evaluation.engine import scores, tiles
from aurank.evaluation.engine.nearest import NearestRows, nearest_rows


def sorted_lists(problem: RetrievalProblem, distance: str) -> dict[int, list[tuple[int, bool, int]]]:
    """The list of each query with a positive, best first, as (minus score, is positive, gallery row).

    Of integer vectors, which have one length under cosine.
    """
    left, right = problem.embeddings.astype(np.int64), problem.target.astype(np.int64)
    scored = -((left[:, None] - right) ** 2).sum(axis=2) if distance == "euclidean" else left @ right.T
    found = {}
    for query, line in enumerate(scored.tolist()):
        listed = [(-score, *left_out(problem, query, row), row) for row, score in enumerate(line)]
        items = sorted((score, positive, row) for score, out, positive, row in listed if not out)
        if any(positive for _, positive, _ in items):
            found[query] = items
    return found


def counted(items: list[tuple[int, bool, int]]) -> list[tuple[int, int, int, int]]:
    """(positive, higher, tied, at least) of each positive of a list."""
    mine, others = (np.array([score for score, positive, _ in items if positive == wanted]) for wanted in (True, False))
    return [
        (row, int((others < score).sum()), int((others == score).sum()), int((mine <= score).sum()))
        for score, positive, row in items
        if positive
    ]


def as_listed(ranks: Ranks) -> list[list[tuple[int, int, int, int]]]:
    columns = [getattr(ranks, name).tolist() for name in ("positive", "higher", "tied", "at_least")]
    entries = list(zip(*columns, strict=True))
    return [entries[first:last] for first, last in itertools.pairwise(ranks.offset.tolist())]


def check_nearest(found: NearestRows, lists: dict[int, list[tuple[int, bool, int]]], scale: int) -> None:
    """Nothing, or a failure unless each list is the begin of the sorted one."""
    assert found.query.tolist() == [*lists]
    for place, items in enumerate(lists.values()):
        score, positive, row = zip(*items[: found.row.shape[1]], strict=True)
        assert found.row[place, : len(row)].tolist() == [*row]
        assert found.is_positive[place, : len(row)].tolist() == [*positive]
        assert (-scale * found.score[place, : len(row)]).tolist() == [*score]


@st.composite
def cases(draw: Any) -> dict[str, Any]:
    """Fields of a problem, and a distance, in any combination that makes sense."""
    rows, there = draw(st.integers(1, 30)), draw(st.integers(1, 40))
    separate = draw(st.booleans())
    chance = np.random.default_rng(draw(st.integers(0, 2**32)))
    distance = draw(st.sampled_from(["cosine", "dot", "euclidean"]))
    values = [-1, 1] if distance == "cosine" else [-2, -1, 0, 1, 2]
    case: dict[str, Any] = {"distance": distance, "embeddings": chance.choice(values, (rows, 4))}
    classes = draw(st.sampled_from([1, 3, 12]))
    case["labels"] = chance.integers(-classes, classes, rows).tolist()
    case["gallery"] = case["gallery_labels"] = None
    if separate:
        case["gallery"] = chance.choice(values, (there, 4))
        case["gallery_labels"] = chance.integers(-classes, classes, there).tolist()
        if draw(st.booleans()):
            case["ids"] = chance.permutation(60)[:rows].tolist()
            case["gallery_ids"] = chance.permutation(60)[:there].tolist()
    else:
        there = rows
    if draw(st.booleans()):
        case["groups"] = chance.integers(-1, 2, rows).tolist()
        if separate:
            case["gallery_groups"] = chance.integers(-1, 2, there).tolist()
    pairs = [(int(chance.integers(rows)), int(chance.integers(there))) for _ in range(draw(st.integers(0, 25)))]
    if draw(st.booleans()):
        case["ignore"] = pairs[::2]
    if draw(st.booleans()):
        case["positives"] = pairs[1::2] + pairs[1:3]  # some of them twice
        if draw(st.booleans()):
            case["labels"] = case["gallery_labels"] = None
    if draw(st.booleans()):
        case["junk"] = chance.permutation(there)[: there // 3].tolist()
    return case


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(cases(), st.sampled_from(["numba", "torch"]), st.sampled_from([np.int8, np.float32, np.float64]), st.booleans())
def test_every_way_to_say_who_competes_equals_a_loop_over_all_pairs(
    case: dict[str, Any], backend: str, kind: Any, small: bool
) -> None:
    distance, problem = case.pop("distance"), RetrievalProblem(**case)
    lists = sorted_lists(problem, distance)
    sides = {name: case[name] if case[name] is None else case[name].astype(kind) for name in ("embeddings", "gallery")}
    given: dict[str, Any] = {"distance": distance, "max_memory": "32KiB" if small else "1GiB"}
    ranks = positive_ranks(replace(problem, **sides), backend=backend, **given)
    assert ranks.query.tolist() == [*lists]
    assert ranks.num_negatives.tolist() == [sum(not positive for _, positive, _ in items) for items in lists.values()]
    assert as_listed(ranks) == [counted(items) for items in lists.values()]
    assert ranks.labels.tolist() == ([*lists] if case["labels"] is None else [case["labels"][row] for row in lists])
    assert ranks.num_gallery == len(problem.target)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "SIDES", {"cpu": 8 if small else tiles.SIDES["cpu"]})
        for module in (scores, inputs):
            patch.setattr(module, "importable", lambda _: backend == "numba")
        check_nearest(nearest_rows(replace(problem, **sides), 12, **given), lists, 4 if distance == "cosine" else 1)


def test_junk_may_be_rows_or_truth_values() -> None:
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(20, 3)), rng.integers(0, 4, 20)
    mask = rng.random(20) < 0.3
    assert same(positive_ranks(rows, labels, junk=mask), positive_ranks(rows, labels, junk=np.flatnonzero(mask)))


@pytest.mark.slow
def test_more_positives_than_memory_holds_are_refused_before_anything_is_computed() -> None:
    rows, before = 2_000_000, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    flat = np.broadcast_to(np.float32(np.nan), (rows, 2))  # a product, or even a length, would find the NaN
    labels = np.arange(rows) % 2
    with pytest.raises(UserError, match=r"make 1,999,998,000,000 positives, which take about 200\.1 TiB .* available"):
        positive_ranks(flat, labels)
    with pytest.raises(UserError, match=r"make 2,000,000,000,000 positives.*: measure a sample of the queries"):
        positive_ranks(flat, labels, flat, labels)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB

"""Who competes with whom: every way to say it equals a loop over all pairs, under every distance and kernel."""

import itertools
import resource
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.brute_force import left_out

from aurank.errors import UserError
from aurank.evaluation import Ranks, RetrievalProblem, positive_ranks


def loop(problem: RetrievalProblem, distance: str) -> list[tuple[int, int, list[tuple[int, int, int, int]]]]:
    """(query, negatives, [(positive, higher, tied, at least)]) for integer vectors, of one length under cosine."""
    left, right = problem.embeddings.astype(np.int64), problem.target.astype(np.int64)
    scores = -((left[:, None] - right) ** 2).sum(axis=2) if distance == "euclidean" else left @ right.T
    result = []
    for row, line in enumerate(scores.tolist()):
        mine: dict[int, int] = {}
        others: list[int] = []
        for place, score in enumerate(line):
            out, positive = left_out(problem, row, place)
            if not out and positive:
                mine[place] = score
            elif not out:
                others.append(score)
        entries = [
            (
                place,
                sum(other > score for other in others),
                sum(other == score for other in others),
                sum(other >= score for other in mine.values()),
            )
            for place, score in sorted(mine.items(), key=lambda item: (-item[1], item[0]))
        ]
        if entries:
            result.append((row, len(others), entries))
    return result


def listed(ranks: Ranks) -> list[tuple[int, int, list[tuple[int, int, int, int]]]]:
    columns = [getattr(ranks, name).tolist() for name in ("positive", "higher", "tied", "at_least")]
    entries, edges = list(zip(*columns, strict=True)), ranks.offset.tolist()
    parts = [entries[first:last] for first, last in itertools.pairwise(edges)]
    return list(zip(ranks.query.tolist(), ranks.num_negatives.tolist(), parts, strict=True))


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
    expected = loop(problem, distance)
    sides = {name: case[name] if case[name] is None else case[name].astype(kind) for name in ("embeddings", "gallery")}
    memory = "32KiB" if small else "1GiB"
    ranks = positive_ranks(replace(problem, **sides), distance=distance, backend=backend, max_memory=memory)
    assert listed(ranks) == expected
    rows = [row for row, _, _ in expected]
    assert ranks.labels.tolist() == (rows if case["labels"] is None else [case["labels"][row] for row in rows])
    assert ranks.num_gallery == len(problem.target)


def test_junk_may_be_rows_or_truth_values() -> None:
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(20, 3)), rng.integers(0, 4, 20)
    mask = rng.random(20) < 0.3
    assert listed(positive_ranks(rows, labels, junk=mask)) == listed(
        positive_ranks(rows, labels, junk=np.flatnonzero(mask))
    )


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

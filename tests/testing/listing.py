"""Lists of results to compare."""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache

import numpy as np
from hypothesis import strategies as st

from aurank.evaluation import Ranks

Item = tuple[int, bool]  # score, and whether the item is a positive
ITEMS = st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=12).filter(
    lambda items: any(is_positive for _, is_positive in items)
)


ARRAYS = ("query", "labels", "num_negatives", "offset", "positive", "higher", "tied", "at_least")


def same(left: Ranks, right: Ranks) -> bool:
    return all(np.array_equal(getattr(left, name), getattr(right, name)) for name in ARRAYS)


def read(text: str) -> list[Item]:
    """Items of a list such as "- ++- ++": best first, groups of equal scores between spaces."""
    return [(-place, sign == "+") for place, group in enumerate(text.split()) for sign in group]


def ranks_of(lists: Sequence[Sequence[Item]]) -> Ranks:
    """Ranks by counting, one positive at a time; a list without a positive is a lone query. Labels are the rows."""
    rows, higher, tied, at_least, positive, offset = [], [], [], [], [], [0]
    for row, items in enumerate(lists):
        own = sorted((-score, place) for place, (score, is_positive) in enumerate(items) if is_positive)
        if not own:
            continue
        rows.append(row)
        for negated, place in own:
            positive.append(place)
            higher.append(sum(score > -negated and not is_positive for score, is_positive in items))
            tied.append(sum(score == -negated and not is_positive for score, is_positive in items))
            at_least.append(sum(score >= -negated and is_positive for score, is_positive in items))
        offset.append(len(positive))
    content: dict[str, Sequence[int]] = {
        "query": rows,
        "num_negatives": [sum(not is_positive for _, is_positive in lists[row]) for row in rows],
        "offset": offset,
        "positive": positive,
        "higher": higher,
        "tied": tied,
        "at_least": at_least,
        "labels": rows,
    }
    arrays = {name: np.array(values, dtype=np.int64) for name, values in content.items()}
    return Ranks(**arrays, num_queries=len(lists), num_gallery=max(len(items) for items in lists))


def groups(items: Sequence[Item]) -> list[tuple[int, int]]:
    """(positives, negatives) of each group of equal scores, best first."""
    scores = sorted({score for score, _ in items}, reverse=True)
    return [(sum(s == score and p for s, p in items), sum(s == score and not p for s, p in items)) for score in scores]


def average_precision(items: Sequence[Item], ties: str) -> float:
    """Walks down the groups."""
    positives = negatives = 0
    total = Fraction(0)
    for more_positives, more_negatives in groups(items):
        for place in range(1, more_positives + 1):
            ahead = negatives + (0 if ties == "optimistic" else more_negatives)
            found = positives + (place if ties == "pessimistic" else more_positives)
            total += Fraction(found, found + ahead)
        positives, negatives = positives + more_positives, negatives + more_negatives
    return float(total / positives)


def relevance(items: Sequence[Item]) -> list[bool]:
    """The sorted list, negatives first among equal scores."""
    return [is_positive for _, is_positive in sorted(items, key=lambda item: (-item[0], item[1]))]


def expected(items: Sequence[Item], name: str, *, k: int = 0, ties: str = "threshold") -> float:
    """The metric of one query, by going through its sorted list; `name` is written with {k}."""
    return _expected(tuple(items), name, k if "{k}" in name else 0, ties if name == "mauprc" else "")


@cache
def _sorted(items: tuple[Item, ...]) -> tuple[list[bool], list[bool], list[int], list[float], list[float]]:
    """The list and the best one, the ranks of positives with the precision at each, and gains by place."""
    found = relevance(items)
    ranks = [rank for rank, is_positive in enumerate(found, 1) if is_positive]
    precisions = [place / rank for place, rank in enumerate(ranks, 1)]
    return found, sorted(found, reverse=True), ranks, precisions, [1 / math.log2(at + 2) for at in range(len(found))]


def trapezoids(ranks: Sequence[int]) -> float:
    """Area below the precision at each recall, a straight line between the list before a positive and with it."""
    area = 0.0
    for found, rank in enumerate(ranks):
        before = found / (rank - 1) if rank > 1 else 1.0
        area += (before + (found + 1) / rank) / 2 / len(ranks)
    return area


@cache
def _expected(items: tuple[Item, ...], name: str, k: int, ties: str) -> float:
    if name == "mauprc":
        return average_precision(items, ties)
    found, best, ranks, precisions, gain = _sorted(items)
    count = len(ranks)
    if name == "auroc":
        negatives = len(items) - count
        lost = sum(other >= s for s, positive in items if positive for other, p in items if not p)
        return 1 - lost / (count * negatives) if negatives else 1.0
    cut = {"map@r": count, "r_precision": count, "ndcg": len(items)}.get(name, k)
    reached = sum(p for p, rank in zip(precisions, ranks, strict=True) if rank <= cut)
    if name.startswith("ndcg"):
        return float(np.dot(found[:cut], gain[:cut]) / np.dot(best[:cut], gain[:cut]))
    return {
        "recall@{k}": lambda: float(any(found[:cut])),
        "precision@{k}": lambda: sum(found[:cut]) / cut,
        "precision@{k}(last)": lambda: sum(found[: min(cut, ranks[-1])]) / min(cut, ranks[-1]),
        "coverage@{k}": lambda: sum(found[:cut]) / count,
        "mrr@{k}": lambda: 1 / ranks[0] if ranks[0] <= cut else 0.0,
        "map@{k}(min)": lambda: reached / min(cut, count),
        "map@{k}(r)": lambda: reached / count,
        "map@r": lambda: reached / count,
        "r_precision": lambda: sum(found[:cut]) / count,
        "mrr": lambda: 1 / ranks[0],
        "minp": lambda: count / ranks[-1],
        "trapezoid_ap": lambda: trapezoids(ranks),
    }[name]()

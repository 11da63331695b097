"""Rows with several labels, against a slow loop over pairs in float64: positives, grades, tables, refusals."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, ndcg_score
from testing.inputs import held_bytes

import aurank
from aurank.data import build_manifest
from aurank.embedding.embedded import Embedded, described
from aurank.errors import UserError
from aurank.evaluation.engine.ranks import positive_ranks
from aurank.evaluation.report import Report

CHANCE = np.random.default_rng(0)
CLASSES = 5
METRICS = ("mauprc", "recall@1", "ndcg", "ndcg@5")


def drawn(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings, and flags [row, class] with at least one in each row."""
    flags = CHANCE.random((rows, CLASSES)) < 0.35
    flags[np.arange(rows), CHANCE.integers(0, CLASSES, rows)] = True
    return CHANCE.normal(size=(rows, 4)), flags


def jaccard(a: set[int], b: set[int]) -> float:
    return len(a & b) / len(a | b)


RULES: dict[Any, Callable[[set[int], set[int]], float]] = {
    "any": lambda a, b: float(len(a & b) > 0),
    "equal": lambda a, b: float(a == b),
    "jaccard": jaccard,
    0.5: lambda a, b: float(jaccard(a, b) >= 0.5),
    1 / 3: lambda a, b: float(jaccard(a, b) >= 1 / 3),
    1: lambda a, b: float(a == b),
}


def sets_of(flags: np.ndarray) -> list[list[int]]:
    return [np.flatnonzero(row).tolist() for row in flags]


def slow(
    rows: np.ndarray, flags: np.ndarray, gallery: tuple[np.ndarray, np.ndarray] | None, grade: Callable[..., float]
) -> dict[int, tuple[float, float]]:
    """Average precision and nDCG of each query with a positive, of scikit-learn."""
    columns, other = gallery or (rows, flags)
    values = {}
    for query in range(len(rows)):
        kept = [row for row in range(len(columns)) if gallery is not None or row != query]
        scores = [rows[query] @ columns[row] / np.linalg.norm(columns[row]) for row in kept]
        sets = ([{*np.flatnonzero(side).tolist()} for side in (flags[query], other[row])] for row in kept)
        grades = np.array([grade(*both) for both in sets])
        if grades.any():
            values[query] = average_precision_score(grades > 0, scores), ndcg_score([grades], [scores])
    return values


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("with_gallery", [False, True])
def test_positives_and_grades_are_those_of_a_slow_loop(rule: Any, with_gallery: bool) -> None:
    (rows, flags), gallery = drawn(24), drawn(31) if with_gallery else None
    expected = slow(rows, flags, gallery, RULES[rule])
    more = {} if gallery is None else {"gallery": gallery[0], "gallery_labels": gallery[1]}
    report = aurank.evaluate(rows, flags, **more, positives=rule, metrics=METRICS)
    assert report.per_query["query"].tolist() == [*expected]
    assert report.per_query["ap"].tolist() == pytest.approx([ap for ap, _ in expected.values()], abs=1e-12)
    assert report.per_query["ndcg"].tolist() == pytest.approx([gain for _, gain in expected.values()], abs=1e-12)


def test_sets_are_flags_of_any_library_or_lists_and_a_function_sees_all_of_them() -> None:
    (rows, flags), (gallery, gallery_flags) = drawn(20), drawn(30)
    expected = aurank.evaluate(rows, flags, gallery, gallery_flags)
    by_any = aurank.evaluate(rows, flags, gallery, gallery_flags, positives="any")
    assert expected.metrics["ndcg"] != by_any.metrics["ndcg"]
    names = np.array([*"edcba"])
    forms = [
        (torch.from_numpy(flags), torch.from_numpy(gallery_flags)),
        (sets_of(flags), [set(each) for each in sets_of(gallery_flags)]),
        ([names[row].tolist() for row in flags], [tuple(names[row].tolist()) for row in gallery_flags]),
    ]
    for labels, gallery_labels in forms:
        assert aurank.evaluate(rows, labels, gallery, gallery_labels).metrics == expected.metrics

    def by_pairs(a: Any, b: Any) -> Any:
        shapes.add((a.shape[1], b.shape[0], a.dtype))
        return (a[:, None] & b).sum(-1) / (a[:, None] | b).sum(-1)

    shapes: set[Any] = set()
    wide, gallery_wide = (np.pad(side, ((0, 0), (0, 2))) for side in (flags, gallery_flags))  # of classes of no row
    assert aurank.evaluate(rows, wide, gallery, gallery_wide, positives=by_pairs).metrics == expected.metrics
    assert shapes == {(CLASSES + 2, 30, np.dtype(bool))}


def test_blocks_change_no_digit(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, flags = drawn(40)
    rules = ("jaccard", lambda a, b: (a[:, None] & b).any(-1))
    expected = [aurank.evaluate(rows, flags, positives=rule).metrics for rule in rules]
    monkeypatch.setattr("aurank.evaluation.relevance.COMPARED", 100)
    assert [aurank.evaluate(rows, flags, positives=rule).metrics for rule in rules] == expected


@pytest.mark.parametrize("labels", [CHANCE.integers(0, 4, 30), [*"abcdea"] * 5])
def test_one_label_a_row_has_the_digits_of_plain_labels(labels: Any) -> None:
    rows = drawn(30)[0]
    expected = aurank.evaluate(rows, labels)
    rules: list[Any] = ["any", "equal", "jaccard", 0.7, lambda a, b: a[:, None] == b]
    reports = [aurank.evaluate(rows, labels, positives=rule) for rule in rules]
    reports.append(aurank.evaluate(rows, [[label] for label in np.asarray(labels).tolist()]))
    for report in reports:
        assert report.metrics == expected.metrics
        assert report.per_query["label"].astype(str).tolist() == [str(each) for each in np.asarray(labels).tolist()]
    assert reports[0].tags is None


def test_the_table_by_class_counts_a_query_for_each_of_its_labels(tmp_path: Path) -> None:
    rows, flags = drawn(30)
    report = aurank.evaluate(rows, flags)
    assert report.per_query["label"].tolist() == ["|".join(map(str, each)) for each in sets_of(flags)]
    table = report.class_table()
    assert table["label"].tolist() == [str(label) for label in range(CLASSES)]
    assert table["num_queries"].tolist() == flags.sum(axis=0).tolist()
    ap = report.per_query["ap"]
    assert table["mauprc"].tolist() == pytest.approx(
        [ap[flags[:, label]].mean() for label in range(CLASSES)], abs=1e-12
    )
    report.save(tmp_path / "report.json")
    loaded = Report.load(tmp_path / "report.json")
    assert {name: column.tolist() for name, column in loaded.class_table().items()} == {
        name: column.tolist() for name, column in table.items()
    }
    named = aurank.evaluate(rows[:3], [["b"], ["a", "b"], ["c"]])  # the last has no positive
    assert {name: members.tolist() for name, members in named.tags.items()} == {"a": [1], "b": [0, 1]}


@pytest.mark.parametrize(
    ("labels", "positives", "said"),
    [
        ([[1], [], [2], [1]], None, "query 1 has labels .*, one or more and each once"),
        ([[0, 1, 0], [1, 0, 0], [0, 0, 1], [1, 1, 0]], None, "flags as a matrix of truth values"),
        ([[True, False]] * 4, None, "flags as a matrix of truth values"),
        ([["a"], "b", ["a"], ["b"]], None, "query 1 has labels 'b'"),
        (np.eye(4, dtype=bool) & False, None, "query 0 has labels"),
        (np.eye(4, dtype=bool), "some", r"positives must be any, equal, jaccard or a .* in \(0, 1\]; got 'some'"),
        *(
            (np.eye(4, dtype=bool), least, f"in .*; got {float(least)}")
            for least in (0, -0.5, 1.01, "0", "nan", np.inf)
        ),
        (None, "any", "positives compares labels: give labels"),
        ([0, 0, 1, 1], lambda a, b: np.ones(4), r"positives returned float64 \(4,\).*: return a truth"),
        ([0, 0, 1, 1], lambda a, b: np.full((len(a), len(b)), 2.0), "out of range: return a truth value, or a number"),
        ([0, 0, 1, 1], lambda a, b: np.full((len(a), len(b)), np.nan), "out of range: return a truth value"),
        ([0, 0, 1, 1], lambda a, b: None, "positives returned object"),
        (np.eye(4, dtype=bool), "any", "no other row there has a query's label"),
    ],
)
def test_what_means_nothing_is_refused_in_a_line(labels: Any, positives: Any, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        aurank.evaluate(np.eye(4), labels, positives=positives)
    assert "\n" not in str(caught.value)


def test_a_least_index_may_be_text_and_one_process_has_no_shards_of_sets() -> None:
    rows, flags = drawn(24)
    assert aurank.evaluate(rows, flags, positives="0.5").metrics == aurank.evaluate(rows, flags, positives=0.5).metrics
    for labels, positives in ((flags, None), (flags, "any"), (np.arange(24), lambda a, b: a[:, None] // 2 == b // 2)):
        with pytest.raises(UserError, match='positives by labels does not go with distributed="shards"'):
            aurank.evaluate(rows, labels, positives=positives, distributed="shards")


def test_both_sides_have_sets_and_a_rule_goes_without_relevance() -> None:
    flags = np.eye(4, dtype=bool)
    for labels, other in ((flags, [0] * 4), (flags, [[0]] * 4), (flags, flags[:, :3]), ([[0]] * 4, [0] * 4)):
        with pytest.raises(UserError, match="sets of labels must be alike on both sides"):
            aurank.evaluate(np.eye(4), labels, np.eye(4), other)
    with pytest.raises(UserError, match="and no relevance, which grades pairs of rows"):
        aurank.evaluate(np.eye(4), flags, positives="any", relevance=[1.0])


def test_too_many_pairs_are_told_before_they_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aurank.evaluation.engine.problem.available_memory", lambda: 1000)
    with pytest.raises(UserError, match="the labels make 100 positives"):
        aurank.evaluate(np.eye(10), np.ones((10, 1), bool))


LABELS = [("cat", "sofa"), ("cat",), ("dog", "sofa"), ("owl",), ("owl", "tree"), ("tree",)]


def embedded_sets(**columns: Any) -> Embedded:
    source = held_bytes(b"")
    paths = [str(row) for row in range(6)]
    manifest = build_manifest("six", source, paths=paths, labels=LABELS, splits=["test"] * 6, **columns)
    return described(manifest, np.arange(6), np.asarray(CHANCE.normal(size=(6, 3)), np.float32))


@pytest.mark.parametrize("roles", [{}, {"is_query": [True, False] * 3, "is_gallery": [False, True] * 3}])
def test_embeddings_with_sets_are_measured_by_them_saved_or_not(roles: dict[str, Any], tmp_path: Path) -> None:
    embedded = embedded_sets(**roles)
    rows, query, gallery = embedded.embeddings, embedded.is_query, embedded.is_gallery
    labels = np.array([None, *LABELS], object)[1:]
    more = {"gallery": rows[gallery], "gallery_labels": labels[gallery].tolist()} if roles else {}
    expected = aurank.evaluate(rows[query], labels[query].tolist(), **more)
    embedded.save(tmp_path / "rows.npz")
    for form in (embedded, Embedded.load(tmp_path / "rows.npz")):
        report = form.evaluate()
        assert report.metrics == expected.metrics
        assert set(report.tags) <= {"cat", "dog", "owl", "sofa", "tree"}
        assert report.per_query["class"].tolist() == report.per_query["label"].tolist()
        positive = positive_ranks(form.problem())
        assert positive.num_positives.tolist() == expected.per_query["num_positives"].tolist()
        half = aurank.evaluate(rows[query], labels[query].tolist(), **more, positives=0.5)
        assert form.evaluate(positives=0.5).metrics == half.metrics
        positive = positive_ranks(form.problem(0.5))
        assert positive.num_positives.tolist() == half.per_query["num_positives"].tolist()
    assert {*embedded.select(np.arange(3)).evaluate().tags} <= {"cat", "dog", "sofa"}
    listed = replace(embedded, positives=np.array([[0, 1], [2, 3]]))
    assert listed.evaluate().per_query["num_positives"].tolist() == [1, 1]
    assert positive_ranks(listed.problem()).num_positives.tolist() == [1, 1]
    assert listed.evaluate(positives="any").metrics == embedded.evaluate(positives="any").metrics

"""Labels and ids may be text: the same digits as with integers, and reports that name classes as they came."""

from typing import Any

import numpy as np
import pytest

import aurank

CHANCE = np.random.default_rng(0)
ROWS = CHANCE.normal(size=(40, 6))
NUMBERS = CHANCE.integers(0, 5, 40)
NAMES = [("owl", "cat", "Ä", "bee", "a b")[number] for number in NUMBERS]
METRICS = ("mauprc", "macro:mauprc", "recall@1", "ndcg")


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda names: np.array(names, dtype=object)])
def test_text_gives_the_digits_of_integers_and_the_names_of_classes(kind: Any) -> None:
    report = aurank.evaluate(ROWS, kind(NAMES), metrics=METRICS, resampling=aurank.evaluation.Resampling(200))
    plain = aurank.evaluate(ROWS, NUMBERS, metrics=METRICS, resampling=aurank.evaluation.Resampling(200))
    assert report.metrics == plain.metrics
    assert report.intervals == plain.intervals
    assert report.per_query["label"].tolist() == [NAMES[row] for row in report.per_query["query"]]
    table = report.class_table()
    assert table["label"].tolist() == ["a b", "bee", "cat", "owl", "Ä"]
    owls = plain.class_table()["mauprc"][plain.class_table()["label"] == 0]
    assert table["mauprc"][3] == owls[0]


def test_two_sides_share_their_names_and_text_ids_leave_out_the_same_item() -> None:
    items = [f"item {row}" for row in range(40)]
    report = aurank.evaluate(
        ROWS[:10], NAMES[:10], ROWS[5:], NAMES[5:], ids=items[:10], gallery_ids=items[5:], metrics=METRICS
    )
    plain = aurank.evaluate(
        ROWS[:10], NUMBERS[:10], ROWS[5:], NUMBERS[5:], ids=range(10), gallery_ids=range(5, 40), metrics=METRICS
    )
    assert report.metrics == plain.metrics
    assert report.per_query["num_negatives"].tolist() == plain.per_query["num_negatives"].tolist()


def test_groups_may_be_text_and_an_empty_one_is_none() -> None:
    names = ["", "west", "east"]
    numbers = np.random.default_rng(1).integers(-1, 2, 40)
    text = [names[number + 1] for number in numbers]
    half = np.array(NAMES[:10]), np.array(NAMES[10:])
    for groups in (text, np.array(text), np.array([None if name == "" else name for name in text], object)):
        report = aurank.evaluate(ROWS, NAMES, groups=groups, super_labels=[name[:1] for name in NAMES], neighbours=3)
        assert report.metrics == aurank.evaluate(ROWS, NAMES, groups=numbers).metrics
        assert report.per_query["group"].tolist() == [text[row] for row in report.per_query["query"]]
        assert report.gallery["group"].tolist() == text
        sides = {"groups": groups[:10], "gallery_groups": groups[10:]}
        apart = aurank.evaluate(ROWS[:10], half[0], ROWS[10:], half[1], **sides)
        plain = aurank.evaluate(
            *(ROWS[:10], half[0], ROWS[10:], half[1]), groups=numbers[:10], gallery_groups=numbers[10:]
        )
        assert apart.metrics == plain.metrics

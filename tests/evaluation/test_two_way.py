import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aurank.errors import UserError
from aurank.evaluation.two_way import TwoWayReport, chance_recall, prompts, two_way, zero_shot


def slow_recall(
    queries: np.ndarray, query_ids: list[int], gallery: np.ndarray, gallery_ids: list[int], labels: list[int], k: int
) -> float:
    """Recall@k by the definition: items by id, labels of an item from all its pairs, one list after the other."""
    query, other = ({number: ids.index(number) for number in ids} for ids in (query_ids, gallery_ids))
    query_labels, other_labels = labels_of(query_ids, labels), labels_of(gallery_ids, labels)
    hits = []
    for number, row in query.items():
        scores = {name: float(queries[row] @ gallery[place]) for name, place in other.items()}
        best = sorted(scores, key=lambda name: -scores[name])[:k]
        hits.append(any(query_labels[number] & other_labels[name] for name in best))
    return sum(hits) / len(hits)


def labels_of(ids: list[int], labels: list[int]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = defaultdict(set)
    for number, label in zip(ids, labels, strict=True):
        found[number].add(label)
    return found


def pairs(count: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    vectors = np.random.default_rng(seed).normal(size=(2, count, 5))
    vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
    return vectors[0], vectors[1]


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(data=st.data(), count=st.integers(1, 12), seed=st.integers(0, 100))
def test_recall_both_ways_is_that_of_lists_made_one_by_one(data: Any, count: int, seed: int) -> None:
    numbers = st.lists(st.integers(0, 4), min_size=count, max_size=count)
    image_ids, text_ids, labels = (data.draw(numbers) for _ in range(3))
    images, texts = pairs(count, seed=seed)
    report = two_way(
        images,
        torch.from_numpy(texts),
        labels,
        image_ids=image_ids,
        text_ids=text_ids,
        recall_at=(1, 3),
        backend="torch",
    )
    for k in (1, 3):
        assert report.recall["image_to_text"][k] == slow_recall(images, image_ids, texts, text_ids, labels, k)
        assert report.recall["text_to_image"][k] == slow_recall(texts, text_ids, images, image_ids, labels, k)
    alike = [
        sum(bool(own & other) for other in labels_of(text_ids, labels).values())
        for _, own in sorted(labels_of(image_ids, labels).items())
    ]
    assert report.image_to_text.per_query["num_positives"].tolist() == alike
    values = [value for found in report.recall.values() for value in found.values()]
    assert report.mean_recall == pytest.approx(sum(values) / 4)
    assert report.metrics["text_to_image/recall@3"] == report.recall["text_to_image"][3]
    queries = [each.per_query["ap"] for each in (report.image_to_text, report.text_to_image)]
    assert report.metrics["mauprc"] == pytest.approx(np.concatenate(queries).mean())


def test_texts_that_recur_stand_once_or_as_often_as_they_do() -> None:
    images = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    texts = np.array([[0.6, 0.8], [0.6, 0.8], [1.0, 0.0]])
    labels, ids = [0, 0, 1], [7, 7, 3]
    once = two_way(images, texts, labels, text_ids=ids, recall_at=(1, 2))
    often = two_way(images, texts, labels, recall_at=(1, 2))
    assert once.image_to_text.num_gallery == once.text_to_image.num_queries == 2
    assert often.image_to_text.num_gallery == often.text_to_image.num_queries == 3
    # The third image's own text is the last of two, or of three as the other one is there twice.
    assert once.recall["image_to_text"] == {1: 1 / 3, 2: 1.0}
    assert often.recall["image_to_text"] == {1: 1 / 3, 2: 2 / 3}
    assert "3 pairs of 3 images and 2 texts; each distinct text stands once" in str(once)
    assert "3 pairs of 3 images and 3 texts; texts that recur stand as often as they do" in str(often)


@pytest.mark.parametrize("k", [2, 9])
def test_chance_is_the_recall_of_random_orders(k: int) -> None:
    labels = np.array([0] * 4 + [1] * 3 + [2])
    report = two_way(*pairs(8), labels, recall_at=(k,))
    kept = [8 - count for count in (4, 3, 1) for _ in range(count)]  # negatives of each query
    expected = sum(1 - math.comb(negatives, k) / math.comb(8, min(k, 8)) for negatives in kept) / 8
    assert report.chance["image_to_text"][k] == pytest.approx(expected)
    if k == 2:
        draws = np.random.default_rng(0).random((20_000, 8)).argsort(1)[:, :2]
        drawn = np.mean([(labels[draws] == label).any(1).mean() for label in labels])
        assert chance_recall(report.text_to_image, k) == pytest.approx(drawn, abs=0.01)


def test_a_report_comes_back_from_its_folder_and_says_chance(tmp_path: Path) -> None:
    report = two_way(*pairs(6), [0, 0, 1, 1, 2, 3], recall_at=(1, 5))
    report.save(tmp_path / "two_way")
    again = TwoWayReport.load(tmp_path / "two_way")
    assert again.metrics == report.metrics
    assert again.chance == report.chance
    assert str(again) == str(report)
    saved = json.loads((tmp_path / "two_way" / "two_way.json").read_text())
    assert saved["metrics"] == report.metrics
    assert saved["chance"]["image_to_text/recall@1"] == report.chance["image_to_text"][1]
    lines = str(report).splitlines()
    found = f"{report.recall['image_to_text'][1]:.4f}"
    assert lines[0].split() == ["image_to_text/recall@1", found, "(chance", "0.2778)"]
    assert len(lines) == 8
    with pytest.raises(UserError, match=r"image_to_text\.json: .*No such file"):
        TwoWayReport.load(tmp_path)


def test_zero_shot_gives_each_image_the_class_of_the_nearest_mean_prompt() -> None:
    generator = np.random.default_rng(0)
    images = generator.normal(size=(30, 6))
    named = generator.normal(size=(7, 3, 6)) * generator.uniform(1, 9, (7, 3, 1))
    labels = generator.integers(0, 7, 30)
    classes = np.stack([sum(row / np.linalg.norm(row) for row in prompt) for prompt in named])
    scores = images @ (classes / np.linalg.norm(classes, axis=1, keepdims=True)).T
    order = scores.argsort(1)[:, ::-1]
    report = zero_shot(images, labels, torch.from_numpy(named), top=(1, 5))
    assert report.recall == {
        1: pytest.approx(float((order[:, 0] == labels).mean())),
        5: pytest.approx(float((order[:, :5] == labels[:, None]).any(1).mean())),
    }
    assert "zero-shot: 7 classes by 3 prompts each; chance is 0.1429 for recall@1, 0.7143 for recall@5" in str(report)


def test_prompts_stand_class_by_class() -> None:
    assert prompts(["cat", "{owl}"], ["a {}", "{}s"]) == ["a cat", "cats", "a {owl}", "{owl}s"]

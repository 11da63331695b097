"""The protocols: who is query and gallery in each, and when two numbers answer the same question."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from testing import trees as trees

from aurank.data import READERS, ImageDataset
from aurank.data.transforms.standard import Resize
from aurank.embedding.embed import embed_pixels
from aurank.embedding.embedded import Embedded
from aurank.embedding.protocols import PROTOCOLS
from aurank.evaluation import evaluate


def embedded(counts: list[int], *, seed: int = 0) -> Embedded:
    """Random embeddings, in a random order of rows, of classes with these numbers of images."""
    chance = np.random.default_rng(seed)
    labels = chance.permutation(np.repeat(np.arange(len(counts)) * 7 + 3, counts))
    rows = len(labels)
    return Embedded(
        embeddings=chance.normal(size=(rows, 6)).astype(np.float32),
        labels=labels,
        ids=np.arange(rows),
        paths=np.array([f"image/{number:07d}.jpg" for number in chance.permutation(rows)]),
        is_query=np.ones(rows, dtype=bool),
        is_gallery=np.ones(rows, dtype=bool),
        groups=np.full(rows, -1),
    )


def test_the_question_alone_decides_checksum_and_numbers():
    protocol, given, chance = PROTOCOLS["sop"], embedded([3, 4, 5, 2]), np.random.default_rng(5)
    report, kept = protocol.evaluate(given), protocol.checksum(given)
    assert report.protocol["checksum"] == kept
    for same in (given.select(chance.permutation(14)), dataclasses.replace(given, labels=given.labels * 1009 % 65537)):
        assert protocol.checksum(same) == kept
        assert protocol.evaluate(same).metrics == report.metrics
    paths = np.array([*given.paths[:-1], "image/other.jpg"])
    labels = np.where(np.arange(14) == 2, given.labels[3] + 1, given.labels)
    others = [dataclasses.replace(given, paths=paths), dataclasses.replace(given, labels=labels)]
    changes: list[dict[str, Any]] = [{"name": "other"}, {"recall_at": (1, 10)}]
    asked = [dataclasses.replace(protocol, **change).checksum(given) for change in changes]
    assert len({kept, *map(protocol.checksum, [*others, given.select(np.arange(13))]), *asked}) == 6
    plain = evaluate(given.embeddings, given.labels, recall_at=[1, 10, 100, 1000])
    assert report.metrics == plain.metrics


def test_a_checksum_is_the_same_today_as_ever():
    """A golden value: if it changes, numbers of before cannot be compared any more, and VERSION has to rise."""
    paths, labels = np.array(["b.jpg", "a.jpg", "c.jpg"]), np.array([5, 9, 5])
    given = dataclasses.replace(embedded([2, 1]), paths=paths, labels=labels)
    assert PROTOCOLS["sop"].checksum(given) == "4d4d88bbef99b8a0"


@pytest.mark.slow
@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_protocol_reads_embeds_and_measures_the_test_images_of_its_benchmark(name, tmp_path, monkeypatch):
    trees.publish_small_sizes(monkeypatch)
    protocol = PROTOCOLS[name]
    trees.TREES[protocol.reader](tmp_path)
    manifest = protocol.manifest(tmp_path)
    assert manifest.sha256 == READERS[protocol.reader](tmp_path, **protocol.params).split("test").sha256
    dataset = ImageDataset(manifest, Resize(8, 3), channels=3)
    report = protocol.evaluate(embed_pixels(dataset))
    assert report.protocol["checksum"] == protocol.checksum(manifest)
    queries = int(manifest.is_query.sum())
    assert queries < len(manifest) or not protocol.roles
    assert len(report.per_query["query"]) + report.num_lone_queries == queries

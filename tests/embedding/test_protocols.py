"""The protocols: who is query and gallery in each, and when two numbers answer the same question."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from testing import trees as trees

from aurank.data import BENCHMARKS, ImageDataset
from aurank.data.transforms.standard import Resize
from aurank.embedding.embed import Embedded, embed_pixels
from aurank.embedding.protocols import PROTOCOLS, Protocol, draw_gallery, find_protocol, mean_report
from aurank.errors import UserError
from aurank.evaluation import Codes, Report, evaluate

ONE_GALLERY = Protocol("one", "vehicleid", (1, 5), {"test": "small"}, seeds=(0, 1, 2))


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


def similarity_ranks(given: Embedded, gallery: list[int]) -> tuple[list[int], list[float]]:
    """The slow, obvious way: for each other row, in order, the rank of its class's one gallery image."""
    unit = given.embeddings / np.linalg.norm(given.embeddings, axis=1, keepdims=True)
    queries = [row for row in range(len(unit)) if row not in gallery]
    ranks = []
    for row in queries:
        best = sorted(gallery, key=lambda other: -float(unit[row] @ unit[other]))
        ranks.append(1 + [given.labels[other] for other in best].index(given.labels[row]))
    return queries, [float(rank) for rank in ranks]


def galleries(given: Embedded, seeds: tuple[int, ...]) -> list[list[int]]:
    """The rows that each seed draws, by the definition: rows in the order of their paths, shuffled, first of each."""
    by_path = sorted(range(len(given.paths)), key=lambda row: str(given.paths[row]))
    found = []
    for seed in seeds:
        first: dict[int, int] = {}
        for place in np.random.default_rng(seed).permutation(len(by_path)).tolist():
            first.setdefault(int(given.labels[by_path[place]]), by_path[place])
        found.append(sorted(first.values()))
    return found


def test_one_gallery_image_of_each_class_and_the_mean_over_draws_agree_with_a_slow_count() -> None:
    given = embedded([3, 4, 5, 2, 1])
    report = ONE_GALLERY.evaluate(given)
    rows: list[int] = []
    ranks: list[float] = []
    for gallery in galleries(given, ONE_GALLERY.seeds):
        assert len(gallery) == 5
        drawn = similarity_ranks(given, gallery)
        rows, ranks = rows + drawn[0], ranks + drawn[1]
    assert report.per_query["query"].tolist() == rows
    assert report.per_query["first_rank"].tolist() == ranks
    assert report.mauprc == pytest.approx(np.mean([1 / rank for rank in ranks]), abs=1e-12)
    assert report.recall[1] == pytest.approx(np.mean([rank <= 1 for rank in ranks]), abs=1e-12)
    assert report.recall[5] == 1.0
    assert (report.num_queries, report.num_lone_queries, report.num_gallery) == (30, 0, 5)


def test_the_report_of_draws_names_its_seeds_and_their_range_and_survives_saving(tmp_path: Path) -> None:
    given = embedded([3, 4, 5, 2])
    report = ONE_GALLERY.evaluate(given)
    single = [dataclasses.replace(ONE_GALLERY, seeds=(seed,)).evaluate(given).mauprc for seed in ONE_GALLERY.seeds]
    assert report.mauprc == pytest.approx(np.mean(single), abs=1e-15)
    assert report.protocol is not None
    assert report.protocol["seeds"] == [0, 1, 2]
    assert report.protocol["params"] == {"test": "small"}
    assert f"seeds 0, 1, 2; mauprc from {min(single):.4f} to {max(single):.4f}" in "\n".join(report.notes)
    report.save(tmp_path / "report.json")
    loaded = Report.load(tmp_path / "report.json")
    assert loaded.protocol == report.protocol
    assert loaded.metrics == report.metrics
    curve = [dataclasses.replace(ONE_GALLERY, seeds=(seed,)).evaluate(given).curve for seed in ONE_GALLERY.seeds]
    assert report.curve is not None
    expected = np.mean([part.precision for part in curve if part is not None], axis=0)
    np.testing.assert_allclose(report.curve.precision, expected, atol=1e-15)


@pytest.mark.slow
def test_intervals_post_processing_and_codes_of_draws_are_those_of_their_mean() -> None:
    given, options = embedded([3, 4, 5, 2, 6, 3]), {"postprocess": "binary", "codes": Codes(dims=(2,))}
    drawn = [dataclasses.replace(ONE_GALLERY, seeds=(seed,)).evaluate(given, **options) for seed in (0, 1)]
    report = dataclasses.replace(ONE_GALLERY, seeds=(0, 1)).evaluate(given, **options)
    plain = dataclasses.replace(ONE_GALLERY, seeds=(0, 1)).evaluate(given)
    assert report.postprocessing is not None
    assert report.postprocessing["plain"] == plain.metrics
    assert (plain.postprocessing, plain.codes) == (None, None)
    codes = [one.codes[0]["metrics"]["mauprc"] for one in drawn if one.codes is not None]
    assert report.codes is not None
    assert report.codes[0]["metrics"]["mauprc"] == pytest.approx(np.mean(codes), abs=1e-15)
    with_intervals = mean_report([one.with_intervals(resamples=200, seed=4) for one in drawn], (0, 1)).intervals
    expected = mean_report(drawn, (0, 1)).with_intervals(resamples=200, seed=4).intervals
    assert with_intervals is not None
    assert expected is not None
    assert with_intervals.bounds == expected.bounds


@pytest.mark.parametrize("protocol", [PROTOCOLS["sop"], ONE_GALLERY], ids=["all", "drawn"])
def test_the_question_alone_decides_checksum_and_numbers(protocol: Protocol) -> None:
    given, chance = embedded([3, 4, 5, 2]), np.random.default_rng(5)
    report, kept = protocol.evaluate(given), protocol.checksum(given)
    assert report.protocol is not None
    assert report.protocol["checksum"] == kept
    for same in (given.select(chance.permutation(14)), dataclasses.replace(given, labels=given.labels * 1009 % 65537)):
        assert protocol.checksum(same) == kept
        assert protocol.evaluate(same).metrics == report.metrics
    paths = np.array([*given.paths[:-1], "image/other.jpg"])
    labels = np.where(np.arange(14) == 2, given.labels[3] + 1, given.labels)
    others = [
        dataclasses.replace(given, paths=paths),
        dataclasses.replace(given, labels=labels),
        given.select(np.arange(13)),
    ]
    changes: list[dict[str, Any]] = [{"name": "other"}, {"recall_at": (1, 10)}, {"seeds": (0, 1, 3)}]
    asked = [dataclasses.replace(protocol, **change).checksum(given) for change in changes]
    assert len({kept, *map(protocol.checksum, others), *asked}) == 7
    if protocol.seeds:
        classes = np.repeat(np.arange(20), 6)
        often = sum(draw_gallery(classes, seed) for seed in range(600))
        assert 60 < often.min() < often.max() < 145  # each of six images is drawn about 100 times
    else:
        plain = evaluate(given.embeddings, given.labels, recall_at=[1, 10, 100, 1000])
        assert report.metrics == plain.metrics


def test_a_checksum_is_the_same_today_as_ever() -> None:
    """A golden value: if it changes, numbers of before cannot be compared any more, and VERSION has to rise."""
    given = dataclasses.replace(
        embedded([2, 1]), paths=np.array(["b.jpg", "a.jpg", "c.jpg"]), labels=np.array([5, 9, 5])
    )
    assert PROTOCOLS["sop"].checksum(given) == "4d4d88bbef99b8a0"
    assert ONE_GALLERY.checksum(given) == "32c79594fab9f129"


GIVEN = embedded([3, 4])
REFUSED: dict[str, Callable[[], object]] = {
    "did you mean 'vehicleid-small'": lambda: find_protocol("vehicleid-smal"),
    "protocol sop with seeds": lambda: find_protocol("sop", seeds=[1]),
    "expected different whole numbers": lambda: find_protocol("vehicleid-one-gallery", seeds=[1, 1]),
    "sets test itself, to 'small'": lambda: PROTOCOLS["vehicleid-small"].manifest(Path(), test="large"),
    "needs the path of every image": lambda: PROTOCOLS["sop"].evaluate(
        dataclasses.replace(GIVEN, paths=np.array(["a"] * 7))
    ),
    "sop sets recall_at itself": lambda: PROTOCOLS["sop"].evaluate(GIVEN, recall_at=(1,)),
    "so is_query has no use": lambda: ONE_GALLERY.evaluate(dataclasses.replace(GIVEN, is_query=np.arange(7) < 3)),
    "so groups has no use": lambda: PROTOCOLS["sop"].evaluate(dataclasses.replace(GIVEN, groups=np.arange(7))),
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_question_that_no_protocol_answers_is_refused(message: str) -> None:
    with pytest.raises(UserError, match=message):
        REFUSED[message]()


def size_of_test(protocol: Protocol) -> tuple[int, int]:
    """Images and classes of the test split, of the small tree that a protocol reads."""
    sizes = BENCHMARKS[protocol.reader].sizes
    if protocol.reader == "vehicleid":
        count = trees.VEHICLE_COUNTS[protocol.params["test"]]
        return sizes[f"train_test_split/test_list_{count}.txt"]
    if protocol.reader in ("roxford5k", "rparis6k"):  # each image is its own class
        return sum(part.images for part in sizes.values()), sum(part.classes for part in sizes.values())
    parts = list(sizes.values())[1:]  # the first is for training
    return sum(part.images for part in parts), max(part.classes for part in parts)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_protocol_reads_embeds_and_measures_the_test_images_of_its_benchmark(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees.publish_small_sizes(monkeypatch)
    protocol = PROTOCOLS[name]
    trees.TREES[protocol.reader](tmp_path)
    manifest = protocol.manifest(tmp_path)
    images, classes = size_of_test(protocol)
    assert (len(manifest), len(manifest.classes)) == (images, classes)
    dataset = ImageDataset(manifest, Resize(8, 3), channels=3)
    report = protocol.evaluate(embed_pixels(dataset))
    assert report.protocol is not None
    assert report.protocol["checksum"] == protocol.checksum(manifest)
    queries = images - classes if protocol.seeds else int(manifest.is_query.sum())
    assert queries < images or not (protocol.seeds or protocol.roles)
    assert len(report.per_query["query"]) + report.num_lone_queries == queries * max(1, len(protocol.seeds))

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from aurank.data import TRANSFORMS, ArraySource, ImageDataset, build_manifest
from aurank.embedding.embed import Embedded, embed_pixels
from aurank.errors import UserError


def pixel_rows(*images: np.ndarray) -> np.ndarray:
    """The embeddings of grey images of 4 × 4 pixels."""
    paths = [str(number) for number in range(len(images))]
    source = ArraySource(dict(zip(paths, images, strict=True)))
    splits = ["test"] * len(paths)
    manifest = build_manifest("drawings", source, paths=paths, labels=["a"] * len(paths), splits=splits)
    return embed_pixels(ImageDataset(manifest, TRANSFORMS["resize"](4, 1), channels=1)).embeddings


def cosine(left: np.ndarray, right: np.ndarray) -> float:
    return float(left @ right / np.linalg.norm(left) / np.linalg.norm(right))


def drawing(*ink: int, paper: int = 255) -> np.ndarray:
    image = np.full(16, paper, dtype=np.uint8)
    image[list(ink)] = 255 - paper
    return image.reshape(4, 4)


def test_pixels_are_centred_so_that_paper_makes_no_two_drawings_alike() -> None:
    rows = pixel_rows(drawing(0, 1), drawing(14, 15), drawing(0, 1, paper=0))
    np.testing.assert_allclose(rows.mean(axis=1), 0, atol=1e-6)
    assert cosine(rows[0], rows[1]) == pytest.approx(-1 / 7)  # 0.5 without centring
    assert cosine(rows[0], rows[2]) == pytest.approx(-1)


def test_an_image_of_one_value_is_like_its_like_and_at_right_angles_to_others() -> None:
    rows = pixel_rows(drawing(), drawing(3), drawing(paper=77), drawing(2, 9))
    assert cosine(rows[0], rows[2]) == pytest.approx(1)
    for other in (rows[1], rows[3]):
        assert cosine(rows[0], other) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("kind", [bool, np.int64, np.uint8])
def test_flags_choose_queries_and_gallery_as_booleans_or_as_0_and_1(tmp_path: Path, kind: type) -> None:
    rows, labels = np.random.default_rng(0).normal(size=(8, 3)), np.arange(8) % 2
    query = np.arange(8) < 4
    flags = {"is_query": query.astype(kind), "is_gallery": (~query).astype(kind)}
    np.savez(tmp_path / "rows.npz", embeddings=rows, labels=labels, **flags)
    report = Embedded.load(tmp_path / "rows.npz").evaluate()
    assert (report.num_queries, report.num_gallery) == (4, 4)
    assert report.per_query["num_positives"].tolist() == [2] * 4


def test_super_categories_are_saved_and_measured(tmp_path: Path) -> None:
    rows, labels = np.random.default_rng(0).normal(size=(12, 3)), np.arange(12) // 2
    np.savez(tmp_path / "rows.npz", embeddings=rows, labels=labels, super_labels=labels // 3)
    embedded = Embedded.load(tmp_path / "rows.npz")
    whole = embedded.evaluate(metrics=["h_ap", "super:mauprc"]).metrics
    assert 0 < whole["super:mauprc"] < 1
    embedded.save(tmp_path / "again.npz")
    assert Embedded.load(tmp_path / "again.npz").evaluate(metrics=["h_ap", "super:mauprc"]).metrics == whole
    query = np.arange(12) % 2 == 0
    halves = dataclasses.replace(embedded, is_query=query, is_gallery=~query)
    assert halves.evaluate(metrics=["h_ap"]).num_queries == 6
    with pytest.raises(UserError, match="metric 'h_ap' is of super-categories"):
        dataclasses.replace(embedded, super_labels=None).evaluate(metrics=["h_ap"])

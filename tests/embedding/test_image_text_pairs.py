import dataclasses

import numpy as np
import pytest
import torch
from testing.refusals import refused
from torch import Tensor, nn

from aurank.data import TRANSFORMS, ArraySource, ImageDataset, Manifest, build_manifest
from aurank.data.captions import Tokeniser
from aurank.embedding.image_text_pairs import each_image_once, embed_pairs, groups_of, texts_of
from aurank.models.text_encoder import TextTower, TwoTower

PATHS = ["a", "b", "a", "c", "d", "d"]
TEXTS = ["a cat", "a cat", "asleep", "an owl", "a cat", "in a tree"]


class Mean(nn.Module):
    """The mean colours of an image, and how many images were asked for."""

    dim = 3

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        return nn.functional.normalize(images.mean(dim=(2, 3)), dim=1)


@pytest.fixture
def model() -> TwoTower:
    torch.manual_seed(0)
    return TwoTower(Mean(), TextTower(300, length=16, dim=3, layers=1, width=8, heads=2), Tokeniser([], length=16))


def pairs_manifest(labels: list[str] = TEXTS, groups: list[int] | None = None) -> Manifest:
    colours = np.arange(4)[:, None] * 40 + np.arange(3)
    images = {path: np.full((4, 4, 3), colour, np.uint8) for path, colour in zip("abcd", colours, strict=True)}
    rows = {"paths": PATHS, "labels": labels, "splits": ["test"] * 6, "groups": groups, "texts": TEXTS}
    return build_manifest("pairs", ArraySource(images), **rows)


def dataset(manifest: Manifest, **given: str) -> ImageDataset:
    return ImageDataset(manifest, TRANSFORMS["center"](image_size=4, channels=3), channels=3, **given)


def test_each_image_and_text_is_embedded_once_and_stands_in_every_pair(model):
    tokeniser = Tokeniser([], length=16)
    asked: list[str] = []

    def tokenise(texts: list[str]) -> Tensor:
        asked.extend(texts)
        return tokeniser.encode(texts)

    data = dataset(pairs_manifest())
    model.tokenise = tokenise
    found = embed_pairs(model.train(), data, batch=3)
    assert model.training
    assert isinstance(model.image, Mean)
    assert model.image.seen == 4
    assert asked == ["a cat", "asleep", "an owl", "in a tree"]
    batch = data.__getitems__(range(6))
    with torch.inference_mode():
        np.testing.assert_allclose(found.images, model.image(data.to_input(batch.image)), rtol=1e-6)
        np.testing.assert_allclose(found.texts, model.text(tokeniser.encode(TEXTS)), rtol=1e-5, atol=1e-6)
    report = found.evaluate(recall_at=(1,))
    assert (report.image_to_text.num_queries, report.text_to_image.num_queries) == (4, 4)
    assert found.evaluate(np.array([0, 3]), recall_at=(1,)).image_to_text.num_gallery == 2


def test_images_that_cannot_be_read_are_left_out_with_all_their_texts(model):
    manifest = pairs_manifest()
    images = {path: np.zeros((4, 4, 3), dtype=np.uint8) for path in "bcd"}
    data = dataset(dataclasses.replace(manifest, source=ArraySource(images)), on_error="skip")
    found = embed_pairs(model, data)
    assert found.rows.tolist() == [1, 3, 4, 5]
    assert found.labels.tolist() == manifest.labels[[1, 3, 4, 5]].tolist()
    assert found.evaluate(recall_at=(1,)).image_to_text.num_queries == 3


def test_test_rows_are_told_apart_by_what_training_has_seen():
    rows = {"paths": [*"012345"], "labels": ["cat", "owl", "cat", "cat", "dog", "owl"]}
    texts = ["a cat", "an owl", "a cat", "one cat", "a dog", "one owl"]
    manifest = build_manifest("groups", ArraySource({}), **rows, splits=["train"] * 2 + ["test"] * 4, texts=texts)
    groups = groups_of(manifest.split("train"), manifest.split("test"))
    expected = {"seen_texts": [0], "new_texts": [1, 3], "new_classes": [2]}
    assert {name: rows.tolist() for name, rows in groups.items()} == expected
    assert list(groups_of(manifest.split("train"), manifest.split("train"))) == ["seen_texts"]


def test_texts_equal_but_for_case_are_one_text(model):
    shouted = dataclasses.replace(pairs_manifest(), texts=("a cat", "A CAT", *TEXTS[2:]))
    found = embed_pairs(model, dataset(shouted))
    assert found.text_ids.tolist() == [0, 0, 1, 2, 0, 3]
    np.testing.assert_array_equal(found.texts[0], found.texts[1])
    groups = groups_of(shouted.select([0]), shouted.select([1, 2]))
    assert {name: rows.tolist() for name, rows in groups.items()} == {"seen_texts": [0], "new_classes": [1]}


@pytest.mark.parametrize(
    ("groups", "comparable"), [(None, True), ([-1] * 6, True), ([0, 0, 0, 1, 2, 2], False), ([0, 1, 0, 1, 2, 2], True)]
)
def test_images_are_compared_where_one_has_a_positive_of_another_group(model, groups, comparable):
    """Images a and b are of one class, c and d of another each."""
    manifest = pairs_manifest(["x", "x", "x", "y", "z", "z"], groups)
    found = embed_pairs(model, dataset(manifest)).images_alone(manifest)
    assert (found is not None) == comparable
    if found is not None:
        assert found.ids.tolist() == [0, 1, 3, 4]
        assert found.evaluate().metrics["mauprc"] > 0


def test_an_image_of_several_texts_is_taken_once_if_it_has_one_label():
    assert each_image_once(pairs_manifest(["x", "x", "x", "y", "z", "z"])).paths == ("a", "b", "c", "d")
    refused("pairs has images with several labels", each_image_once, pairs_manifest())
    plain = dataclasses.replace(pairs_manifest(), texts=None)
    assert each_image_once(plain) is plain
    refused("pairs has no texts: read a table with a column text", texts_of, plain)

"""Embedding a manifest's images: in order, without the unreadable, once each however often it is broken off."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from aurank.data import READERS, Manifest
from aurank.embedding.cache import EmbeddingCache
from aurank.embedding.embed import Embedded, embed
from aurank.errors import UserError
from aurank.models.image_model import ImageModel, ModelImages

COUNT = 12


def photos(root: Path) -> Manifest:
    """Image i of 12 has i in every pixel; three classes of four."""
    for row in range(COUNT):
        path = root / "photos" / f"{row // 4}" / f"{row:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (3, 2), (row, row, row)).save(path)
    return READERS["folder"](root, path="photos")


class Counting(nn.Module):
    """The mean pixel, and a one; counts the images it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def forward(self, images: Tensor) -> Tensor:
        means = images.mean(dim=(1, 2, 3))
        self.seen += means.tolist()
        return torch.stack([means, torch.ones_like(means)], dim=1)


def pixels(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float()


def images(root: Path, model: nn.Module, *, on_error: str = "raise") -> ModelImages:
    return ModelImages(photos(root), ImageModel("mine", model, pixels, "mine"), on_error=on_error)


def opened(root: Path, said: list[str] | None = None) -> EmbeddingCache:
    say = None if said is None else said.append
    return EmbeddingCache(root / "cache", weights="w", transform="t", data="d", about={}, say=say)


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_come_in_order_with_their_labels_and_paths(tmp_path: Path, workers: int) -> None:
    done: list[tuple[int, int]] = []
    embedded = embed(
        Counting(), images(tmp_path, Counting()), batch=5, workers=workers, progress=lambda *counts: done.append(counts)
    )
    assert embedded.embeddings[:, 0].tolist() == list(range(COUNT))
    assert embedded.embeddings.dtype == np.float32
    assert embedded.labels.tolist() == [row // 4 for row in range(COUNT)]
    assert embedded.paths[5] == "1/05.png"
    assert done == [(5, COUNT), (10, COUNT), (12, COUNT)]


def test_of_some_rows_no_other_image_is_embedded(tmp_path: Path) -> None:
    model = Counting()
    done: list[tuple[int, int]] = []
    wanted = np.array([9, 2, 5])
    for _ in range(2):
        embedded = embed(
            model,
            images(tmp_path, model),
            batch=2,
            rows=wanted,
            progress=lambda *counts: done.append(counts),
            cache=opened(tmp_path),
        )
        assert embedded.ids.tolist() == embedded.embeddings[:, 0].tolist() == [2, 5, 9]
    assert model.seen == [2, 5, 9]
    assert done == [(2, 3), (3, 3), (3, 3)]
    others = embed(model, images(tmp_path, model), rows=np.array([5, 0]), cache=opened(tmp_path))
    assert others.ids.tolist() == [0, 5]
    assert model.seen == [2, 5, 9, 0]


def test_a_damaged_piece_alone_is_embedded_again(tmp_path: Path) -> None:
    embed(Counting(), images(tmp_path, Counting()), batch=4, cache=opened(tmp_path))
    file = opened(tmp_path).folder / "0000000004.safetensors"
    content = bytearray(file.read_bytes())
    content[content.index(np.array([5.0, 1.0], np.float32).tobytes())] ^= 1
    file.write_bytes(content)
    model = Counting()
    again = embed(model, images(tmp_path, model), batch=3, cache=opened(tmp_path))
    assert model.seen == [4, 5, 6, 7]
    assert again.embeddings[:, 0].tolist() == list(range(COUNT))


def test_an_unreadable_image_is_left_out_and_tried_again_by_the_next_run(tmp_path: Path) -> None:
    model = Counting()
    data = images(tmp_path, model, on_error="skip")
    broken = tmp_path / "photos" / "1" / "05.png"
    whole = broken.read_bytes()
    broken.write_bytes(b"no image")
    embedded = embed(model, data, batch=4, cache=opened(tmp_path))
    assert embedded.ids.tolist() == [row for row in range(COUNT) if row != 5]
    assert data.skipped == ["1/05.png"]
    again = Counting()
    mine = ImageModel("mine", again, pixels, "mine")
    embed(again, ModelImages(data.manifest, mine, on_error="skip"), batch=4, cache=opened(tmp_path))
    assert again.seen == []
    broken.write_bytes(whole)
    embedded = embed(again, ModelImages(data.manifest, mine), batch=4, cache=opened(tmp_path))
    assert again.seen == [5]
    assert embedded.embeddings[:, 0].tolist() == list(range(COUNT))
    broken.write_bytes(b"no image")
    with pytest.raises(UserError, match=r"1/05.png.*cannot be decoded"):
        embed(Counting(), ModelImages(data.manifest, mine), batch=4)


def test_nothing_readable_is_an_error(tmp_path: Path) -> None:
    data = images(tmp_path, Counting(), on_error="skip")
    for path in (tmp_path / "photos").rglob("*.png"):
        path.write_bytes(b"no image")
    with pytest.raises(UserError, match="no image of photos could be read"):
        embed(Counting(), data)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (lambda images: (images, images), "returned tuple for 12 images"),
        (lambda images: images, r"returned \(12, 3, 2, 3\) for 12 images; expected a tensor \[12, dim\]"),
        (lambda images: images.flatten(1)[1:], r"returned \(11, 18\)"),
    ],
)
def test_a_model_that_gives_no_matrix_is_told(tmp_path: Path, output: object, message: str) -> None:
    class Odd(nn.Module):
        def forward(self, images: Tensor) -> object:
            return output(images)  # type: ignore[operator]

    with pytest.raises(UserError, match=message):
        embed(Odd(), images(tmp_path, Odd()))


def test_a_transform_whose_images_differ_in_shape_is_told(tmp_path: Path) -> None:
    manifest = photos(tmp_path)
    Image.new("RGB", (5, 5)).save(tmp_path / "photos" / "0" / "00.png")
    with pytest.raises(UserError, match=r"shape \(3, 2, 3\), \(3, 5, 5\); expected .* the same for every image"):
        embed(nn.Flatten(), ModelImages(manifest, ImageModel("mine", nn.Flatten(), pixels, "mine")))


ROWS = np.eye(4, dtype=np.float32)
LABELS = np.array([0, 0, 1, 1])


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    half = np.array([True, False, True, False])
    paths = np.array(["a", "b", "c", "d"])
    embedded = Embedded(ROWS, LABELS, np.arange(4), paths, half, ~half, np.full(4, -1))
    embedded.save(tmp_path / "rows.npz")
    again = Embedded.load(tmp_path / "rows.npz")
    for name in Embedded.__dataclass_fields__:
        assert np.array_equal(getattr(embedded, name), getattr(again, name)), name


def test_a_large_array_is_mapped_and_not_read(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    np.save(tmp_path / "labels.npy", LABELS)
    embedded = Embedded.load(tmp_path / "rows.npy", tmp_path / "labels.npy")
    assert isinstance(embedded.embeddings, np.memmap)
    assert embedded.labels.tolist() == LABELS.tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.array([{}] * 4, object)}, "pickled objects"),
        ({"embeddings": None}, "holds no array 'embeddings', only labels"),
        ({"labels": None}, r"holds no array 'labels'.*--labels FILE.npy"),
        ({"labels": LABELS[:3]}, r"labels has shape \(3,\)"),
        ({"labels": np.array(1)}, r"labels has shape \(\)"),
        ({"embeddings": ROWS[0]}, r"embeddings has shape \(4,\)"),
        ({"embeddings": np.float32(1)}, r"embeddings has shape \(\)"),
        ({"ids": np.int64(3)}, r"ids has shape \(\)"),
        ({"ids": np.array([4, 7, 4, 1])}, r"ids name an item twice, .*4"),
        ({"paths": LABELS}, "paths has shape"),
        ({"classes": np.array(["a"])}, "classes "),
        ({"is_query": LABELS + 1}, "is_query must hold True"),
        ({"is_gallery": np.ones(4)}, "is_gallery has shape"),
        ({"is_querry": LABELS}, "which means nothing here; did you mean 'is_query'"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    arrays = {"embeddings": ROWS, "labels": LABELS, **change}
    np.savez(tmp_path / "rows.npz", **{name: values for name, values in arrays.items() if values is not None})
    with pytest.raises(UserError, match=message) as caught:
        Embedded.load(tmp_path / "rows.npz")
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "cut.npy", ROWS)
    np.savez(tmp_path / "whole.npz", embeddings=ROWS, labels=LABELS)
    whole = (tmp_path / "whole.npz").read_bytes()
    flipped = bytearray(whole)
    flipped[whole.index(ROWS.tobytes())] ^= 1
    contents = {"text.npy": b"no array", "short.npz": whole[: len(whole) // 2], "flipped.npz": flipped, "no.npz": b""}
    contents["cut.npy"] = (tmp_path / "cut.npy").read_bytes()[:-8]
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=rf"{name}.*(cannot be read as plain arrays)"):
            Embedded.load(tmp_path / name)
    with pytest.raises(UserError, match=r"none\.npz"):
        Embedded.load(tmp_path / "none.npz")
    np.savez(tmp_path / "labels.npz", names=np.arange(4), classes=LABELS)
    np.save(tmp_path / "rows.npy", ROWS)
    with pytest.raises(UserError, match="holds names, classes; expected one array, or 'labels'"):
        Embedded.load(tmp_path / "rows.npy", tmp_path / "labels.npz")
    with pytest.raises(UserError, match=r"holds labels of its own: leave out --labels"):
        Embedded.load(tmp_path / "whole.npz", tmp_path / "labels.npz")
    np.savez(tmp_path / "rows.npz", embeddings=ROWS, labels=LABELS, is_query=np.zeros(4, dtype=bool))
    with pytest.raises(UserError, match="none of the 4 images is a query"):
        Embedded.load(tmp_path / "rows.npz").evaluate()


def test_a_camera_of_a_table_hides_the_querys_own_class_under_it(tmp_path: Path) -> None:
    manifest = photos(tmp_path)
    lines = [
        "path,label,split,group",
        *(f"{path},{row // 4},test,{row % 2}" for row, path in enumerate(manifest.paths)),
    ]
    (tmp_path / "photos" / "table.csv").write_text("\n".join(lines))
    table = READERS["table"](tmp_path / "photos", file="table.csv")
    model = Counting()
    embedded = embed(model, ModelImages(table, ImageModel("mine", model, pixels, "mine"), on_error="raise"), batch=5)
    embedded.save(tmp_path / "rows.npz")
    for given in (embedded, Embedded.load(tmp_path / "rows.npz")):
        report = given.evaluate()
        assert report.per_query["num_positives"].tolist() == [2] * COUNT  # of three, one has the query's camera
        assert report.per_query["num_negatives"].tolist() == [8] * COUNT

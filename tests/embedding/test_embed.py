"""Embedding a manifest's images: in order, without the unreadable, once each by a cache however often it ends."""

import itertools
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from testing.refusals import refused
from torch import Tensor, nn

from aurank.config import Config
from aurank.data import READERS, TRANSFORMS, ArraySource, ImageDataset, Manifest, build_manifest
from aurank.embedding.build import describe_model, with_preprocessing
from aurank.embedding.cache import EmbeddingCache, Piece, data_sha256, default_cache, weights_sha256
from aurank.embedding.embed import embed, embed_pixels
from aurank.embedding.embedded import Embedded
from aurank.errors import UserError
from aurank.evaluation import evaluate
from aurank.files import replacing
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


def opened(root: Path, said: list[str] | None = None, **changes: str) -> EmbeddingCache:
    keys = {"weights": "w", "transform": "t", "data": "d", **changes}
    return EmbeddingCache(root / "cache", **keys, about={"model": "m"}, say=None if said is None else said.append)


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_come_in_order_with_their_labels_and_paths(tmp_path, workers):
    model, done = Counting(), list[tuple[int, int]]()
    how: dict[str, Any] = {"workers": workers, "progress": lambda *counts: done.append(counts)}
    embedded = embed(model, images(tmp_path, model), batch=5, **how)
    assert embedded.embeddings[:, 0].tolist() == list(range(COUNT))
    assert embedded.embeddings.dtype == np.float32
    assert embedded.labels.tolist() == [row // 4 for row in range(COUNT)]
    assert embedded.paths[5] == "1/05.png"
    assert done == [(5, COUNT), (10, COUNT), (12, COUNT)]


def test_of_some_rows_no_other_image_is_embedded(tmp_path):
    model, done = Counting(), list[tuple[int, int]]()
    given: dict[str, Any] = {"rows": np.array([9, 2, 5]), "progress": lambda *counts: done.append(counts)}
    for _ in range(2):
        embedded = embed(model, images(tmp_path, model), batch=2, **given, cache=opened(tmp_path))
        assert embedded.ids.tolist() == embedded.embeddings[:, 0].tolist() == [2, 5, 9]
    assert model.seen == [2, 5, 9]
    assert done == [(2, 3), (3, 3), (3, 3)]
    others = embed(model, images(tmp_path, model), rows=np.array([5, 0]), cache=opened(tmp_path))
    assert others.ids.tolist() == [0, 5]
    assert model.seen == [2, 5, 9, 0]


def test_a_damaged_piece_alone_is_embedded_again(tmp_path):
    embed(Counting(), images(tmp_path, Counting()), batch=4, cache=opened(tmp_path))
    file = opened(tmp_path).folder / "0000000004.safetensors"
    content = bytearray(file.read_bytes())
    content[content.index(np.array([5.0, 1.0], np.float32).tobytes())] ^= 1
    file.write_bytes(content)
    model = Counting()
    again = embed(model, images(tmp_path, model), batch=3, cache=opened(tmp_path))
    assert model.seen == [4, 5, 6, 7]
    assert again.embeddings[:, 0].tolist() == list(range(COUNT))


def test_an_unreadable_image_is_left_out_and_tried_again_by_the_next_run(tmp_path):
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
    refused(r"1/05.png.*cannot be decoded", embed, Counting(), ModelImages(data.manifest, mine), batch=4)


ROWS = np.eye(4, dtype=np.float32)
LABELS = np.array([0, 0, 1, 1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embeddings": None}, "holds no array 'embeddings', only labels"),
        ({"labels": None}, r"holds no array 'labels'.*--labels FILE.npy"),
        ({"labels": LABELS[:3]}, r"labels has shape \(3,\)"),
        ({"embeddings": ROWS[0]}, r"embeddings has shape \(4,\)"),
        ({"ids": np.array([4, 7, 4, 1])}, r"ids name an item twice, .*4"),
        ({"classes": np.array(["a"])}, "classes "),
        ({"groups": LABELS, "group_names": np.array(["a"])}, "group_names must be the names of the groups 0, 1, …"),
        ({"is_query": LABELS + 1}, "is_query must hold True"),
        ({"is_querry": LABELS}, "which means nothing here; did you mean 'is_query'"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, change, message):
    arrays = {"embeddings": ROWS, "labels": LABELS, **change}
    np.savez(tmp_path / "rows.npz", **{name: values for name, values in arrays.items() if values is not None})
    refused(message, Embedded.load, tmp_path / "rows.npz")


def test_files_that_cannot_be_read_are_refused(tmp_path):
    np.save(tmp_path / "cut.npy", ROWS)
    np.savez(tmp_path / "whole.npz", embeddings=ROWS, labels=LABELS)
    whole = (tmp_path / "whole.npz").read_bytes()
    flipped = bytearray(whole)
    flipped[whole.index(ROWS.tobytes())] ^= 1
    contents = {"text.npy": b"no array", "short.npz": whole[: len(whole) // 2], "flipped.npz": flipped, "no.npz": b""}
    contents["cut.npy"] = (tmp_path / "cut.npy").read_bytes()[:-8]
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        refused(rf"{name}.*(cannot be read as plain arrays)", Embedded.load, tmp_path / name)
    refused(r"none\.npz", Embedded.load, tmp_path / "none.npz")
    np.savez(tmp_path / "labels.npz", names=np.arange(4), classes=LABELS)
    np.save(tmp_path / "rows.npy", ROWS)
    np.save(tmp_path / "labels.npy", LABELS)
    assert isinstance(Embedded.load(tmp_path / "rows.npy", tmp_path / "labels.npy").embeddings, np.memmap)
    with pytest.raises(UserError, match="holds names, classes; expected one array, or 'labels'"):
        Embedded.load(tmp_path / "rows.npy", tmp_path / "labels.npz")
    np.savez(tmp_path / "rows.npz", embeddings=ROWS, labels=LABELS, is_query=np.zeros(4, dtype=bool))
    refused(r"the query embeddings have no rows \(shape \(0,", lambda: Embedded.load(tmp_path / "rows.npz").evaluate())


def test_a_camera_of_a_table_hides_the_querys_own_class_under_it(tmp_path):
    manifest = photos(tmp_path)
    lines = [f"{path},{row // 4},test,{('west', 'east')[row % 2]}" for row, path in enumerate(manifest.paths)]
    (tmp_path / "photos" / "table.csv").write_text("\n".join(["path,label,split,group", *lines]))
    table = READERS["table"](tmp_path / "photos", file="table.csv")
    model = Counting()
    embedded = embed(model, ModelImages(table, ImageModel("mine", model, pixels, "mine"), on_error="raise"), batch=5)
    embedded.save(tmp_path / "rows.npz")
    for given in (embedded, Embedded.load(tmp_path / "rows.npz")):
        report = given.evaluate()
        assert report.per_query["num_positives"].tolist() == [2] * COUNT  # of three, one has the query's camera
        assert report.per_query["num_negatives"].tolist() == [8] * COUNT
        assert report.per_query["group"].tolist() == ["west", "east"] * (COUNT // 2)


def test_cameras_are_measured_by_pairs(tmp_path):
    chance = np.random.default_rng(0)
    rows, labels, groups = chance.normal(size=(40, 4)), np.arange(40) // 8, chance.integers(-1, 3, 40)
    names = np.array(["door", "car park", "c3"])
    np.savez(tmp_path / "rows.npz", embeddings=rows, labels=labels, groups=np.append(names, "")[groups])
    pairs = Embedded.load(tmp_path / "rows.npz").group_pairs({})
    assert {(pair["query"], pair["gallery"]) for pair in pairs} == set(itertools.permutations(names.tolist(), 2))
    for pair in pairs:
        one, other = (groups == names.tolist().index(pair[side]) for side in ("query", "gallery"))
        report = evaluate(rows[one], labels[one], rows[other], labels[other])
        assert pair["metrics"] == {name: report.metrics[name] for name in ("mauprc", "recall@1")}
        assert pair["num_queries"] == report.num_queries - report.num_lone_queries
    assert Embedded.load(tmp_path / "rows.npz").select(groups < 1).group_pairs({}) is None


def drawing(*ink: int, paper: int = 255) -> np.ndarray:
    image = np.full(16, paper, dtype=np.uint8)
    image[list(ink)] = 255 - paper
    return image.reshape(4, 4)


def test_pixels_are_centred_so_that_paper_makes_no_two_drawings_alike():
    images = {"a": drawing(0, 1), "b": drawing(14, 15), "c": drawing(0, 1, paper=0)}
    columns = {"paths": [*images], "labels": ["a"] * 3, "splits": ["test"] * 3}
    manifest = build_manifest("drawings", ArraySource(images), **columns)
    rows = embed_pixels(ImageDataset(manifest, TRANSFORMS["resize"](4, 1), channels=1)).embeddings
    np.testing.assert_allclose(rows.mean(axis=1), 0, atol=1e-6)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert unit[0] @ unit[1] == pytest.approx(-1 / 7)  # 0.5 without centring
    assert unit[0] @ unit[2] == pytest.approx(-1)


def test_the_usual_positives_of_a_listed_set_are_those_listed():
    rows, labels = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32), np.repeat(np.arange(3), 4)
    is_query, everywhere = np.arange(12) % 4 == 0, np.full(12, -1)
    sides = {"paths": np.full(12, ""), "is_query": is_query, "is_gallery": ~is_query, "groups": everywhere}
    embedded = Embedded(rows, labels, np.arange(12), **sides, positives=np.array([[0, 5], [4, 9], [8, 1]]))
    assert embedded.evaluate(positives=None).mauprc == embedded.evaluate().mauprc


# -- The cache: what is whole is read, what is not is made again, and what differs is another folder


def piece(first: int, last: int) -> Piece:
    rows = np.arange(first, last)
    return rows, np.random.default_rng(first).standard_normal((len(rows), 3)).astype(np.float32)


def same(left: list[Piece], right: list[Piece]) -> bool:
    return len(left) == len(right) and all(map(np.array_equal, itertools.chain(*left), itertools.chain(*right)))


def test_pieces_are_read_again_bit_for_bit_and_counted(tmp_path):
    written = [piece(0, 4), piece(4, 7)]
    for each in written:
        opened(tmp_path).write(each)
    said: list[str] = []
    cache = opened(tmp_path, said)
    assert same(cache.read(10), written)
    assert said == [f"read 7 of 10 embeddings from the cache {cache.folder}"]
    assert json.loads((cache.folder / "about.json").read_text(encoding="utf-8"))["model"] == "m"
    said.clear()
    for key in ("weights", "transform", "data"):
        assert opened(tmp_path, said, **{key: "other"}).read(10) == []
    assert said == []
    cache.write(piece(5, 9))  # as another run cuts them
    assert np.concatenate([rows for rows, _ in cache.read(10)]).tolist() == list(range(9))


def test_what_killed_processes_left_in_the_folder_goes_when_it_is_opened(tmp_path):
    folder = opened(tmp_path).folder
    left = folder / f".0000000004.safetensors.{0:032x}.part"
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    with replacing(folder / "0000000000.safetensors") as file:  # another process writes meanwhile
        opened(tmp_path)
        assert sorted(path.name for path in folder.iterdir()) == [Path(file.name).name, "about.json"]


def test_weights_are_told_apart_by_name_shape_type_and_every_value():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    first = weights_sha256(model)
    twin = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    twin.load_state_dict(model.state_dict())
    assert weights_sha256(twin) == first
    seen = {first}
    with torch.no_grad():
        twin[0].bias[2] = np.nextafter(twin[0].bias[2].item(), np.inf, dtype=np.float32).item()
    seen.add(weights_sha256(twin))
    twin[1].num_batches_tracked += 1
    seen.add(weights_sha256(twin))
    seen.add(weights_sha256(twin.to(torch.bfloat16)))
    seen.add(weights_sha256(nn.Sequential(model[0], nn.Identity(), model[1])))
    assert len(seen) == 5


def test_a_changed_byte_or_length_never_changes_a_number(tmp_path):
    cache, written = opened(tmp_path), piece(0, 4)
    cache.write(written)
    (file,) = cache.folder.glob("*.safetensors")
    whole, refused = file.read_bytes(), 0
    for place in range(0, len(whole), 3):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        found = cache.read(10)
        refused += not found
        assert not found or same(found, [written]), place
    assert refused > len(whole) // 6  # every byte of the numbers; the rest is padding and dates
    for length in (0, len(whole) - 1):
        file.write_bytes(whole[:length])
        assert opened(tmp_path).read(10) == []
        assert not file.exists()


def test_what_decides_an_embedding_is_in_the_keys_and_nothing_else_is(tmp_path, monkeypatch):
    def described(**model: object) -> str:
        model = {"backbone": "test_resnet", "pretrained": False, **model}
        given = {"data": {"name": "digits"}, "loss": {"name": "soprc"}, "optim": {"lr": 1}, "train": {"steps": 1}}
        return describe_model(with_preprocessing(Config(model=model, **given)))

    assert described(init_from="a.pt", freeze="backbone", freeze_batch_norm=True, dim=512) == described()
    assert len({described(pooling="gem"), described(discard_head=True), described(params={"bn_eps": 0.1})}) == 3
    digests = []
    for name, shade in (("one", 1), ("two", 1), ("three", 2)):  # a zip is known by what it holds, not by its place
        (tmp_path / name).mkdir()
        with zipfile.ZipFile(tmp_path / name / "photos.zip", "w") as archive:
            archive.writestr("a/0.pgm", b"P5 1 1 255 " + bytes([shade]))
            archive.writestr("b/0.pgm", b"P5 1 1 255 " + bytes([7]))
        digests.append(data_sha256(READERS["folder"](tmp_path / name, path="photos.zip")))
    assert digests[0] == digests[1] != digests[2]
    with zipfile.ZipFile(tmp_path / "one" / "photos.zip") as archive:
        archive.extractall(tmp_path / "folder")
    manifest = READERS["folder"](tmp_path / "folder")
    before, part = data_sha256(manifest), data_sha256(manifest.select([0]))
    os.utime(tmp_path / "folder/a/0.pgm", ns=(1, 1))
    changed = data_sha256(manifest)
    (tmp_path / "folder/a/0.pgm").unlink()
    assert len({before, part, changed, data_sha256(manifest)}) == 4
    monkeypatch.setenv("AURANK_CACHE", str(tmp_path / "mine"))
    assert default_cache() == tmp_path / "mine"
    monkeypatch.delenv("AURANK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert default_cache() == tmp_path / "caches" / "aurank" / "embeddings"

"""The embedding cache: what is whole is read, what is not is made again, and what differs is another folder."""

import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from aurank.config import Config
from aurank.data import READERS
from aurank.embedding.build import describe_model, with_preprocessing
from aurank.embedding.cache import EmbeddingCache, Piece, data_sha256, default_cache, weights_sha256
from aurank.files import replacing

COUNT, DIM = 10, 3


def piece(first: int, last: int) -> Piece:
    rows = np.arange(first, last)
    return rows, np.random.default_rng(first).standard_normal((len(rows), DIM)).astype(np.float32)


def opened(root: Path, said: list[str] | None = None, **changes: str) -> EmbeddingCache:
    keys = {"weights": "w", "transform": "t", "data": "d", **changes}
    return EmbeddingCache(root, **keys, about={"model": "m"}, say=None if said is None else said.append)


def same(left: list[Piece], right: list[Piece]) -> bool:
    return len(left) == len(right) and all(
        np.array_equal(a[0], b[0]) and np.array_equal(a[1], b[1]) for a, b in zip(left, right, strict=True)
    )


def test_pieces_are_read_again_bit_for_bit_and_counted(tmp_path: Path) -> None:
    written = [piece(0, 4), piece(4, 7)]
    for each in written:
        opened(tmp_path).write(each)
    said: list[str] = []
    cache = opened(tmp_path, said)
    assert same(cache.read(COUNT), written)
    assert said == [f"read 7 of 10 embeddings from the cache {cache.folder}"]
    assert json.loads((cache.folder / "about.json").read_text(encoding="utf-8"))["model"] == "m"
    said.clear()
    for key in ("weights", "transform", "data"):
        assert opened(tmp_path, said, **{key: "other"}).read(COUNT) == []
    assert said == []
    cache.write(piece(5, 9))  # as another run cuts them
    assert np.concatenate([rows for rows, _ in cache.read(COUNT)]).tolist() == list(range(9))


def test_what_killed_processes_left_in_the_folder_goes_when_it_is_opened(tmp_path: Path) -> None:
    folder = opened(tmp_path).folder
    left = folder / f".0000000004.safetensors.{0:032x}.part"
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    with replacing(folder / "0000000000.safetensors") as file:  # another process writes meanwhile
        opened(tmp_path)
        assert sorted(path.name for path in folder.iterdir()) == [Path(file.name).name, "about.json"]


def test_weights_are_told_apart_by_name_shape_type_and_every_value() -> None:
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


def test_a_changed_byte_or_length_never_changes_a_number(tmp_path: Path) -> None:
    cache, written = opened(tmp_path), piece(0, 4)
    cache.write(written)
    (file,) = cache.folder.glob("*.safetensors")
    whole, refused = file.read_bytes(), 0
    for place in range(0, len(whole), 3):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        found = cache.read(COUNT)
        refused += not found
        assert not found or same(found, [written]), place
    assert refused > len(whole) // 6  # every byte of the numbers; the rest is padding and dates
    for length in (0, len(whole) - 1):
        file.write_bytes(whole[:length])
        assert opened(tmp_path).read(COUNT) == []
        assert not file.exists()


def test_what_decides_an_embedding_is_in_the_keys_and_nothing_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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

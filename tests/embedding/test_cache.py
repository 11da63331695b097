"""The embedding cache: what is whole is read, what is not is made again, and what differs is another folder."""

import json
import os
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from aurank import files
from aurank.config import Config
from aurank.data import READERS, Manifest
from aurank.embedding.cache import (
    CachedSet,
    EmbeddingCache,
    Piece,
    cached_sets,
    data_sha256,
    default_cache,
    prune,
    weights_sha256,
)
from aurank.embedding.from_config import describe_model, with_preprocessing
from aurank.errors import AurankError, UserError
from aurank.files import write_bundle

COUNT, DIM = 10, 3


def piece(first: int, last: int) -> Piece:
    rows = np.arange(first, last)
    return Piece(rows, np.random.default_rng(first).standard_normal((len(rows), DIM)).astype(np.float32))


def opened(root: Path, said: list[str] | None = None, **changes: str) -> EmbeddingCache:
    keys = {"weights": "w", "transform": "t", "data": "d", **changes}
    return EmbeddingCache(root, **keys, about={"model": "m"}, say=None if said is None else said.append)


def same(left: list[Piece], right: list[Piece]) -> bool:
    return len(left) == len(right) and all(
        np.array_equal(a.rows, b.rows) and np.array_equal(a.embeddings, b.embeddings)
        for a, b in zip(left, right, strict=True)
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
    write_bundle(cache.folder / "0000000008.safetensors", {"rows": np.array([0, 1])}, "a piece of a cache")
    assert np.concatenate([found.rows for found in cache.read(COUNT)]).tolist() == list(range(9))


def test_a_changed_byte_or_length_never_changes_a_number(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    written = piece(0, 4)
    cache.write(written)
    (file,) = cache.folder.glob("*.safetensors")
    whole = file.read_bytes()
    refused = 0
    for place in range(0, len(whole), 3):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        found = cache.read(COUNT)
        refused += not found
        assert not found or same(found, [written]), place
    assert refused > len(whole) // 6  # every byte of the numbers; the rest is padding and dates
    said: list[str] = []
    for length in (0, 1, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        assert opened(tmp_path, said).read(COUNT) == []
        assert not file.exists()
    file.mkdir()
    assert opened(tmp_path, said).read(COUNT) == []
    assert not file.exists()
    assert all(line.endswith("; removed 1 damaged piece") for line in said)
    assert len(said) == 5


def test_a_folder_that_cannot_be_written_is_told_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"the embedding cache: cannot save .*Not a directory.*--cache.*--no-cache"):
        opened(tmp_path / "file")
    cache = opened(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(AurankError, match=r"the embedding cache: .*No space left on device.*same command again"):
        cache.write(piece(0, 4))
    assert list(cache.folder.glob("*.safetensors")) == []
    assert [path.name for path in cache.folder.iterdir()] == ["about.json"]


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


def folder_manifest(root: Path) -> Manifest:
    for label in "ab":
        for number in range(2):
            path = root / "photos" / label / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                Image.new("L", (2, 2), number).save(path)
    return READERS["folder"](root, path="photos")


def _config(**model: object) -> Config:
    model = {"backbone": "test_resnet", "pretrained": False, **model}
    config = Config(data={"name": "digits"}, model=model, loss={"name": "soprc"}, optim={"lr": 1}, train={"steps": 1})
    return with_preprocessing(config)


def test_a_model_is_described_by_what_decides_an_embedding_alone() -> None:
    plain = _config()
    for key in ({"init_from": "a.pt"}, {"freeze": "backbone"}, {"freeze_batch_norm": True}, {"dim": 512}):
        assert describe_model(_config(**key)) == describe_model(plain)
    for changed in ({"pooling": "gem"}, {"discard_head": True}, {"params": {"bn_eps": 0.1}}):
        assert describe_model(_config(**changed)) != describe_model(plain)


def test_images_are_told_apart_by_their_files(tmp_path: Path) -> None:
    manifest = folder_manifest(tmp_path)
    first = data_sha256(manifest)
    assert data_sha256(folder_manifest(tmp_path)) == first
    assert data_sha256(manifest.select([0, 1, 2])) != first
    file = tmp_path / "photos" / "a" / "0.png"
    os.utime(file, ns=(1, 1))
    assert data_sha256(manifest) != first
    file.unlink()
    assert data_sha256(manifest) != first


def test_a_zip_is_known_by_its_contents_and_not_by_its_place(tmp_path: Path) -> None:
    manifests = []
    for name, shade in (("one", 1), ("two", 1), ("three", 2)):
        (tmp_path / name).mkdir()
        with zipfile.ZipFile(tmp_path / name / "photos.zip", "w") as archive:
            archive.writestr("a/0.pgm", b"P5 1 1 255 " + bytes([shade]))
            archive.writestr("b/0.pgm", b"P5 1 1 255 " + bytes([7]))
        manifests.append(READERS["folder"](tmp_path / name, path="photos.zip"))
    one, two, three = map(data_sha256, manifests)
    assert one == two != three


def test_the_default_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AURANK_CACHE", str(tmp_path / "mine"))
    assert default_cache() == tmp_path / "mine"
    monkeypatch.delenv("AURANK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert default_cache() == tmp_path / "caches" / "aurank" / "embeddings"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache() == tmp_path / ".cache" / "aurank" / "embeddings"


def filled(root: Path, **ages: float) -> dict[str, EmbeddingCache]:
    """A set of two pieces for each name, last used so many seconds ago."""
    found = {}
    for name, age in ages.items():
        found[name] = opened(root, data=name)
        for part in (piece(0, 4), piece(4, 7)):
            found[name].write(part)
        for path in found[name].folder.iterdir():
            os.utime(path, (path.stat().st_atime, time.time() - age))
    return found


def size_of(cache: EmbeddingCache) -> int:
    return sum(path.stat().st_size for path in cache.folder.iterdir())


def test_the_least_recently_used_sets_are_pruned_until_the_rest_is_small_enough(tmp_path: Path) -> None:
    caches = filled(tmp_path, old=300, mid=200, new=100)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "about.json").write_text("not the cache's")
    opened(tmp_path, data="old")  # used again
    told: list[CachedSet] = []
    room = size_of(caches["old"]) + size_of(caches["new"])
    assert len(prune(tmp_path, room, removed=told.append, dry_run=True)) == 2
    assert all(cache.folder.exists() for cache in caches.values())
    kept = prune(tmp_path, room, removed=told.append)
    assert [one.folder for one in told] == [caches["mid"].folder] * 2
    assert told[0].num_bytes == size_of(caches["old"])
    assert [one.folder for one in kept] == [caches["new"].folder, caches["old"].folder]
    assert prune(tmp_path, 0, removed=told.append) == []
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def test_a_run_goes_on_while_its_set_is_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    cache = opened(tmp_path, said)
    cache.write(piece(0, 4))
    prune(tmp_path, 0, removed=lambda _: None)
    cache.write(piece(4, 7))  # the folder is gone
    taken, calls = files._bytes_of, []

    def pruned(tensor: torch.Tensor) -> memoryview:
        if sys._getframe(1).f_code.co_name == "write_bundle":
            calls.append(prune(tmp_path, 0, removed=lambda _: None) if not calls else [])
        return taken(tensor)

    monkeypatch.setattr(files, "_bytes_of", pruned)
    cache.write(piece(7, 10))  # it goes while the piece is written
    assert len(calls) >= 2
    monkeypatch.undo()
    assert same(opened(tmp_path, said).read(COUNT), [piece(7, 10)])


def test_a_prune_that_was_killed_is_finished_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path, old=1)
    monkeypatch.setattr("aurank.embedding.cache.shutil.rmtree", lambda *_, **__: None)
    prune(tmp_path, 0, removed=lambda _: None)
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.undo()
    assert cached_sets(tmp_path) == []
    prune(tmp_path, 10**9, removed=lambda _: None)
    assert list(tmp_path.iterdir()) == []

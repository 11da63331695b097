"""An index finds what brute force finds, keeps its file whole, and says in one line what it cannot do."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import faiss
import numpy as np
import pytest
from oracles.brute_force import all_scores

from aurank.errors import AurankError, UserError
from aurank.evaluation import Index, neighbours
from aurank.evaluation.index import neighbours as module

KINDS = ["Flat", "HNSW8", "IVF4,Flat; nprobe=2", "IVF4,PQ4x4", "PCA4,IVF4,PQ4x4; nprobe=4"]
on_gpu = pytest.mark.skipif(faiss.get_num_gpus() == 0, reason="faiss sees no GPU")


def rows(seed: int, count: int = 200, dim: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)


@pytest.mark.parametrize("distance", ["cosine", "dot", "euclidean"])
def test_a_flat_index_finds_what_brute_force_finds(distance: str) -> None:
    gallery, queries = rows(0), rows(1, 30)
    expected = all_scores(queries, gallery, distance)
    found = Index.build(gallery, distance=distance, device="cpu").search(queries, 7)
    order = np.argsort(-expected, axis=1)[:, :7]
    assert found.row.tolist() == order.tolist()
    assert found.similarity == pytest.approx(np.take_along_axis(expected, order, axis=1), rel=1e-5, abs=1e-5)
    assert found.count.tolist() == [7] * 30


def test_blocks_change_nothing_and_progress_counts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gallery = rows(0)
    whole = Index.build(gallery, device="cpu").search(gallery, 5)
    mapped = np.memmap(tmp_path / "rows", dtype=np.float32, mode="w+", shape=gallery.shape)
    mapped[:] = gallery
    monkeypatch.setattr(module, "BLOCK", 48 * 8)
    added: list[tuple[int, int]] = []
    searched: list[tuple[int, int]] = []
    pieces = Index.build(mapped, device="cpu", progress=lambda *done: added.append(done)).search(
        mapped, 5, progress=lambda *done: searched.append(done)
    )
    assert added == searched == [(48, 200), (96, 200), (144, 200), (192, 200), (200, 200)]
    assert pieces.row.tolist() == whole.row.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_more_neighbours_than_rows_are_fewer_and_never_minus_one(kind: str) -> None:
    gallery = rows(0, 50)
    built = Index.build(gallery, kind, device="cpu")
    found = built.search(gallery[:20], 70)
    assert found.row.shape == found.similarity.shape == (20, 50)
    assert ((found.row >= 0) & (found.row <= len(built))).all()
    listed = np.arange(50) < found.count[:, None]
    assert ((found.row < len(built)) == listed).all()
    assert (np.isneginf(found.similarity) == ~listed).all()
    if kind == "Flat":
        assert listed.all()
    if kind.startswith("IVF"):
        assert not listed.all()


def test_the_own_row_is_left_out_by_number_so_that_duplicates_stay() -> None:
    gallery = np.repeat(rows(0, 5), 8, axis=0)  # eight equal rows each
    for k in (3, 7):
        found = neighbours(gallery, k, device="cpu")
        assert found.row.shape == (40, k)
        for row, near in enumerate(found.row.tolist()):
            assert row not in near
            assert len(set(near)) == k
            assert {other // 8 for other in near} == {row // 8}
    with_self = neighbours(rows(0), 1, exclude_self=False, device="cpu")
    assert with_self.row[:, 0].tolist() == list(range(200))


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])  # faiss makes tables for an IVF-PQ of the latter
@pytest.mark.parametrize("kind", [*KINDS, "IVF4,PQ8x4", "IVF4,Flat"])
def test_a_saved_or_memory_mapped_index_finds_the_same(kind: str, distance: str, tmp_path: Path) -> None:
    gallery = rows(0)
    built = Index.build(gallery, kind, distance=distance, device="cpu")
    built.save(tmp_path / "deep" / "index")
    whole, mapped = (Index.load(tmp_path / "deep" / "index", memory_map=at, device="cpu") for at in (False, True))
    for again in (whole, mapped):
        assert (again.factory, again.distance, again.dim, len(again)) == (kind, distance, 8, 200)
        for name in ("row", "similarity", "count"):
            assert (getattr(again.search(gallery, 9), name) == getattr(built.search(gallery, 9), name)).all()
    whole.add(rows(1, 10))
    assert len(whole) == 210
    with pytest.raises(UserError, match="memory-mapped: load it without memory_map"):
        mapped.add(gallery)


def saved(folder: Path, factory: str = "Flat") -> tuple[Path, Path]:
    """Save an index of 20 rows; return faiss's file and its description."""
    Index.build(rows(0, 20), factory, device="cpu").save(folder / "index")
    return folder / "index", folder / "index.json"


@pytest.mark.parametrize("which", [0, 1], ids=["faiss", "json"])
def test_every_damage_to_a_file_is_refused(tmp_path: Path, which: int) -> None:
    path = saved(tmp_path, "IVF2,Flat")[which]
    content = path.read_bytes()
    flips = (
        content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :] for place in range(4, len(content), 37)
    )
    cuts = (content[:length] for length in (0, 5, 60, len(content) // 2, len(content) - 3))
    for damaged in (*flips, *cuts):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="index"):
            Index.load(tmp_path / "index")


def test_other_files_are_refused_with_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        Index.load(tmp_path / "index")
    path, description = saved(tmp_path)
    content = json.loads(description.read_text())
    for change in ({"version": 9}, {"format": "else"}, {"distance": "cos"}, {"distance": []}, {"factory": 7}):
        description.write_text(json.dumps({**content, **change}))
        with pytest.raises(UserError, match=r"index\.json"):
            Index.load(path)
    description.write_text(json.dumps(content))
    other = tmp_path / "other"
    other.mkdir()
    Index.build(rows(1, 20), device="cpu").save(other / "index")
    path.write_bytes((other / "index").read_bytes())
    with pytest.raises(UserError, match="build the index again"):
        Index.load(path)
    description.unlink()
    with pytest.raises(UserError, match=r"index\.json"):
        Index.load(path)


@pytest.mark.parametrize("full", ["faiss", "json"])
def test_both_files_stay_whole_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str) -> None:
    saved(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    class Full:
        hexdigest = hashlib.sha256().hexdigest

        def update(self, piece: bytes) -> None:
            if full == "faiss" and len(piece) > 200:  # the rows
                raise OSError(28, "No space left on device")

    def fsync(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "hashlib", SimpleNamespace(sha256=Full))
    if full == "json":
        monkeypatch.setattr(module, "os", SimpleNamespace(fsync=fsync))
    with pytest.raises(AurankError, match="No space left"):
        Index.build(rows(1, 20), device="cpu").save(tmp_path / "index")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("distance", ["cosine", "dot", "euclidean"])
def test_a_row_that_is_not_finite_is_named_and_nothing_is_added(distance: str, value: float) -> None:
    gallery = rows(0)
    gallery[123, 4] = value
    built = Index.build(rows(1, 10), distance=distance, device="cpu")
    for act in (built.add, built.train, lambda bad: built.search(bad, 3)):
        with pytest.raises(UserError, match="row 123 of the"):
            act(gallery)
    assert len(built) == 10


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("kind", ["Flat", "IVF8,Flat; nprobe=8", "IVF8,SQfp16; nprobe=8"])
def test_the_gpu_finds_what_the_cpu_finds(kind: str, tmp_path: Path) -> None:
    gallery = rows(0, 5000, 32)
    fast = Index.build(gallery, kind)
    assert fast.place.startswith("GPU")
    found, expected = fast.search(gallery, 20), Index.build(gallery, "Flat", device="cpu").search(gallery, 20)
    assert (found.row == expected.row).mean() > 0.95
    assert (found.row < 5000).all()
    fast.save(tmp_path / "index")
    assert (Index.load(tmp_path / "index").search(gallery, 20).row == found.row).mean() > 0.999
    fast.add(gallery[:10])
    assert fast.search(gallery[:1], 2).similarity == pytest.approx(np.ones((1, 2)), abs=1e-3)

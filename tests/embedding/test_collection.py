"""A gallery in Milvus finds what the same gallery in a folder finds, whatever happened while it was filled."""

import fcntl
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from testing.galleries import MODEL, small_index, write_photo, write_photos
from testing.refusals import refused

from aurank.commands import ImageIndex, add_images, build_index, calibrate_model, evaluate_model, remove_images
from aurank.data import READERS, build_manifest
from aurank.embedding import ImageSelection, collection
from aurank.errors import UserError
from aurank.evaluation.engine.scores import DISTANCES

OTHER = "timm:test_vit2,pretrained=false,input_size=32"


def let_go() -> None:
    for uri in list(collection._clients):
        collection.CollectionRows(f"milvus:{uri}#any").close()


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    let_go()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Photos, with an index of them in a folder and one in Milvus, to be read and not changed."""
    folder = tmp_path_factory.mktemp("made")
    small_index(write_photos(folder / "photos"), folder / "index")
    in_milvus(folder)
    yield folder
    let_go()


def in_milvus(folder: Path, name: str = "photos", **options: object) -> ImageIndex:
    return small_index(folder / "photos", f"milvus:{folder}/gallery.db#{name}", **options)  # type: ignore[arg-type]


def lists(index: ImageIndex, photos: Path, k: int = 30) -> list[list[tuple[str, str, float]]]:
    found = index.search(sorted(photos.rglob("*.png")), k)
    return [[(hit.path, hit.class_name, hit.score) for hit in one] for one in found]


def test_the_lists_are_those_of_the_index_in_a_folder(made):
    index, folder = ImageIndex.open(f"milvus:{made}/gallery.db#photos"), ImageIndex.open(made / "index")
    assert lists(index, made / "photos") == lists(folder, made / "photos")
    assert index.about["recall"] == {"queries": 20.0, "1": 1.0, "10": 1.0}
    assert "finds 1.0000 of the true nearest 1 and 1.0000 of the true nearest 10" in index.description
    assert sorted(index.images["sha256"]) == sorted(folder.images["sha256"])
    own = index.rows.where("path", ["c1/2.png"]).tolist()
    for options in ({}, {"classes": ["c0", "c2"]}, {"classes": ["c0", "c2"], "exact": True}, {"threshold": 0.6}):
        (row,) = folder.rows.where("path", ["c1/2.png"]).tolist()
        found, expected = index.search_rows(own, 9, **options), folder.search_rows([row], 9, **options)
        assert [(hit.path, hit.score) for hit in found[0]] == [(hit.path, hit.score) for hit in expected[0]]
        assert found[0][0].row not in own
    np.testing.assert_array_equal(index.read_image(own[0]), folder.read_image(row))
    refused("no class 'c', it has 4; did you mean 'c", index.search_rows, own, classes=["c"])
    refused("holds no image 1", index.read_image, 1)


@pytest.mark.slow
@pytest.mark.parametrize("distance", DISTANCES)
def test_every_distance_and_an_approximate_index(distance, made, tmp_path):
    (tmp_path / "photos").symlink_to(made / "photos")
    folder = small_index(made / "photos", tmp_path / "index", distance=distance)
    for name, factory in (("flat", "Flat"), ("graph", "HNSW,M=8,efConstruction=64; ef=64")):
        index = in_milvus(tmp_path, name, distance=distance, factory=factory)
        assert lists(index, made / "photos") == lists(folder, made / "photos")
    built = index.rows.client.describe_index("graph", "vector")  # type: ignore[union-attr]
    assert built["params"] == {"M": 8, "efConstruction": 64}
    assert f"{distance}, index HNSW,M=8,efConstruction=64; ef=64, which finds 1.0000" in index.description


@pytest.mark.slow
def test_images_are_added_replaced_and_removed(tmp_path):
    write_photos(tmp_path / "photos")
    address = str(in_milvus(tmp_path).folder)
    write_photo(tmp_path / "photos/c9/new.png", 100)
    write_photo(tmp_path / "photos/c0/0.png", 101)
    change = add_images(address, ImageSelection(f"folder:{tmp_path / 'photos'}"))
    assert (change.added, change.replaced, len(change.present), change.count) == (["c9/new.png"], ["c0/0.png"], 19, 21)
    write_photo(tmp_path / "more/c0/0.png", 102)  # the same path elsewhere is another image
    assert add_images(address, ImageSelection(f"folder:{tmp_path / 'more'}")).count == 22
    (tmp_path / "photos/c3/1.png").unlink()
    assert remove_images(address, missing=True).removed == ["c3/1.png"]
    assert len(remove_images(address, ["c9/new.png"], classes=["c1"]).removed) == 6
    refused(r"'c0/9\.png' is not in the index .*; did you mean", remove_images, address, ["c0/9.png"])
    folder = small_index(tmp_path / "photos", tmp_path / "index")
    add_images(tmp_path / "index", ImageSelection(f"folder:{tmp_path / 'more'}"))
    remove_images(tmp_path / "index", ["c9/new.png"], classes=["c1"])
    index, folder = ImageIndex.open(address), ImageIndex.open(tmp_path / "index")
    assert lists(index, tmp_path / "photos") == lists(folder, tmp_path / "photos")
    assert (len(index), index.about["recall"], len(index.about["sources"])) == (15, None, 2)


@pytest.mark.parametrize("out", ["index", "milvus:gallery.db#photos"])
def test_an_image_whose_class_changed_is_replaced(out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "photos"
    for number in range(4):
        write_photo(folder / f"{number}.png", number)
    before, after = folder / "before.csv", folder / "after.csv"
    before.write_text("path,label,split\n0.png,a,test\n1.png,a,test\n2.png,b,test\n3.png,b,test\n")
    after.write_text("path,label,split\n0.png,a,test\n1.png,a longer name,test\n2.png,a,test\n3.png,b,test\n")
    build_index(MODEL, ImageSelection(f"table:{before}"), out=out)
    vectors = dict(zip(*paths_and_vectors(out), strict=True))
    change = add_images(out, ImageSelection(f"table:{after}"))
    assert str(change) == "2 replaced, 2 already there; the index holds 4"
    again = add_images(out, ImageSelection(f"unlabelled:{folder}"))
    assert again.present == [f"{number}.png" for number in range(4)]
    images = ImageIndex.open(out).images
    classes = dict(zip(images["path"].tolist(), images["class"].tolist(), strict=True))
    assert classes == {"0.png": "a", "1.png": "a longer name", "2.png": "a", "3.png": "b"}
    for path, vector in zip(*paths_and_vectors(out), strict=True):
        np.testing.assert_allclose(vector, vectors[path], atol=1e-6)


def paths_and_vectors(out: str) -> tuple[list[str], np.ndarray]:
    rows = ImageIndex.open(out).rows
    return rows.take(rows.ids)["path"].tolist(), np.asarray(rows.embeddings[rows.ids])


def test_a_filling_that_was_cut_short_is_refused_and_made_anew(made, tmp_path, monkeypatch):
    (tmp_path / "photos").symlink_to(made / "photos")
    left = tmp_path / "gallery.db/collections/photos"  # of a process that was killed in the middle of making it
    left.mkdir(parents=True)
    (left / "data").write_text("")
    with monkeypatch.context() as patch:
        patch.setattr(collection.CollectionRows, "add", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            in_milvus(tmp_path)
    refused("filling it was cut short", ImageIndex.open, f"milvus:{tmp_path}/gallery.db#photos")
    index = in_milvus(tmp_path)
    assert lists(index, made / "photos") == lists(ImageIndex.open(made / "index"), made / "photos")
    refused("holds an index already", in_milvus, tmp_path)
    assert in_milvus(tmp_path, overwrite=True).about["revision"] == 1


def test_another_model_or_width_is_refused(made):
    address = f"milvus:{made}/gallery.db#photos"
    index = ImageIndex.open(address, model=OTHER)
    refused(rf"{address}: the model {OTHER} has other weights .*; name .*{MODEL}", index.load_model)
    with pytest.raises(UserError, match="is shown images otherwise"):
        ImageIndex.open(address, model=MODEL.replace("=32", "=64")).load_model()
    refused("the query embeddings have 3 columns and the gallery has 64", index.search, np.ones((1, 3)))


def test_what_is_no_collection_of_aurank(made, tmp_path):
    for address, said in (
        (f"milvus:{tmp_path}/none.db#photos", "no index at .*; make one with"),
        (f"milvus:{made}/gallery.db#none", "no index at .*; make one with"),
        ("milvus:http://me:secret@host:19530#photos", r"^milvus:…@…#photos: give a password or token as MILVUS_TOKEN"),
        ("milvus:http://127.0.0.1:9#photos", "cannot be opened: nobody answers there"),
    ):
        refused(said, ImageIndex.open, address)
    rows = collection.CollectionRows(f"milvus:{tmp_path}/gallery.db#photos")
    rows.client.create_collection("photos", dimension=4)
    refused("cannot be read as a collection of this aurank", ImageIndex.open, rows.address)
    (tmp_path / "photos").symlink_to(made / "photos")
    refused("such as", in_milvus, tmp_path, "other", factory="HNSW,M8")
    with pytest.raises(UserError, match="--postprocess binary is kept with an index in a folder"):
        in_milvus(tmp_path, "other", postprocess="binary")


def test_a_token_comes_from_the_environment_and_stays_nowhere(made, tmp_path, monkeypatch):
    import pymilvus

    monkeypatch.setenv("MILVUS_TOKEN", "me:secret")
    given: dict[str, str] = {}
    real = pymilvus.MilvusClient

    def client(uri: str, token: str, timeout: float) -> pymilvus.MilvusClient:
        given["token"] = token
        return real(uri, token=token, timeout=timeout)

    client.create_schema, client.prepare_index_params = real.create_schema, real.prepare_index_params  # type: ignore[attr-defined]
    monkeypatch.setattr(pymilvus, "MilvusClient", client)
    (tmp_path / "photos").symlink_to(made / "photos")
    index = in_milvus(tmp_path)
    assert given == {"token": "me:secret"}
    assert "secret" not in json.dumps(index.about) + index.description
    index.close()
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"secret" in path.read_bytes()]


@pytest.mark.slow
def test_its_embeddings_are_measured_and_its_scores_calibrated(made):
    images, address = ImageSelection(f"folder:{made / 'photos'}", split="all"), f"milvus:{made}/gallery.db#photos"
    sides = ((MODEL, images), (f"embeddings:{address}", None))
    by_model, by_rows = (evaluate_model(model, data).metrics for model, data in sides)
    assert by_rows == pytest.approx(by_model)
    refused("which brings its own classes", evaluate_model, f"embeddings:{address}", labels=Path("labels.npy"))
    by_model, by_rows = (calibrate_model(model, data, false_match_rate=0.05).threshold for model, data in sides)
    assert by_rows == pytest.approx(by_model)


def test_images_of_several_labels_keep_them(made, tmp_path):
    manifest = READERS["folder"](made / "photos")
    labels = [("even", "photo") if row % 2 else ("odd", "photo") for row in range(len(manifest))]
    rows = {"paths": manifest.paths, "labels": labels, "splits": ["test"] * len(labels)}
    listed = build_manifest("several", manifest.source, **rows)
    address = f"milvus:{tmp_path}/gallery.db#several"
    build_index(MODEL, ImageSelection(listed, split="all"), out=address)
    report = evaluate_model(f"embeddings:{address}")
    assert {*report.tags} == {"even", "odd", "photo"}
    assert set(report.per_query["num_positives"].tolist()) == {len(labels) - 1}


def test_what_is_closed_leaves_its_file_to_others(made):
    index = ImageIndex.open(f"milvus:{made}/gallery.db#photos")
    with (made / "gallery.db/LOCK").open() as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        index.close()
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(UserError, match=r"cannot be opened: .*or another process has it open"):
            ImageIndex.open(f"milvus:{made}/gallery.db#photos")

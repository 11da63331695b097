import numpy as np
import pytest
from testing.benchmark_trees import publish_small_sizes
from testing.data_trees import zip_tree
from testing.retrieval_trees import MARKET, MSMT, VERI, WILD, market_tree, msmt_tree, veri_tree, wild_tree

from aurank.data import check_benchmark
from aurank.data.checks.doctor import examine
from aurank.data.readers.benchmarks import read_market, read_msmt, read_veri, read_wild
from aurank.embedding.embed import Embedded
from aurank.embedding.protocols import PROTOCOLS
from aurank.errors import UserError


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch):
    publish_small_sizes(monkeypatch)


def _refusal(reader, root, **params):
    with pytest.raises(UserError) as error:
        reader(root, **params)
    assert "\n" not in str(error.value)
    return str(error.value)


def _names(manifest):
    return [manifest.classes[label] for label in manifest.labels]


def test_persons_and_cameras_are_read_from_the_names_and_junk_is_left_out(tmp_path):
    market_tree(tmp_path)
    manifest = read_market(tmp_path)
    names = [name for folder in MARKET for name in sorted(MARKET[folder]) if not name.startswith("-1")]
    assert [path.split("/")[1].removesuffix(".jpg") for path in manifest.paths] == names
    assert _names(manifest) == [name[:4] for name in names]
    assert manifest.groups.tolist() == [int(name[6]) for name in names]
    assert manifest.split_sizes == {"train": 4, "test": 10}
    test = manifest.split("test")
    assert test.is_query.tolist() == [True] * 3 + [False] * 7
    assert (test.is_query != test.is_gallery).all()
    found = str(check_benchmark("market1501", tmp_path))
    for line in ("train list of 4 images", "test query list of 3 images of 2", "test gallery list of 7 images of 3 cl"):
        assert f"found: {line}" in found


def test_persons_are_read_from_the_archive_as_downloaded(tmp_path):
    folder = market_tree(tmp_path / "tree")
    zip_tree(folder, tmp_path / "Market-1501-v15.09.15.zip", prefix="Market-1501-v15.09.15/")
    assert read_market(tmp_path).sha256 == read_market(folder).sha256


def test_a_query_is_ranked_without_gallery_images_of_its_own_camera(tmp_path):
    market_tree(tmp_path)
    test = read_market(tmp_path).split("test")
    rows = len(test)
    given = Embedded(
        np.random.default_rng(3).normal(size=(rows, 5)).astype(np.float32),
        *(test.labels, np.arange(rows), np.array(test.paths), test.is_query, test.is_gallery, test.groups),
    )
    report = PROTOCOLS["market1501"].evaluate(given)
    unit = given.embeddings / np.linalg.norm(given.embeddings, axis=1, keepdims=True)
    precisions = []
    for query in np.flatnonzero(test.is_query):
        own = (test.labels == test.labels[query]) & (test.groups == test.groups[query])
        gallery = np.flatnonzero(test.is_gallery & ~own)
        order = gallery[np.argsort(-(unit[gallery] @ unit[query]))]
        found = test.labels[order] == test.labels[query]
        precisions.append(np.mean((np.cumsum(found) / np.arange(1, len(found) + 1))[found]))
    assert report.mauprc == pytest.approx(np.mean(precisions), abs=1e-6)
    assert (report.num_queries, report.num_gallery) == (3, 7)


def test_the_published_number_of_images_is_insisted_on(tmp_path):
    folder = veri_tree(tmp_path)
    (folder / "image_test/0005_c008_00077625_0.jpg").unlink()
    assert "image_test has 3 images of 1 classes, expected 4 images of 2 classes" in _refusal(read_veri, tmp_path)
    assert read_veri(tmp_path, complete=False).split_sizes == {"train": 4, "test": 5}


def test_vehicles_and_cameras_are_read_from_the_names(tmp_path):
    veri_tree(tmp_path)
    manifest = read_veri(tmp_path)
    names = [name for folder in VERI for name in sorted(VERI[folder])]
    assert _names(manifest) == [name[:4] for name in names]
    assert manifest.groups.tolist() == [int(name[6:9]) for name in names]


@pytest.mark.parametrize("folders", [{}, {"train": "mask_train_v2", "test": "mask_test_v2"}], ids=["first", "second"])
def test_persons_of_training_and_test_that_share_a_number_are_two_classes(tmp_path, folders):
    msmt_tree(tmp_path, **folders)
    manifest = read_msmt(tmp_path)
    rows = [(file, image, person) for file in MSMT for image, person in MSMT[file]]
    kinds = ["train" if file in ("list_train.txt", "list_val.txt") else "test" for file, *_ in rows]
    assert _names(manifest) == [f"{kind}/{person}" for kind, (_, _, person) in zip(kinds, rows, strict=True)]
    inside = {kind: folders.get(kind, kind) for kind in ("train", "test")}
    paths = [f"{inside[kind]}/{image}.jpg" for kind, (_, image, _) in zip(kinds, rows, strict=True)]
    assert manifest.paths == tuple(paths)
    assert manifest.groups.tolist() == [1, 5, 14, 11, 1, 2, 1, 7, 2, 15]
    assert examine(manifest).errors == []


def test_the_validation_list_is_a_split_where_it_is_asked_for(tmp_path):
    msmt_tree(tmp_path)
    assert read_msmt(tmp_path).split_sizes == {"train": 4, "test": 6}
    assert read_msmt(tmp_path, validation=True).split_sizes == {"train": 2, "val": 2, "test": 6}


@pytest.mark.parametrize(("size", "count"), [("small", 3000), ("medium", 5000), ("large", 10000)])
def test_vehicles_in_the_wild_take_their_cameras_from_the_information_file(tmp_path, size, count):
    wild_tree(tmp_path)
    manifest = read_wild(tmp_path, test=size)
    rows = [*WILD["train_list"], *WILD[f"test_{count}_query"], *WILD[f"test_{count}"]]
    assert manifest.paths == tuple(f"images/{image}.jpg" for image, _ in rows)
    assert _names(manifest) == [image.split("/")[0] for image, _ in rows]
    assert manifest.groups.tolist() == [camera for _, camera in rows]
    assert manifest.split("test").is_query.tolist() == [True, False, False, False]
    assert PROTOCOLS[f"veriwild-{size}"].params == {"test": size}

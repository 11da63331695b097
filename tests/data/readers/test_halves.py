import numpy as np
import pytest
from testing.benchmark_trees import publish_small_sizes
from testing.retrieval_trees import (
    CARS,
    CUB,
    INSHOP,
    cars_tree,
    cars_tree_of_two_folders,
    cub_tree,
    inshop_tree,
    write_annotations,
)

from aurank.data import check_benchmark
from aurank.data.checks.doctor import examine
from aurank.data.readers.benchmarks import read_cars, read_cub, read_inshop
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


def _embedded(manifest):
    rows = len(manifest)
    return Embedded(
        np.random.default_rng(0).normal(size=(rows, 4)).astype(np.float32),
        manifest.labels,
        np.arange(rows),
        np.array(manifest.paths),
        manifest.is_query,
        manifest.is_gallery,
        np.full(rows, -1),
    )


def test_birds_of_the_first_hundred_classes_train_and_the_others_test(tmp_path):
    cub_tree(tmp_path)
    manifest = read_cub(tmp_path)
    assert manifest.paths == tuple(f"images/{name}" for _, name in CUB)
    assert [manifest.classes[label] for label in manifest.labels] == [name.split("/")[0] for _, name in CUB]
    assert manifest.splits.tolist() == ["train"] * 4 + ["test"] * 5
    assert "found: test list of 5 images of 2 classes" in str(check_benchmark("cub200", tmp_path))


@pytest.mark.parametrize("tree", [cars_tree, cars_tree_of_two_folders])
def test_cars_are_split_by_class_whichever_folder_they_lie_in(tmp_path, tree):
    tree(tmp_path)
    manifest = read_cars(tmp_path)
    assert sorted(int(manifest.classes[label]) for label in manifest.labels) == sorted(number for number, _ in CARS)
    first = np.array([int(manifest.classes[label]) <= 98 for label in manifest.labels])
    assert manifest.splits.tolist() == np.where(first, "train", "test").tolist()
    assert examine(manifest).errors == []
    assert check_benchmark("cars196", tmp_path).complete


def test_the_classification_split_is_not_measured_as_the_halves_are(tmp_path):
    cars_tree_of_two_folders(tmp_path)
    manifest = read_cars(tmp_path)
    official = manifest.select([path.startswith("cars_test/") for path in manifest.paths])
    with pytest.raises(UserError, match=r"not those of protocol cars196: 5 images are in one of both alone"):
        PROTOCOLS["cars196"].require_same(_embedded(official), manifest.split("test"))


def test_half_of_the_cars_says_what_is_missing_and_that_official_lists_are_others(tmp_path):
    folder = cars_tree_of_two_folders(tmp_path)
    (folder / "cars_test_annos_withlabels.mat").unlink()
    message = _refusal(read_cars, tmp_path)
    assert "cars_test_annos_withlabels.mat, the annotations of cars_test, is missing: get it from" in message
    assert "expected layout: cars196/{cars_annos.mat" in message
    write_annotations(folder / "cars_test_annos_withlabels.mat", ["00001.jpg"], [99], field="fname")
    assert "classes 99 to 196 has 3 images of 2 classes, expected 4 images of 2 classes" in _refusal(
        read_cars, tmp_path
    )
    assert "numbers by those cannot be compared" in _refusal(read_cars, tmp_path)
    assert read_cars(tmp_path, complete=False).split_sizes == {"train": 2, "test": 3}


@pytest.mark.parametrize("images", ["Img", "", "elsewhere"])
def test_clothes_have_queries_apart_from_the_gallery(tmp_path, images):
    folder = inshop_tree(tmp_path)
    if images == "":
        (folder / "Img/img").rename(folder / "img")
    elif images != "Img":
        (folder / "Img").rename(folder / images)
    manifest = read_inshop(tmp_path, images="elsewhere" if images == "elsewhere" else None)
    parts = [(name, state) for part in ("train", "query", "gallery") for name, state in INSHOP if state == part]
    states = np.array([state for _, state in parts])
    assert manifest.paths == tuple(f"img/{name}" for name, _ in parts)
    assert manifest.splits.tolist() == np.where(states == "train", "train", "test").tolist()
    test = states != "train"
    assert manifest.is_query[test].tolist() == (states[test] == "query").tolist()
    assert manifest.is_gallery[test].tolist() == (states[test] == "gallery").tolist()
    assert set(manifest.split("test").classes) == {"id_00000001", "id_00000003"}
    report = PROTOCOLS["inshop"].evaluate(_embedded(manifest.split("test")))
    assert (report.num_queries, report.num_gallery) == (3, 3)


def test_queries_and_gallery_belong_to_the_question(tmp_path):
    inshop_tree(tmp_path)
    test = read_inshop(tmp_path).split("test")
    protocol, given = PROTOCOLS["inshop"], _embedded(test)
    protocol.require_same(given, test)
    turned = Embedded(**{**vars(given), "is_query": given.is_gallery, "is_gallery": given.is_query})
    with pytest.raises(UserError, match=r"who is query or gallery, or groups, differ \(is_query, is_gallery\)"):
        protocol.require_same(turned, test)
    everyone = Embedded(**{**vars(given), "is_query": given.is_query | True, "is_gallery": given.is_query | True})
    with pytest.raises(UserError, match="has queries apart from the gallery, but is_query and is_gallery are alike"):
        protocol.evaluate(everyone)

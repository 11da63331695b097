"""The readers of benchmarks on small trees in the official layouts."""

import hashlib

import numpy as np
import pytest
from scipy.io import loadmat, savemat
from testing import trees
from testing.refusals import refused

from aurank.data import BENCHMARKS, READERS, ImageDataset, check_benchmark
from aurank.data.checks.doctor import examine
from aurank.data.checks.findings import write_table
from aurank.data.readers.benchmarks import read_roxford
from aurank.data.readers.published import FETCHED
from aurank.data.transforms.standard import Resize
from aurank.embedding.embed import embed_pixels
from aurank.embedding.embedded import Embedded, described
from aurank.embedding.protocols import PROTOCOLS
from aurank.errors import UserError


@pytest.fixture(autouse=True)
def _small_sizes(monkeypatch):
    trees.publish_small_sizes(monkeypatch)


def read(name, root, **params):
    return READERS[name](root, **params)


def names(manifest):
    return [manifest.classes[label] for label in manifest.labels]


def refusal(name, root, **params):
    return refused("", READERS[name], root, **params)


@pytest.mark.parametrize("name", trees.TREES)
def test_a_benchmark_is_found_below_the_data_folder_or_is_the_data_folder(name, tmp_path):
    folder = trees.TREES[name](tmp_path)
    below = read(name, tmp_path)
    assert below.name == name
    assert examine(below).errors == []
    assert read(name, folder).sha256 == below.sha256
    report = check_benchmark(name, tmp_path)
    assert report.where == str(folder)
    assert str(report).splitlines()[0] == f"{BENCHMARKS[name].title} in {folder}: complete"
    assert report.problems == check_benchmark(name, tmp_path, path=folder.name).problems == ()
    folder.rename(tmp_path / "elsewhere")
    assert read(name, tmp_path, path="elsewhere").sha256 == below.sha256


@pytest.mark.parametrize("name", trees.TREES)
def test_a_benchmark_that_is_not_there_says_where_to_get_it_and_the_layout(name, tmp_path):
    message = refusal(name, tmp_path)
    fetched = f"by `aurank data get {name}` or " if name in FETCHED else ""
    for part in ("is not there", str(tmp_path), "https://", "expected layout: ", "data.root", f"Get it {fetched}from "):
        assert part in message
    assert str(tmp_path / "gone") in refusal(name, tmp_path, path="gone")


@pytest.mark.parametrize(
    ("name", "archive"),
    [
        ("sop", "Stanford_Online_Products.zip"),
        ("market1501", "Market-1501-v15.09.15.zip"),
        ("grocery", "GroceryStoreDataset-master.zip"),
    ],
)
def test_a_benchmark_is_read_from_the_archive_as_downloaded(tmp_path, name, archive):
    folder = trees.TREES[name](tmp_path / "tree")
    trees.zip_tree(folder, tmp_path / archive, prefix=f"{folder.name}/")
    assert read(name, tmp_path).sha256 == read(name, tmp_path, path=archive).sha256 == read(name, folder).sha256
    assert examine(read(name, tmp_path)).errors == []


def test_products_keep_their_numbers_and_the_test_list_goes_on_where_training_ends(tmp_path):
    manifest = read("sop", trees.sop_tree(tmp_path))
    assert manifest.paths == tuple(row[3] for row in trees.SOP_TRAIN + trees.SOP_TEST)
    assert names(manifest) == [str(row[1]) for row in trees.SOP_TRAIN + trees.SOP_TEST]
    assert manifest.super_labels.tolist() == [row[2] for row in trees.SOP_TRAIN + trees.SOP_TEST]
    assert manifest.split_sizes == {"train": 4, "test": 5}
    assert (manifest.is_query & manifest.is_gallery).all()


def test_groceries_of_kinds_with_an_even_number_train_and_the_others_test(tmp_path):
    folder = trees.grocery_tree(tmp_path)
    manifest = read("grocery", tmp_path)
    kinds = [*trees.KINDS][::2] + [*trees.KINDS][1::2]
    assert names(manifest) == [f"Brand-{place}-{kind}" for kind in kinds for place in range(5) for _ in range(6)]
    assert manifest.super_labels.tolist() == [kind for kind in (1, 3, 5, 2, 4, 6) for _ in range(30)]
    assert manifest.split_sizes == {"train": 90, "test": 90}
    assert all(list(part) == sorted(part) for part in np.reshape(manifest.paths, (30, 6)))
    (tmp_path / "dataset").symlink_to(folder / "dataset")
    trees.zip_tree(folder, tmp_path / "mine.zip")
    for path in (".", "mine.zip"):
        assert read("grocery", tmp_path, path=path).sha256 == manifest.sha256


def test_the_class_of_a_species_is_its_folder_and_the_super_label_the_folder_above(tmp_path):
    manifest = read("inaturalist2018", trees.inaturalist_tree(tmp_path))
    assert manifest.paths == tuple(trees.INATURALIST_TRAIN + trees.INATURALIST_TEST)
    assert names(manifest) == ["Plantae/6000"] * 2 + ["Aves/3000"] + ["Aves/3001"] * 2 + ["Fungi/17"] * 2
    assert manifest.super_labels.tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert manifest.split_sizes == {"train": 3, "test": 4}


@pytest.mark.parametrize("size", trees.VEHICLE_TEST)
def test_a_vehicle_list_names_images_of_seven_digits_which_may_have_lost_their_zeros(tmp_path, size):
    folder = trees.vehicleid_tree(tmp_path)
    manifest = read("vehicleid", tmp_path, test=size)
    rows = trees.VEHICLE_TRAIN + trees.VEHICLE_TEST[size]
    assert manifest.paths == tuple(f"image/{image}.jpg" for image, _ in rows)
    assert names(manifest) == [str(vehicle) for _, vehicle in rows]
    assert manifest.split_sizes == {"train": 4, "test": len(trees.VEHICLE_TEST[size])}
    (folder / "train_test_split/train_list.txt").write_text("1 30\n2 30\n10 7\n11 7\n")
    assert read("vehicleid", tmp_path, test=size).sha256 == manifest.sha256


def test_super_labels_are_the_model_or_the_color_of_the_vehicle(tmp_path):
    folder = trees.vehicleid_tree(tmp_path)
    kinds = ("model", "color")
    model, color = (read("vehicleid", tmp_path, test="small", attribute=kind).super_labels for kind in kinds)
    assert model.tolist() == [12, 12, 249, 249, 0, 0, 0, 12, 12]
    assert color.tolist() == [6, 6, -1, -1, -1, -1, -1, 2, 2]
    (folder / "attribute/model_attr.txt").unlink()
    assert read("vehicleid", tmp_path, complete=False).super_labels is None


# A file of a benchmark's tree, what it holds instead, or what is added to it, and a part of what is said.
@pytest.mark.parametrize(
    ("name", "file", "text", "said"),
    [
        (
            "sop",
            "Ebay_test.txt",
            "+9 9 9 bicycle_final/9.JPG",
            "has 6 images of 3 classes, expected 5 images of 2 classes",
        ),
        ("sop", "Ebay_train.txt", "+5 3 bicycle_final/9.JPG", "Ebay_train.txt, line 6"),
        ("grocery", "dataset/val.txt", "+val/Fruit/Fig/Fig/1.jpg; 3, 2", "dataset/val.txt, line 61"),
        ("vehicleid", "train_test_split/train_list.txt", "+0000300 30", "has label"),
        (
            "cub200",
            "image_class_labels.txt",
            "1 1",
            "classes 1 to 100 has 1 images of 1 classes, expected 4 images of 2",
        ),
        ("cars196", "cars_annos.mat", "MATLAB 5.0 MAT-file" + "\0" * 200, "cars_annos.mat in "),
        ("inshop", "Eval/list_eval_partition.txt", "+img/1.jpg id_1 galery", "partition.txt, line 13"),
    ],
)
def test_a_file_that_does_not_fit_is_named(name, file, text, said, tmp_path):
    path = trees.TREES[name](tmp_path) / file
    path.write_text(path.read_text() + text[1:] + "\n" if text.startswith("+") else text)
    assert said in refusal(name, tmp_path)


def test_birds_of_the_first_hundred_classes_train_and_the_others_test(tmp_path):
    manifest = read("cub200", trees.cub_tree(tmp_path))
    assert manifest.paths == tuple(f"images/{name}" for _, name in trees.CUB)
    assert names(manifest) == [name.split("/")[0] for _, name in trees.CUB]
    assert manifest.splits.tolist() == ["train"] * 4 + ["test"] * 5


@pytest.mark.parametrize("tree", [trees.cars_tree, trees.cars_tree_of_two_folders])
def test_cars_are_split_by_class_whichever_folder_they_lie_in(tmp_path, tree):
    manifest = read("cars196", tree(tmp_path))
    numbers = [int(name) for name in names(manifest)]
    assert sorted(numbers) == sorted(number for number, _ in trees.CARS)
    assert manifest.splits.tolist() == ["train" if number <= 98 else "test" for number in numbers]
    assert examine(manifest).errors == []


def test_half_of_the_cars_says_what_is_missing_and_is_read_as_a_part_only_when_it_is_said_to_be_one(tmp_path):
    file = trees.cars_tree_of_two_folders(tmp_path) / "cars_test_annos_withlabels.mat"
    file.unlink()
    assert "annos_withlabels.mat, the annotations of cars_test, is missing: get it from" in refusal("cars196", tmp_path)
    trees.write_annotations(file, ["00001.jpg"], [99], field="fname")
    message = refusal("cars196", tmp_path)
    assert "classes 99 to 196 has 3 images of 2 classes, expected 4 images of 2 classes" in message
    assert "numbers by those cannot be compared" in message
    assert "data.params.complete=false" in message
    assert read("cars196", tmp_path, complete=False).split_sizes == {"train": 2, "test": 3}


@pytest.mark.parametrize("images", ["Img", ""])
def test_clothes_have_queries_apart_from_the_gallery(tmp_path, images):
    folder = trees.inshop_tree(tmp_path)
    if images == "":
        (folder / "Img/img").rename(folder / "img")
    manifest = read("inshop", tmp_path)
    parts = [(name, state) for part in ("train", "query", "gallery") for name, state in trees.INSHOP if state == part]
    states = np.array([state for _, state in parts])
    assert manifest.paths == tuple(f"img/{name}" for name, _ in parts)
    assert manifest.splits.tolist() == np.where(states == "train", "train", "test").tolist()
    test = states != "train"
    assert manifest.is_query[test].tolist() == (states[test] == "query").tolist()
    assert manifest.is_gallery[test].tolist() == (states[test] == "gallery").tolist()
    assert set(manifest.split("test").classes) == {"id_00000001", "id_00000003"}


def test_persons_and_cameras_are_read_from_the_names_and_junk_is_left_out(tmp_path):
    manifest = read("market1501", trees.market_tree(tmp_path))
    images = [name for folder in trees.MARKET for name in sorted(trees.MARKET[folder]) if not name.startswith("-1")]
    assert [path.split("/")[1].removesuffix(".jpg") for path in manifest.paths] == images
    assert names(manifest) == [name[:4] for name in images]
    assert manifest.groups.tolist() == [int(name[6]) for name in images]
    test = manifest.split("test")
    assert test.is_query.tolist() == [True] * 3 + [False] * 7
    assert (test.is_query != test.is_gallery).all()


def test_vehicles_and_cameras_are_read_from_the_names_and_their_number_is_insisted_on(tmp_path):
    folder = trees.veri_tree(tmp_path)
    manifest = read("veri776", tmp_path)
    images = [name for folder in trees.VERI for name in sorted(trees.VERI[folder])]
    assert names(manifest) == [name[:4] for name in images]
    assert manifest.groups.tolist() == [int(name[6:9]) for name in images]
    (folder / "image_test/0005_c008_00077625_0.jpg").unlink()
    assert "image_test has 3 images of 1 classes, expected 4 images of 2 classes" in refusal("veri776", tmp_path)
    assert read("veri776", tmp_path, complete=False).split_sizes == {"train": 4, "test": 5}


def test_a_small_tree_is_not_taken_for_the_published_set(tmp_path, monkeypatch):
    """The one test with the published sizes: those of every list, are insisted on."""
    monkeypatch.undo()
    for tree in trees.TREES.values():
        tree(tmp_path)
    for name, benchmark in BENCHMARKS.items():
        report = check_benchmark(name, tmp_path)
        assert not report.complete
        expected = [f"expected {images:,} images of {classes:,} cl" for images, classes in benchmark.sizes.values()]
        assert len(report.problems) == len(expected)
        assert all(any(size in problem for problem in report.problems) for size in expected)


@pytest.mark.parametrize("name", trees.TREES)
def test_each_file_that_is_taken_away_is_named_with_where_to_get_it(name, tmp_path):
    folder = trees.TREES[name](tmp_path)
    for file, holds in BENCHMARKS[name].files.items():
        if file.endswith("/"):
            (folder / file).rename(folder / "elsewhere")
            assert f"{file}, {holds}, is missing" in check_benchmark(name, tmp_path).problems[0]
            (folder / "elsewhere").rename(folder / file)
            continue
        content = (folder / file).read_bytes()
        (folder / file).unlink()
        problems = check_benchmark(name, tmp_path).problems
        assert problems == (f"{file}, {holds}, is missing: get it from {BENCHMARKS[name].origin}",)
        (folder / file).write_bytes(content)
    assert check_benchmark(name, tmp_path).complete


def test_everything_wrong_is_listed_together_and_ends_with_source_layout_and_terms(tmp_path):
    folder = trees.vehicleid_tree(tmp_path)
    (folder / "train_test_split/test_list_800.txt").unlink()
    (folder / "train_test_split/test_list_1600.txt").write_text("1 2 3\n")
    (folder / "attribute/color_attr.txt").unlink()
    (folder / "image/0000300.jpg").unlink()
    text = str(check_benchmark("vehicleid", tmp_path))
    for part in (
        "not complete, 4 to mend",
        "test_list_800.txt, the small test list, is missing",
        "test_list_1600.txt, line 1: expected two whole numbers",
        "color_attr.txt, the color of each vehicle, is missing",
        "1 (image/0000300.jpg)",
        "get it from: https://www.pkuml.org",
        "expected layout: VehicleID_V1.0/{",
        "terms: research only",
    ):
        assert part in text


@pytest.mark.parametrize("beside", ["tree", "tree/Stanford_Online_Products"])
def test_an_archive_that_is_there_is_compared_with_its_published_md5(tmp_path, monkeypatch, beside):
    folder = trees.sop_tree(tmp_path / "tree")
    archive = tmp_path / beside / "Stanford_Online_Products.zip"
    trees.zip_tree(folder, tmp_path / "made.zip", prefix="Stanford_Online_Products/")
    (tmp_path / "made.zip").rename(archive)
    md5 = hashlib.md5(archive.read_bytes()).hexdigest()
    (problem,) = check_benchmark("sop", tmp_path / "tree").problems
    assert problem == f"{archive} has md5 {md5}, expected 7f73d41a2f44250d4779881525aea32e: fetch it again"
    assert check_benchmark("sop", tmp_path / "tree", checksums=False).complete

    monkeypatch.setitem(BENCHMARKS["sop"].archives, archive.name, md5)
    seen = []
    report = check_benchmark("sop", tmp_path / "tree", on_bytes=lambda done, total: seen.append((done, total)))
    assert report.complete
    size = archive.stat().st_size
    assert seen == [(size, size)]


def test_a_name_that_is_no_benchmark_is_refused_naming_those_that_are(tmp_path):
    with pytest.raises(UserError, match=r"published set must be one of sop, grocery, inaturalist2018.*got 'cars'"):
        check_benchmark("cars", tmp_path)
    assert str(tmp_path / "cars196") in check_benchmark("cars196", tmp_path).problems[0]


# -- Landmarks: lists of what is sought and left out, and the trapezoid that they are measured by

SOUGHT = {
    "easy": {"positives": ["easy"], "ignored": ["junk", "hard"]},
    "medium": {"positives": ["easy", "hard"], "ignored": ["junk"]},
    "hard": {"positives": ["hard"], "ignored": ["junk", "easy"]},
}


def _listed(difficulty, column):
    """The pairs (query, image counted from 0) of one kind, query by query."""
    judged = [found for _, found in trees.LANDMARKS.values()]
    kinds = SOUGHT[difficulty][column]
    return [(row, one - 1) for row, found in enumerate(judged) for kind in kinds for one in found[kind]]


@pytest.mark.parametrize("difficulty", SOUGHT)
def test_queries_have_boxes_and_lists_of_what_is_sought_and_left_out(tmp_path, difficulty):
    manifest = read_roxford(trees.landmark_tree(tmp_path), difficulty=difficulty)
    assert manifest.paths == tuple(f"jpg/{name}.jpg" for name in (*trees.LANDMARKS, *trees.GALLERY))
    assert manifest.is_query.tolist() == [True] * 3 + [False] * 8
    assert manifest.boxes.tolist() == [[0, 1, 4, 5], [1, 0, 5, 3], [0, 0, 3, 6], *([[-1] * 4] * 8)]
    for column in ("positives", "ignored"):
        expected = [[row, 3 + one] for row, one in _listed(difficulty, column)]
        assert getattr(manifest, column).tolist() == expected


@pytest.mark.parametrize("difficulty", SOUGHT)
def test_the_numbers_are_those_of_a_list_without_what_is_left_out(tmp_path, difficulty):
    manifest = read_roxford(trees.landmark_tree(tmp_path), difficulty=difficulty)
    protocol = PROTOCOLS[f"roxford5k-{difficulty}"]
    rows = np.random.default_rng(1).normal(size=(len(manifest), 6)).astype(np.float32)
    given = described(manifest, np.arange(len(manifest)), rows)
    report = protocol.evaluate(given)
    names = [f"precision@{cut}(last)" for cut in (1, 5, 10)]
    assert list(report.metrics) == ["trapezoid_ap", *names, "mauprc"]
    unit = given.embeddings / np.linalg.norm(given.embeddings, axis=1, keepdims=True)
    areas, precisions = [], []
    for row in range(3):
        sought = {one for query, one in _listed(difficulty, "positives") if query == row}
        left_out = {one for query, one in _listed(difficulty, "ignored") if query == row}
        if not sought:
            continue
        order = [one for one in np.argsort(-(unit[3:] @ unit[row])).tolist() if one not in left_out]
        places = [place for place, one in enumerate(order) if one in sought]
        before = [1.0 if place == 0 else found / place for found, place in enumerate(places)]
        after = [(found + 1) / (place + 1) for found, place in enumerate(places)]
        areas.append((np.mean(before) + np.mean(after)) / 2)
        cut = min(5, places[-1] + 1)
        precisions.append(sum(place < cut for place in places) / cut)
    assert report.metrics["trapezoid_ap"] == pytest.approx(np.mean(areas), abs=1e-12)
    assert report.metrics["precision@5(last)"] == pytest.approx(np.mean(precisions), abs=1e-12)
    assert report.num_queries == len(areas) + report.num_lone_queries
    assert protocol.evaluate(given, metrics=["mauprc"]).metrics == {"mauprc": report.mauprc}


def test_pairs_stay_with_their_rows_and_in_the_file_of_embeddings(tmp_path):
    manifest = read_roxford(trees.landmark_tree(tmp_path))
    part = manifest.select([2, 8, 9, 3])
    assert part.positives.tolist() == [[0, 1], [0, 2]]
    assert part.ignored.tolist() == []
    assert part.sha256 != manifest.sha256
    embedded = embed_pixels(ImageDataset(manifest, Resize(4, 3), channels=3))
    embedded.save(tmp_path / "rows.npz")
    again = Embedded.load(tmp_path / "rows.npz")
    assert again.positives.tolist() == manifest.positives.tolist()
    assert again.evaluate().metrics == embedded.evaluate().metrics
    with pytest.raises(UserError, match="roxford5k lists which images belong together, which a table does not hold"):
        write_table(manifest, tmp_path / "clean.csv")
    np.savez(tmp_path / "odd.npz", embeddings=np.eye(2), labels=[1, 2], positives=[[0, 2]])
    refused("expected rows from 0 to 1", Embedded.load, tmp_path / "odd.npz")


def test_a_ground_truth_that_does_not_fit_is_refused(tmp_path):
    file = trees.landmark_tree(tmp_path) / "gnd_roxford5k.mat"
    content = {name: found for name, found in loadmat(file).items() if not name.startswith("__")}
    content["gnd"][0, 0]["bbx"] = np.array([[1.0, 2.0, 3.0]])
    savemat(file, content)
    refused(r"gnd_roxford5k\.mat", read_roxford, tmp_path)

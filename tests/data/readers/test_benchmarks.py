import json

import pytest
from testing.benchmark_trees import (
    INATURALIST_TEST,
    INATURALIST_TRAIN,
    SOP_TEST,
    SOP_TRAIN,
    TREES,
    VEHICLE_TEST,
    VEHICLE_TRAIN,
    annotations,
    inaturalist_tree,
    publish_small_sizes,
    sop_tree,
    vehicleid_tree,
)
from testing.data_trees import real_archive, zip_tree

from aurank.data import READERS
from aurank.data.checks.doctor import examine
from aurank.data.readers.benchmarks import read_inaturalist, read_sop, read_vehicleid
from aurank.data.readers.listing import read_lists
from aurank.errors import UserError

INATURALIST_LIST = "Inat_dataset_splits/Inaturalist_train_set1.txt"


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch):
    publish_small_sizes(monkeypatch)


def _names(manifest):
    return [manifest.classes[label] for label in manifest.labels]


def _refusal(reader, root, **params):
    with pytest.raises(UserError) as error:
        reader(root, **params)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", TREES)
def test_a_benchmark_is_found_below_the_data_folder_or_is_the_data_folder(name, tmp_path):
    folder = TREES[name](tmp_path)
    below = READERS[name](tmp_path)
    assert below.name == name
    assert examine(below).errors == []
    assert READERS[name](folder).sha256 == below.sha256
    folder.rename(tmp_path / "elsewhere")
    assert READERS[name](tmp_path, path="elsewhere").sha256 == below.sha256


@pytest.mark.parametrize("name", TREES)
def test_a_benchmark_that_is_not_there_says_where_to_get_it_and_the_layout(name, tmp_path):
    message = _refusal(READERS[name], tmp_path)
    for part in ("is not there", str(tmp_path), "https://", "expected layout: ", "data.root"):
        assert part in message
    assert str(tmp_path / "gone") in _refusal(READERS[name], tmp_path, path="gone")


def test_products_keep_their_numbers_and_the_test_list_goes_on_where_training_ends(tmp_path):
    sop_tree(tmp_path)
    manifest = read_sop(tmp_path)
    assert manifest.paths == tuple(row[3] for row in SOP_TRAIN + SOP_TEST)
    assert _names(manifest) == [str(row[1]) for row in SOP_TRAIN + SOP_TEST]
    assert manifest.super_labels.tolist() == [row[2] for row in SOP_TRAIN + SOP_TEST]
    assert manifest.split_sizes == {"train": 4, "test": 5}
    assert manifest.is_query.all()
    assert manifest.is_gallery.all()


@pytest.mark.parametrize("params", [{}, {"path": "Stanford_Online_Products.zip"}])
def test_products_are_read_from_the_archive_as_downloaded(tmp_path, params):
    folder = sop_tree(tmp_path / "tree")
    zip_tree(folder, tmp_path / "Stanford_Online_Products.zip", prefix="Stanford_Online_Products/")
    zipped = read_sop(tmp_path, **params)
    assert zipped.sha256 == read_sop(folder).sha256
    assert examine(zipped).errors == []


def test_any_set_in_the_format_of_the_products_is_read_as_the_list_reader_does(tmp_path):
    folder = sop_tree(tmp_path)
    params = {"path": str(folder), "train": "Ebay_test.txt", "test": "Ebay_train.txt", "images": ""}
    assert read_sop(tmp_path, complete=False, **params).sha256 == read_lists(tmp_path, **params).sha256
    assert "Ebay_test.txt has 5 images of 2 classes, expected 4 images of 2" in _refusal(read_sop, tmp_path, **params)


@pytest.mark.data
def test_grocery_is_read_as_products():
    lists_of = {split: f"grocery/derived_disjoint_{split}.txt" for split in ("train", "test")}
    manifest = read_sop(
        real_archive("grocery_128.zip"), path="grocery_128.zip", images="grocery/images", complete=False, **lists_of
    )
    assert manifest.split_sizes == {"train": 2478, "test": 2943}
    assert len(manifest.split("test").classes) == 46


def test_the_class_of_a_species_is_its_folder_and_the_super_label_the_folder_above(tmp_path):
    inaturalist_tree(tmp_path)
    manifest = read_inaturalist(tmp_path)
    assert manifest.paths == tuple(INATURALIST_TRAIN + INATURALIST_TEST)
    assert _names(manifest) == ["Plantae/6000"] * 2 + ["Aves/3000"] + ["Aves/3001"] * 2 + ["Fungi/17"] * 2
    assert manifest.super_labels.tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert manifest.split_sizes == {"train": 3, "test": 4}


@pytest.mark.parametrize("size", VEHICLE_TEST)
def test_a_vehicle_list_names_images_of_seven_digits(tmp_path, size):
    vehicleid_tree(tmp_path)
    manifest = read_vehicleid(tmp_path, test=size)
    rows = VEHICLE_TRAIN + VEHICLE_TEST[size]
    assert manifest.paths == tuple(f"image/{image}.jpg" for image, _ in rows)
    assert _names(manifest) == [str(vehicle) for _, vehicle in rows]
    assert manifest.split_sizes == {"train": 4, "test": len(VEHICLE_TEST[size])}


def test_images_whose_numbers_lost_their_zeros_are_found(tmp_path):
    folder = vehicleid_tree(tmp_path)
    before = read_vehicleid(tmp_path)
    (folder / "train_test_split/train_list.txt").write_text("1 30\n2 30\n10 7\n11 7\n")
    assert read_vehicleid(tmp_path).sha256 == before.sha256


def test_super_labels_are_the_model_or_the_color_of_the_vehicle(tmp_path):
    folder = vehicleid_tree(tmp_path)
    model, color = (read_vehicleid(tmp_path, test="small", attribute=attribute) for attribute in ("model", "color"))
    assert model.super_labels.tolist() == [12, 12, 249, 249, 0, 0, 0, 12, 12]
    assert color.super_labels.tolist() == [6, 6, -1, -1, -1, -1, -1, 2, 2]
    (folder / "attribute/model_attr.txt").unlink()
    assert read_vehicleid(tmp_path, complete=False).super_labels is None


# A file of a benchmark's tree, what it holds instead, or what is added to it, and a part of what is said.
WRONG = [
    ("sop", "Ebay_test.txt", "+9 9 9 bicycle_final/9.JPG", "has 6 images of 3 classes, expected 5 images of 2 classes"),
    ("sop", "Ebay_train.txt", "+5 3 bicycle_final/9.JPG", "Ebay_train.txt, line 6"),
    ("inaturalist2018", INATURALIST_LIST, "+" + INATURALIST_TRAIN[0].replace("a1", "z9"), "not in train2018.json"),
    ("inaturalist2018", INATURALIST_LIST, "+a.jpg", "set1.txt, line 4"),
    ("inaturalist2018", "train2018.json", "[" * 100_000, "train2018.json in "),
    ("inaturalist2018", "train2018.json", '{"categories": [1]}', "unpack train2018.json.tar.gz again"),
    ("vehicleid", "train_test_split/train_list.txt", "+0000300 30", "has label"),
    ("vehicleid", "attribute/img2vid.txt", "+0000009 9", "img2vid.txt has 17 images, expected 16"),
    ("vehicleid", "attribute/img2vid.txt", "+0000010 8", "another class in attribute/img2vid.txt: 1 (image/00"),
    ("vehicleid", "train_test_split/train_list.txt", "+1 2 3", "train_list.txt, line 5"),
    ("cub200", "images.txt", "name", "images.txt, line 1"),
    ("cub200", "image_class_labels.txt", "1 1\n2 7", "images of another class in image_class_labels.txt: 1 (001.Black"),
    ("cub200", "image_class_labels.txt", "1 1", "images without a class in image_class_labels.txt: 8 (001.Black_f"),
    ("cars196", "cars_annos.mat", "MATLAB 5.0 MAT-file" + "\0" * 200, "cars_annos.mat in "),
    ("inshop", "Eval/list_eval_partition.txt", "image_name item_id evaluation_status", "partition.txt, line 1"),
    ("inshop", "Eval/list_eval_partition.txt", "+img/1.jpg id_1 galery", "partition.txt, line 13"),
    ("market1501", "query/0001.jpg", "", "image '0001.jpg' is not named like 0002_c1s1_000451_03.jpg"),
    ("msmt17", "list_query.txt", "+0000/a.jpg 3", "list_query.txt, line 3"),
    ("msmt17", "list_query.txt", "+0000/0000_000_01_x.jpg p", "list_query.txt, line 3"),
    ("veriwild", "train_test_split/vehicle_info.txt", "id/image;Camera ID", "without a camera in train_test_split"),
    ("veriwild", "train_test_split/vehicle_info.txt", "id/image;Camera ID\n1/1;x", "vehicle_info.txt, line 2"),
    ("veriwild", "train_test_split/test_10000.txt", "000502", "test_10000.txt, line 1"),
    ("gldv2", "index/index.csv", "image\n1", "index/index.csv, line 1"),
    ("gldv2", "index/index.csv", "id\n../x", "index/index.csv, line 2"),
    ("gldv2", "test/retrieval_solution_v2.1.csv", "id,images,Usage\n012,0,Some", "solution_v2.1.csv, line 2"),
]


@pytest.mark.parametrize(("name", "file", "text", "said"), WRONG)
def test_a_file_that_does_not_fit_is_named(name, file, text, said, tmp_path):
    path = TREES[name](tmp_path) / file
    path.write_text(path.read_text() + text[1:] + "\n" if text.startswith("+") else text)
    assert said in _refusal(READERS[name], tmp_path)


@pytest.mark.parametrize("file", ["train2018.json", "val2018.json"])
def test_a_part_needs_no_annotations(file, tmp_path):
    (inaturalist_tree(tmp_path) / file).unlink()
    assert f"{file}, " in _refusal(read_inaturalist, tmp_path)
    assert len(read_inaturalist(tmp_path, complete=False)) == 7


def test_a_part_of_a_benchmark_is_read_only_when_it_is_said_to_be_one(tmp_path):
    path = sop_tree(tmp_path) / "Ebay_test.txt"
    path.write_text("\n".join(path.read_text().splitlines()[:4]) + "\n")
    assert "data.params.complete=false" in _refusal(read_sop, tmp_path)
    assert read_sop(tmp_path, complete=False).split_sizes == {"train": 4, "test": 3}


def test_the_vehicle_lists_of_before_the_correction_are_recognised(tmp_path):
    path = vehicleid_tree(tmp_path) / "train_test_split/train_list.txt"
    path.write_text("0000001 30\n")
    assert "110,178 training images of 13,134 vehicles" in _refusal(read_vehicleid, tmp_path)


@pytest.mark.parametrize("part", ["category_id", "supercategory"])
def test_a_species_that_the_annotations_call_otherwise_is_shown(tmp_path, part):
    folder = inaturalist_tree(tmp_path)
    content = annotations(INATURALIST_TRAIN[:1])
    if part == "category_id":
        content["annotations"][0]["category_id"] = 17
    else:
        content["categories"] = [{"id": 6000, "supercategory": "Fungi"}]
    (folder / "val2018.json").write_text(json.dumps(content))
    message = _refusal(read_inaturalist, tmp_path)
    shown = "Fungi/17" if part == "category_id" else "Fungi/6000"
    assert f"another class in train2018.json and val2018.json: 1 ({INATURALIST_TRAIN[0]} is {shown})" in message

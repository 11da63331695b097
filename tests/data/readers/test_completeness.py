import hashlib

import pytest
from testing.trees import TREES, sop_tree, vehicleid_tree, zip_tree

from aurank.data import BENCHMARKS, check_benchmark
from aurank.errors import UserError


@pytest.mark.usefixtures("small_sizes")
@pytest.mark.parametrize("name", TREES)
def test_an_official_tree_is_complete_and_says_what_was_found(name, tmp_path):
    folder = TREES[name](tmp_path)
    report = check_benchmark(name, tmp_path)
    assert report.complete
    assert report.problems == ()
    assert report.where == str(folder)
    assert str(report).splitlines()[0] == f"{BENCHMARKS[name].title} in {folder}: complete"
    assert check_benchmark(name, tmp_path, path=folder.name).problems == ()


def test_a_small_tree_is_not_taken_for_the_published_set(tmp_path):
    """The one test with the published sizes: those of every list, are insisted on."""
    for tree in TREES.values():
        tree(tmp_path)
    for name, benchmark in BENCHMARKS.items():
        report = check_benchmark(name, tmp_path)
        assert not report.complete
        expected = [f"expected {images:,} images of {classes:,} cl" for images, classes in benchmark.sizes.values()]
        assert len(report.problems) == len(expected)
        assert all(any(size in problem for problem in report.problems) for size in expected)


@pytest.mark.usefixtures("small_sizes")
@pytest.mark.parametrize("name", TREES)
def test_each_file_that_is_taken_away_is_named_with_where_to_get_it(name, tmp_path):
    folder = TREES[name](tmp_path)
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


@pytest.mark.usefixtures("small_sizes")
def test_everything_wrong_is_listed_together_and_ends_with_source_layout_and_terms(tmp_path):
    folder = vehicleid_tree(tmp_path)
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


@pytest.mark.usefixtures("small_sizes")
@pytest.mark.parametrize("beside", ["tree", "tree/Stanford_Online_Products"])
def test_an_archive_that_is_there_is_compared_with_its_published_md5(tmp_path, monkeypatch, beside):
    folder = sop_tree(tmp_path / "tree")
    archive = tmp_path / beside / "Stanford_Online_Products.zip"
    zip_tree(folder, tmp_path / "made.zip", prefix="Stanford_Online_Products/")
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

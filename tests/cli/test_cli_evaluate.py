"""`aurank evaluate`, `probe`, `compare` and `data check` as typed, with models and images from elsewhere."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image
from testing.shell import Shell

from aurank import __version__
from aurank.evaluation import ProbeResult, Report
from aurank.evaluation.probes import PROBES


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with eight photos in two classes, where commands are given."""
    for row in range(8):
        path = tmp_path / "photos" / "ab"[row // 4] / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(row).integers(0, 120, (40, 40, 3), dtype=np.uint8)
        pixels[:, :, row // 4] += 120
        Image.fromarray(pixels).save(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


TIMM = (
    *("evaluate", "--model", "timm:test_resnet,pretrained=false", "--data", "folder:photos", "--recall-at", "1,3"),
    "data.odd_classes=keep",
)


@pytest.mark.slow
def test_a_timm_model_is_measured_twice_and_embedded_once(place: Path, aurank: Shell) -> None:
    code, first, said = aurank(*TIMM, "--out", "one")
    assert (code, said) == (0, "")
    names = sorted(path.name for path in (place / "one").iterdir())
    assert names == ["per_class.csv", "per_query.parquet", "pr_curve.png", "report.html", "report.json"]
    code, second, said = aurank(*TIMM, "--out", "two")
    assert code == 0
    assert said.startswith("read 8 embeddings from the cache")
    assert second.replace("two", "one") == first
    assert (place / "one" / "per_query.parquet").read_bytes() == (place / "two" / "per_query.parquet").read_bytes()
    reports = [json.loads((place / name / "report.json").read_text()) for name in ("one", "two")]
    made = [(report.pop("command"), report.pop("date")) for report in reports]
    assert made[0][0] == " ".join(["cd", str(place), "&&", "aurank", *TIMM, "--out", "one"])
    assert reports[0] == reports[1]
    code, _, said = aurank(*TIMM, "--out", "three", "--no-cache")
    assert (code, said) == (0, "")
    table = pyarrow.parquet.read_table(place / "one" / "per_query.parquet")
    assert table["path"].to_pylist() == [f"{'ab'[row // 4]}/{row}.png" for row in range(8)]
    assert table["class"].to_pylist() == ["a"] * 4 + ["b"] * 4


@pytest.mark.slow
def test_a_result_is_replaced_by_its_own_command_or_when_asked_for(place: Path, aurank: Shell) -> None:
    for number in range(2):
        rows = np.random.default_rng(number).normal(size=(6, 4))
        np.savez(place / f"{number}.npz", embeddings=rows, labels=np.arange(6) % 3)
    first, second = (("evaluate", "--model", f"embeddings:{number}.npz", "--out", "out") for number in range(2))
    for _ in range(2):
        assert aurank(*first)[0] == 0
    before = (place / "out" / "report.json").read_bytes()
    code, _, complaint = aurank(*second)
    assert (code, complaint.count("\n")) == (2, 1)
    assert f"--out out holds the result of another command (cd {place} && aurank evaluate --model emb" in complaint
    assert "--overwrite" in complaint
    assert (place / "out" / "report.json").read_bytes() == before
    assert aurank(*second, "--overwrite")[0] == 0
    assert aurank(*second)[0] == 0
    (place / "out" / "report.json").write_text("{}")
    assert "holds the result of something else" in aurank(*second)[2]


@pytest.mark.slow
def test_intervals_are_asked_for_and_seeded(place: Path, aurank: Shell) -> None:
    code, output, _ = aurank(*TIMM, "--out", "one", "--intervals", 200, "--seed", 3)
    assert code == 0
    assert "seed 3" in output
    assert Report.load(place / "one" / "report.json").intervals is not None
    code, _, complaint = aurank(*TIMM, "--out", "two", "--intervals", 5)
    assert code == 2
    assert "resamples must be 100 or more" in complaint
    assert not (place / "two").exists()


@pytest.mark.slow
def test_intervals_that_cannot_be_had_do_not_lose_the_evaluation(place: Path, aurank: Shell) -> None:
    np.savez(place / "one.npz", embeddings=np.random.default_rng(0).normal(size=(9, 4)), labels=np.zeros(9, int))
    code, output, _ = aurank("evaluate", "--model", "embeddings:one.npz", "--out", "one", "--intervals", 200)
    assert code == 0
    assert "no intervals: an interval needs queries of 2 classes" in output
    assert Report.load(place / "one" / "report.json").intervals is None


@pytest.mark.slow
def test_two_reports_are_compared(place: Path, aurank: Shell) -> None:
    assert aurank(*TIMM, "--out", "one")[0] == 0
    Report.load(place / "one" / "report.json").save(place / "two.json")
    code, output, _ = aurank("compare", "one", "two.json", "--metric", "recall@1", "--resamples", 100)
    assert code == 0
    assert output.startswith("recall@1")
    assert "8 equal" in output
    code, _, complaint = aurank("compare", "one", "none.json")
    assert code == 2
    assert complaint.startswith("error: none.json: cannot be read")


def test_an_incomplete_data_set_ends_with_2_and_says_what_is_missing(place: Path, aurank: Shell) -> None:
    code, output, _ = aurank("data", "check", "sop", "--root", place)
    assert code == 2
    assert "Stanford Online Products" in output
    assert "not complete" in output
    code, _, complaint = aurank("data", "check", "spo")
    assert code == 2
    assert "no benchmark 'spo' to check" in complaint


def test_the_version_is_told(aurank: Shell) -> None:
    assert aurank("--version")[:2] == (0, f"aurank {__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "folder:none", "--out", "x"], "there is no none"),
        (["--data", "photos", "--out", "x"], "expected READER:PATH, such as folder:photos"),
        (["--data", "folder:photos", "--out", "x", "data.params.test_fraction=0"], "with --split train"),
        (["--out", "x"], "say which images to embed"),
        (["--data", "folder:photos", "--out", "photos/a/0.png"], "is a file"),
        (["--data", "folder:photos", "--out", "x", "--device", "cuda:77"], "cpu always can"),
        (["--data", "folder:photos", "--out", "x", "--ties", "fair"], "ties must be one of"),
        (["--data", "folder:photos", "--out", "x", "--no-cache", "--cache", "y"], "exclude each other"),
        (["--protocol", "sop", "--root", ".", "--out", "x"], "Stanford_Online_Products"),
        (["--query", "q.csv", "--out", "x"], "go together"),
        (["--protocol", "sop", "--seeds", "a", "--out", "x"], "expected whole numbers and commas"),
    ],
)
def test_a_mistake_is_told_in_one_line_and_writes_nothing(
    place: Path, aurank: Shell, arguments: list[str], message: str
) -> None:
    code, output, complaint = aurank("evaluate", "--model", "timm:test_resnet,pretrained=false", *arguments)
    assert (code, output) == (2, "")
    assert message in complaint
    assert complaint.count("\n") == 1
    assert sorted(path.name for path in place.iterdir()) == ["photos"]


def test_pickled_embeddings_are_refused(place: Path, aurank: Shell) -> None:
    np.save(place / "rows.npy", np.array([{}], dtype=object), allow_pickle=True)
    code, _, complaint = aurank("evaluate", "--model", "embeddings:rows.npy", "--out", "x")
    assert code == 2
    assert "pickled objects, which are refused" in complaint


@pytest.mark.slow
def test_ones_own_function_needs_leave(place: Path, aurank: Shell) -> None:
    (place / "own_model.py").write_text("import torch\ndef build():\n    return torch.nn.AdaptiveAvgPool2d(1)\n")
    command = (
        "evaluate",
        "--model",
        "python:own_model:build",
        "--data",
        "folder:photos",
        "--out",
        "x",
        "data.odd_classes=keep",
    )
    code, _, complaint = aurank(*command)
    assert code == 2
    assert "add --allow-code" in complaint
    code, _, complaint = aurank(*command, "--allow-code")
    assert code == 2
    assert "the model returned (8, 3, 1, 1)" in complaint
    assert not (place / "x").exists()
    sys.modules.pop("own_model")


@pytest.mark.slow
@pytest.mark.parametrize(("option", "value"), [("distance", "euclidean"), ("index", "Flat")])
def test_distance_and_index_reach_the_engine(place: Path, aurank: Shell, option: str, value: str) -> None:
    code, _, complaint = aurank(*TIMM, "--out", "x", f"--{option}", value)
    assert code == 0, complaint
    assert 0 < Report.load(place / "x" / "report.json").mauprc <= 1


PROBE = ("probe", "--model", "timm:test_resnet,pretrained=false")


@pytest.mark.slow
def test_a_probe_within_the_test_split_reads_what_evaluate_embedded(place: Path, aurank: Shell) -> None:
    assert aurank(*TIMM, "--out", "one")[0] == 0
    code, output, said = aurank(*PROBE, "--data", "folder:photos", "--out", "probed", "--seeds", "4,5")
    assert code == 0, said
    assert said.startswith("read 8 embeddings from the cache")
    assert sorted(path.name for path in (place / "probed").iterdir()) == ["knn.json", "linear_probe.json"]
    for name in ("knn", "linear_probe"):
        found = ProbeResult.load(place / "probed" / f"{name}.json")
        assert str(found) in output
        assert (found.protocol, found.design, found.seeds) == (name, "halves", [4, 5])
        assert (found.num_train, found.num_test, found.num_classes) == (4, 4, 2)
        assert found.notes[-1].startswith("model timm:test_resnet,pretrained=false; 8 images of photos, manifest ")


def test_a_probe_that_is_stopped_keeps_and_has_printed_what_was_done(
    place: Path, aurank: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(PROBES, "linear_probe", stopped)
    code, output, _ = aurank(*PROBE, "--data", "folder:photos", "--out", "probed")
    assert code == 130
    assert output.startswith("knn\ntop1")
    assert [path.name for path in (place / "probed").iterdir()] == ["knn.json"]


def split_photos(place: Path, train: str, test: str) -> None:
    """The photos once more, those of each class divided between the splits as said: "ab" puts both classes there."""
    for split, classes, rows in (("train", train, (0, 1, 2)), ("test", test, (3,))):
        for name in classes:
            for row in rows:
                file = place / "split" / split / name / f"{row}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                photo = place / "photos" / ("b" if name == "b" else "a") / f"{row + 4 * (name == 'b')}.png"
                file.write_bytes(photo.read_bytes())


@pytest.mark.slow
def test_a_probe_trains_on_the_training_split_where_it_has_the_classes(place: Path, aurank: Shell) -> None:
    split_photos(place, train="abc", test="bc")
    code, _, said = aurank(*PROBE, "--data", "folder:split", "--out", "probed", "--k", "3")
    assert (code, said) == (0, "")
    for name in ("knn", "linear_probe"):
        found = ProbeResult.load(place / "probed" / f"{name}.json")
        assert (found.design, found.num_train, found.num_test, found.num_classes) == ("closed set", 9, 2, 3)
        assert [note.split(":")[0] for note in found.notes[-2:]] == ["training", "test"]
    code, _, said = aurank(*PROBE, "--data", "folder:split", "--out", "probed", "--protocol", "linear_probe")
    assert said.count("embeddings from the cache") == 2


@pytest.mark.slow
def test_the_classes_of_both_splits_are_told_apart_by_name(place: Path, aurank: Shell) -> None:
    split_photos(place, train="cb", test="bd")
    saved = {}
    for split, rows in (("train", 6), ("test", 2)):
        command = ("embed", "--model", PROBE[2], "--data", "folder:split", "--split", split, "--out", f"{split}.npz")
        assert aurank(*command)[0] == 0
        with np.load(place / f"{split}.npz") as content:
            saved[split] = content["embeddings"]
            assert len(content["labels"]) == rows
    code, _, complaint = aurank(*PROBE, "--data", "folder:split", "--out", "probed", "--k", 1, "--protocol", "knn")
    assert code == 0, complaint
    found = ProbeResult.load(place / "probed" / "knn.json")
    # Photos by folder name: b, c in training, b, d in the test split; d has no training row.
    assert (found.num_test, found.num_left_out) == (1, 1)
    unit = {split: rows / np.linalg.norm(rows, axis=1, keepdims=True) for split, rows in saved.items()}
    nearest = np.argmax(unit["train"] @ unit["test"][0])
    assert found.metrics["1nn"] == float(nearest < 3)


def test_saved_embeddings_are_probed_by_halves(place: Path, aurank: Shell) -> None:
    rows = np.random.default_rng(0).normal(size=(30, 4))
    np.save(place / "rows.npy", rows)
    np.save(place / "labels.npy", np.arange(30) % 3)
    code, output, complaint = aurank(
        "probe", "--model", "embeddings:rows.npy", "--labels", "labels.npy", "--out", "x", "--protocol", "knn"
    )
    assert code == 0, complaint
    assert output.startswith("knn\ntop1")
    assert ProbeResult.load(place / "x" / "knn.json").seeds == [0, 1, 2]
    np.savez(place / "halves.npz", embeddings=rows, labels=np.arange(30) / 2)
    code, _, complaint = aurank("probe", "--model", "embeddings:halves.npz", "--out", "y")
    assert (code, complaint.count("\n")) == (2, 1)
    assert "float64: give integers" in complaint
    code, _, complaint = aurank("probe", "--model", "embeddings:rows.npy", "--out", "y")
    assert code == 2
    assert "holds no array 'labels'" in complaint


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--k", 5], "k must be from 1 to the number of training rows, 4; got 5"),
        (["--protocol", "kn"], "expected knn or linear_probe, each once; got kn"),
        (["--protocol", "knn", "--protocol", "knn"], "each once; got knn, knn"),
        (["--protocol", "linear_probe", "--k", 2], "--k 2 goes with --protocol knn"),
        (["--seeds", "1,1"], "seeds must be different whole numbers"),
        (["--labels", "x.npy"], "the labels come with the images"),
        (["--split", "val"], "no images in split 'val'"),
    ],
)
def test_a_probe_that_cannot_be_is_told_before_anything_is_embedded(
    place: Path, aurank: Shell, arguments: list[object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("embedded")

    monkeypatch.setattr("aurank.commands.run_options.embed", never)
    code, output, complaint = aurank(*PROBE, "--data", "folder:photos", "--out", "x", *arguments)
    assert (code, output) == (2, "")
    assert message in complaint
    assert complaint.count("\n") == 1
    assert not (place / "x").exists()


def test_a_probe_without_two_classes_or_with_one_image_twice_is_refused(place: Path, aurank: Shell) -> None:
    lines = ["path,label,split", *(f"photos/a/{row}.png,a,test" for row in range(4))]
    (place / "one.csv").write_text("\n".join(lines) + "\n")
    (place / "twice.csv").write_text("\n".join([*lines, "photos/a/0.png,a,test"]) + "\n")
    for table, message in (("one", "there are 1, among 1 class"), ("twice", "lists image 'photos/a/0.png' twice")):
        code, _, complaint = aurank(*PROBE, "--data", f"table:{table}.csv", "--out", "x")
        assert code == 2
        assert message in complaint


@pytest.mark.slow
def test_seeds_have_no_use_for_knn_on_two_splits(place: Path, aurank: Shell) -> None:
    split_photos(place, train="ab", test="ab")
    command = (*PROBE, "--data", "folder:split", "--out", "x", "--seeds", "1")
    code, _, complaint = aurank(*command, "--protocol", "knn")
    assert code == 2
    assert "k-NN draws nothing" in complaint
    assert aurank(*command)[0] == 0
    assert ProbeResult.load(place / "x" / "linear_probe.json").seeds == [1]


def test_of_classes_of_two_images_the_neighbours_alone_are_probed(place: Path, aurank: Shell) -> None:
    rows = np.random.default_rng(0).normal(size=(12, 4))
    np.savez(place / "pairs.npz", embeddings=rows, labels=np.arange(12) // 2)
    command = ("probe", "--model", "embeddings:pairs.npz", "--out", "x")
    code, _, said = aurank(*command)
    assert code == 0
    assert said.startswith("no linear probe: every class has a single training row")
    assert [path.name for path in (place / "x").iterdir()] == ["knn.json"]
    code, _, said = aurank(*command[:-1], "y", "--protocol", "linear_probe")
    assert (code, (place / "y").exists()) == (2, False)


@pytest.mark.slow
def test_the_cache_is_pruned_and_shows_what_goes(place: Path, aurank: Shell) -> None:
    assert aurank(*TIMM, "--out", "one")[0] == 0
    code, output, _ = aurank("cache", "prune", "--max", "0B", "--dry-run")
    assert code == 0
    assert output.startswith("would remove 0.000 GiB, last used ")
    assert "timm:test_resnet,pretrained=false; 8 images of photos" in output
    code, output, _ = aurank("cache", "prune", "--max", "1GiB")
    assert output == f"1 sets, 0.000 GiB, stay in {os.environ['AURANK_CACHE']}\n"
    code, output, _ = aurank("cache", "prune", "--max", "0B")
    assert output.startswith("removed 0.000 GiB, last used ")
    assert list(Path(os.environ["AURANK_CACHE"]).iterdir()) == []
    code, _, complaint = aurank("cache", "prune", "--max", "much")
    assert (code, complaint.count("\n")) == (2, 1)


def test_doctor_takes_a_reader_and_a_path(place: Path, aurank: Shell) -> None:
    code, output, _ = aurank("doctor", "folder:photos")
    assert code == 0
    assert output.startswith("photos: 8 images, 2 classes, 8 test images, 2 test classes\n")
    code, output, _ = aurank("doctor", "folder:photos", "data.params.test_fraction=0.5")
    assert "4 train images" in output
    code, _, complaint = aurank("doctor", "folder:none")
    assert (code, complaint.count("\n")) == (2, 1)
    assert "there is no none" in complaint


def test_shipped_configurations_are_filtered(aurank: Shell) -> None:
    names = {line.split()[0] for line in aurank("ls", "SOPRC")[1].splitlines() if "/" in line.split()[0]}
    assert "digits/soprc" in names
    assert len(names) < len([line for line in aurank("ls")[1].splitlines() if "/" in line.split()[0]])
    code, _, complaint = aurank("ls", "no such thing")
    assert code == 2
    assert "no shipped configuration has 'no such thing'" in complaint


@pytest.mark.parametrize("command", ["evaluate", "embed", "probe"])
def test_what_is_refused_leaves_no_folder(place: Path, aurank: Shell, command: str) -> None:
    (place / "photos" / "a" / "0.png").write_bytes(b"no image")  # met only while embedding
    out = "new/x.npz" if command == "embed" else "new/x"
    options = ("--model", TIMM[2], "--data", "folder:photos", "data.odd_classes=keep", "--out", out, "--no-cache")
    code, _, complaint = aurank(command, *options)
    assert code == 2
    assert "0.png" in complaint
    assert sorted(path.name for path in place.iterdir()) == ["photos"]

"""Benchmarks of heads on drawn embeddings: every unit once, whatever is killed, and what is refused."""

import json
import shutil
import signal
import sys
from collections import Counter
from dataclasses import replace
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from testing.galleries import head_config, write_rows
from testing.processes import ended, run_aurank
from testing.runs import COLOURS, pairs_config, write_table

import aurank
from aurank.commands import run_benchmark
from aurank.commands.benchmarks.benchmark import BenchmarkRun
from aurank.commands.tune import train_aside
from aurank.config import dump_config
from aurank.embedding.image_selection import read_whole
from aurank.embedding.select_images import class_folds
from aurank.errors import AurankError, UserError
from aurank.training import read_config

SPEC: dict[str, Any] = {
    "config": "head.yaml",
    "overrides": ["data.validation_fraction=0"],
    "methods": {"SmoothAP": ["loss.name=smooth_ap"], "SupCon": ["loss.name=sup_con"]},
    "settings": {"PCA": ["model.dim=4"], "identity": ["model.dim=16"]},
    "without_training": ["", "whiten:dim=4"],
    "seeds": 2,
    "trials": 2,
    "choose_by": {"folds": 2},
    "ranges": {"optim.lr": [1e-3, 1e-1, "log"]},
    "reference": "SupCon",
}
# Lines to run before a benchmark: its process kills itself at a training of a module, after so many.
KILLED = """
import importlib, os
module = importlib.import_module("aurank.commands.{module}")
def train(*given, train=module.{name}, left=[None] * {trainings}, **named):
    if not left:
        os.kill(os.getpid(), 9)
    left.pop()
    return train(*given, **named)
module.{name} = train
"""


def write_spec(folder: Path, **changes: Any) -> Path:
    """Write a benchmark of heads, with the drawn rows beside it; None leaves out a key."""
    folder.mkdir(exist_ok=True)
    if not (folder / "rows.npz").exists():
        config = head_config(write_rows(folder / "rows.npz"), train={"steps": 2, "validate_every": 2})
        (folder / "head.yaml").write_text(dump_config(read_config(config)))
    spec = {key: value for key, value in (SPEC | changes).items() if value is not None}
    (folder / "spec.yaml").write_text(json.dumps(spec))
    return folder / "spec.yaml"


def kinds(lines: list[dict[str, Any]]) -> dict[str, int]:
    return dict(Counter(line["kind"] for line in lines))


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder, threads = tmp_path_factory.mktemp("whole"), torch.get_num_threads()
    torch.set_num_threads(1)  # as the processes of `run_aurank`
    assert run_benchmark(write_spec(folder), folder / "out")
    torch.set_num_threads(threads)
    return folder, read_lines(folder / "out" / "lines.jsonl")


def test_every_method_chooses_and_is_tested_at_every_seed_of_every_setting(whole):
    (folder, lines), about = whole, itemgetter("method", "setting", "split")
    assert kinds(lines) == {"benchmark": 1, "split": 1, "untrained": 2, "choice": 4, "run": 8}
    split = lines[1]
    assert split["classes"] == ["8", "9", "10", "11"]
    assert split["queries"] == [6, 6, 6, 6]
    for line in lines:
        if line["kind"] == "run":
            assert line["mauprc"] == pytest.approx(np.average(line["ap_by_class"], weights=split["queries"]), abs=1e-4)
            (choice,) = (each for each in lines if each["kind"] == "choice" and about(each) == about(line))
            assert line["chosen"] == choice["chosen"]
            assert {"optim.lr", "loss.params.temperature"} <= {each.partition("=")[0] for each in line["chosen"]}
        if line["kind"] in ("run", "choice", "untrained"):
            assert {"seconds", "processor_seconds", "commit", "aurank", "torch", "device", "threads"} <= line.keys()
    written = {path.name for path in (folder / "out").iterdir()}
    assert written == {"benchmark.html", "choices", "lines.jsonl", "table.md", "units"}


def test_a_run_is_what_train_measures_with_the_chosen_values(whole):
    folder, lines = whole
    line = next(line for line in lines if line["kind"] == "run" and line["seed"] == 1)
    overrides = [*line["overrides"], *line["chosen"], "seed=1"]
    report = aurank.train(folder / "head.yaml", folder / "again", overrides=overrides).report
    assert report.mauprc == pytest.approx(line["mauprc"], abs=1e-5)
    rows = aurank.evaluate(*(np.load(folder / "rows.npz")[name][48:] for name in ("embeddings", "labels")))
    plain = next(line for line in lines if line["kind"] == "untrained" and line["method"] == "")
    assert rows.mauprc == pytest.approx(plain["mauprc"], abs=1e-6)


def test_images_and_texts_are_queries_together_in_the_test_and_in_the_choice(tmp_path):
    write_table(tmp_path)
    sections = {"data": {"validation_fraction": 0}, "train": {"steps": 6, "validate_every": 2}}
    config = read_config(pairs_config(tmp_path, **sections))
    spec = {"config": "pairs.yaml", "methods": {"CLIP": ["loss.name=clip"]}, "seeds": 1, "trials": 1}
    spec["choose_by"] = {"folds": 2}
    (tmp_path / "pairs.yaml").write_text(dump_config(config))
    (tmp_path / "spec.yaml").write_text(json.dumps(spec))
    assert run_benchmark(tmp_path / "spec.yaml", tmp_path / "out")
    split, choice, line = read_lines(tmp_path / "out" / "lines.jsonl")[1:]
    (search,) = (json.loads(path.read_text()) for path in tmp_path.glob("out/choices/*/search.json"))
    config = read_config(config.model_dump(mode="json"), [*line["overrides"], *line["chosen"], "seed=0"])
    whole = read_whole(config.data)
    training = whole.select(whole.splits != "test")
    for number, ap in enumerate(search["trials"][0]["folds"]):
        data = replace(training, splits=np.where(class_folds(training, 2) == number, "val", "train"))
        assert train_aside(config, tmp_path / "aside", data).best["mauprc"] == ap
    assert choice["val_mauprc"] == pytest.approx(np.mean(search["trials"][0]["folds"]), abs=1e-6)
    both = aurank.train(config, tmp_path / "again").two_way["all"]
    reports = [both.image_to_text, both.text_to_image]
    queries = [report.num_queries for report in reports]
    assert sum(split["queries"]) == sum(queries)
    assert set(split["classes"]) == {*COLOURS}
    for name in ("mauprc", "recall@1"):
        means = [report.metrics[name] for report in reports]
        assert line[name] == pytest.approx(np.average(means, weights=queries), abs=1e-5)
    assert line["mauprc"] == pytest.approx(np.average(line["ap_by_class"], weights=split["queries"]), abs=1e-4)


def test_texts_of_several_classes_are_refused_before_any_training(tmp_path):
    write_table(tmp_path, labelled=False, captions=2)
    (tmp_path / "pairs.yaml").write_text(dump_config(read_config(pairs_config(tmp_path))))
    (tmp_path / "spec.yaml").write_text(json.dumps({"config": "pairs.yaml", "methods": {"SogCLR": []}}))
    with pytest.raises(UserError, match="give each test image and each text one label alone"):
        run_benchmark(tmp_path / "spec.yaml", tmp_path / "out")


def test_what_is_done_is_not_done_again_and_what_changed_is(whole):
    folder, _ = whole
    did: list[str] = []
    run_benchmark(write_spec(folder), folder / "out", listener=lambda unit, *_: did.append(str(unit)))
    assert did == []
    more = write_spec(folder, seeds=3, methods=SPEC["methods"] | {"the same": ["loss.name=sup_con"]})
    run_benchmark(more, folder / "out", listener=lambda unit, *_: did.append(str(unit)))
    pairs = product(SPEC["settings"], SPEC["methods"])
    assert sorted(did) == sorted(f"{setting}, {method}, published, seed 2" for setting, method in pairs)
    write_spec(folder)


def test_folds_test_every_class_once_and_choose_within_their_own(tmp_path):
    spec = write_spec(tmp_path, splits={"folds": 3, "by": "class"}, settings=None, seeds=1, trials=0, ranges=None)
    assert run_benchmark(spec, tmp_path / "out")
    lines = read_lines(tmp_path / "out" / "lines.jsonl")
    tested = [name for line in lines if line["kind"] == "split" for name in line["classes"]]
    assert sorted(tested, key=int) == [str(label) for label in range(12)]
    assert kinds(lines) == {"benchmark": 1, "split": 3, "untrained": 6, "run": 6}
    assert "| SupCon |" in (tmp_path / "out" / "table.md").read_text()


def test_a_training_that_diverges_is_a_line(tmp_path):
    methods = {"SupCon": ["loss.name=sup_con"], "bad": ["optim.name=sgd", "optim.lr=1000", "loss.name=contrastive"]}
    methods["bad"] += ["model.dim=4", "optim.weight_decay=1000", "train.steps=60", "train.validate_every=60"]
    assert run_benchmark(write_spec(tmp_path, methods=methods, settings=None, trials=0, ranges=None), tmp_path / "out")
    failed = [line for line in read_lines(tmp_path / "out" / "lines.jsonl") if "error" in line]
    assert {line["method"] for line in failed} == {"bad"}
    assert len(failed) == 2
    assert "Ended early" in (tmp_path / "out" / "benchmark.html").read_text()


def test_what_a_full_disk_ended_is_no_result(tmp_path, monkeypatch):
    spec = write_spec(tmp_path, settings=None, trials=0, ranges=None, seeds=1, without_training=[])
    full = AurankError("cannot save last.safetensors: No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["aurank.commands.tune"], "train", Mock(side_effect=full))
        with pytest.raises(AurankError, match="No space left"):
            run_benchmark(spec, tmp_path / "out")
    assert run_benchmark(spec, tmp_path / "out")
    assert not any("error" in line for line in read_lines(tmp_path / "out" / "lines.jsonl"))


def test_nothing_begins_that_would_end_after_the_limit(tmp_path):
    assert not run_benchmark(write_spec(tmp_path), tmp_path / "out", limit=-1.0)
    assert kinds(read_lines(tmp_path / "out" / "lines.jsonl")) == {"benchmark": 1}
    assert "not run yet" in (tmp_path / "out" / "table.md").read_text()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"reference": "SupCn"}, "the reference 'SupCn' is none of the methods: .*; did you mean 'SupCon'"),
        ({"sedes": 3}, "spec.yaml:1:.*sedes: unknown key"),
        ({"seeds": 0}, "seeds: got 0, expected greater than or equal to 1"),
        ({"methods": {"A": ["loss.name=smooth_up"]}, "reference": None}, "PCA A: .*loss.name: got 'smooth_up'"),
        ({"methods": {"A": ["sampler.batch=98"]}, "reference": None}, "PCA A: a batch has only 16 images: set"),
        ({"methods": {"A": ["data.params.file=other.npz"]}, "reference": None}, "all are compared on the same data"),
        ({"ranges": {"optim.lr": [1]}}, "expected \\[low, high\\]"),
        ({"splits": {"folds": 9}}, "too few for 9 folds"),
        ({"choose_by": {"folds": 9}}, "has 8 classes, too few for 9 folds"),
        ({"overrides": ["evaluate.recall_at=[5]"]}, "Recall@1 compares methods: name it in evaluate.recall_at"),
        ({"config": "none.yaml"}, "none.yaml: no such file"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_mistake_is_one_line_before_any_training(tmp_path, changes, text):
    with pytest.raises(UserError, match=text):
        BenchmarkRun(write_spec(tmp_path, **changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_killed_benchmark_goes_on_and_two_processes_share_what_is_left(tmp_path, whole):
    _, lines = whole
    command = ["benchmark", write_spec(tmp_path), "--out", tmp_path / "out"]
    # In the second trial of the first choice, then in the first training, behind all choices.
    kills = (("tune", "train", 3, 2), ("benchmarks.benchmark", "train_aside", 0, 6))
    for module, name, trainings, units in kills:
        killed = run_aurank(*command, setup=KILLED.format(module=module, name=name, trainings=trainings))
        assert killed.wait() == -signal.SIGKILL, killed.communicate()
        assert len(list((tmp_path / "out" / "units").glob("*.json"))) == units
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "units").glob("*.json")}
    for code, output, complaints in ended([run_aurank(*command) for _ in range(2)]):
        assert (code, "benchmark.html" in output) == (0, True), complaints
    assert {path: path.stat().st_mtime_ns for path in before} == before
    again = read_lines(tmp_path / "out" / "lines.jsonl")
    clocks = {"seconds", "processor_seconds"}
    results = [[{key: line[key] for key in line.keys() - clocks} for line in each] for each in (lines, again)]
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("kind", "changes", "text"),
    [
        ("choice", {"chosen": [1]}, r"units/\w+\.json: .*chosen\.0: .*valid string.*; remove it"),
        ("run", {"queries": [6, 6, 0, 6]}, r"units/\w+\.json: .*queries\.2: .*; remove it"),
        ("run", {"ap_by_class": [0.5]}, r"units: .*; remove the one that differs"),
    ],
)
def test_a_damaged_unit_is_one_line(kind, changes, text, tmp_path, whole):
    shutil.copytree(whole[0] / "out", tmp_path / "out")
    units = {path: json.loads(path.read_bytes()) for path in sorted((tmp_path / "out/units").iterdir())}
    file = next(path for path, unit in units.items() if unit["kind"] == kind and unit["seed"] < SPEC["seeds"])
    file.write_text(json.dumps(units[file] | changes))
    with pytest.raises(UserError, match=text):
        BenchmarkRun(write_spec(whole[0]), tmp_path / "out").collect()

"""A search: what it tries, that it never sees a test image, and that it goes on after its processes were killed."""

import csv
import json
import os
import re
import signal
import sys
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from testing.galleries import WIDTH, head_config, rows, write_rows
from testing.processes import CONTEXT, ending_at, run_aurank, succeeded

import aurank
from aurank.commands import tune
from aurank.commands.tune import read_ranges, searched_ranges, value_of
from aurank.config import dump_config
from aurank.data import READERS, Manifest
from aurank.embedding.image_selection import read_whole
from aurank.embedding.select_images import class_folds
from aurank.errors import Diverged, UserError
from aurank.files import write_text
from aurank.losses import LOSSES
from aurank.ranges import Range
from aurank.training import read_config
from aurank.training.build import build_loss, build_splits

RATE = {"optim.lr": Range(1e-3, 0.1, log=True)}
ONLY = {"optim.weight_decay": None, "sampler.params.per_class": None}
# Without a number that is good for many data sets; hierarchical_ap has ranges, but needs super-categories to be made.
WITHOUT = {"semi_variance"}
NEEDS = {"neuclip": {"two_way": False}, "fastclip": {"two_way": False}}
ROWS = {"distill": "teacher", "compatible": "old"}  # the argument that names saved rows


def config_of(folder: Path, **sections: dict[str, Any]) -> Any:
    return read_config(head_config(write_rows(folder / "rows.npz"), **sections))


def table(out: Path) -> list[dict[str, str]]:
    lines = csv.DictReader((out / "trials.csv").read_text(encoding="utf-8").splitlines())
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


@pytest.mark.parametrize("loss", LOSSES)
def test_both_ends_of_each_range_make_a_loss(loss, tmp_path):
    rows = {ROWS[loss]: str(tmp_path / "rows.npz")} if loss in ROWS else {}
    given: dict[str, Any] = {"loss": {"name": loss, "params": NEEDS.get(loss, rows)}}
    config = config_of(tmp_path, **given, model={"dim": WIDTH})
    ranges = {key: each for key, each in searched_ranges(config, {}).items() if key.startswith("loss")}
    assert (not ranges) == (loss in WITHOUT)
    assert all((own := value_of(config, key)) is None or own in each for key, each in ranges.items())
    train = build_splits(config).train
    ends = {key: each.choices or (each.low, each.high) for key, each in ranges.items()}
    tried = [{key: end} for key, each in ends.items() for end in each]
    for values in [*tried, *({key: each[place] for key, each in ends.items()} for place in (0, -1))]:
        overrides = [f"{key}={json.dumps(value)}" for key, value in values.items()]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            build_loss(read_config(config.model_dump(mode="json"), overrides), train)


def test_a_range_holds_the_configurations_own_value_and_leaves_out_choices_that_do_not_fit(tmp_path):
    changes: dict[str, Any] = {"sampler": {"batch": 12}, "optim": {"lr": 0.2}, "loss": {"params": {"temperature": 0.7}}}
    ranges = searched_ranges(config_of(tmp_path, **changes), {})
    assert ranges["sampler.params.per_class"].choices == (2, 4)  # a batch of 12 holds no two classes of 8
    assert ranges["optim.lr"] == Range(1e-5, 0.2, log=True)
    assert ranges["loss.params.temperature"].high == 0.7
    assert searched_ranges(config_of(tmp_path, optim={"name": "sgd"}), {})["optim.lr"].high == 3


def test_folds_are_of_whole_classes_and_of_nearly_one_size():
    digits = READERS["digits"](None)
    fold = class_folds(digits, 5, seed=3)
    assert np.bincount(fold).min() > 0.9 * len(digits) / 5
    assert all(len({*fold[digits.labels == label].tolist()}) == 1 for label in range(10))
    assert class_folds(digits, 5, seed=4).tolist() != fold.tolist()
    above = replace(digits, super_labels=digits.labels // 2)
    assert all(len({*class_folds(above, 4, by="super_category")[digits.labels // 2 == each]}) == 1 for each in range(5))
    with pytest.raises(UserError, match="10 classes, too few for 6 folds"):
        class_folds(digits, 6)
    with pytest.raises(UserError, match="take two or more"):
        class_folds(digits, 1)
    with pytest.raises(UserError, match="has no super-categories"):
        class_folds(digits, 2, by="super_category")


@pytest.mark.slow
def test_the_first_trial_is_the_configuration_trained_in_each_fold_without_a_test_image(tmp_path):
    config = config_of(tmp_path)
    lines: list[dict[str, Any]] = []
    told: list[str] = []  # by some steps, which change nothing of the trials
    options: dict[str, Any] = {"listener": lines.append, "say": told.append}
    found = tune(config, tmp_path / "out", ranges=RATE | ONLY, trials=2, folds=2, **options)
    whole = read_whole(config.data)
    training = whole.select(whole.splits != "test")
    fold = class_folds(training, 2)
    expected = []
    for number in range(2):
        data = replace(training, splits=np.where(fold == number, "val", "train"))
        expected.append(aurank.train(config, tmp_path / f"run{number}", dataset=data).best["mauprc"])
    assert lines[0]["folds"] == expected
    assert lines[0]["settings"] == {"optim.lr": "0.01", "loss.params.temperature": "0.01"}
    assert found.value == max(line["value"] for line in lines) == lines[-1]["best"]
    (text,) = told
    assert re.fullmatch(r"16 training steps in 4 trainings: about [\d.]+ seconds, and validations", text)
    best = read_config(tmp_path / "out" / "best.yaml")
    assert dump_config(best) == dump_config(read_config(config.model_dump(mode="json"), found.overrides))
    # Other test images change nothing.
    others = rows()
    others["embeddings"][others["splits"] == "test"] += 1
    again = config_of(tmp_path).model_dump(mode="json")
    np.savez(tmp_path / "rows.npz", **others)
    assert tune(read_config(again), tmp_path / "again", ranges=RATE | ONLY, trials=2, folds=2) == found


def test_no_trial_is_outside_of_a_given_range_nor_recorded_as_another(tmp_path):
    lines: list[dict[str, Any]] = []
    given = {"train.steps": Range(2, 3)}  # of 4
    told: list[tuple[str, int, int]] = []
    options: dict[str, Any] = {"listener": lines.append, "progress": lambda *values: told.append(values)}
    tune(config_of(tmp_path), tmp_path / "out", ranges=RATE | ONLY | given, trials=1, folds=2, **options)
    assert lines[0]["settings"]["optim.lr"] == "0.01"  # the configuration's own
    steps = int(lines[0]["settings"]["train.steps"])
    assert steps in (2, 3)
    assert told == [("training steps", round(4 * step / steps), 8) for step in range(1, 2 * steps + 1)]
    file = tmp_path / "out" / "search.json"
    search = json.loads(file.read_bytes())
    (trial,) = search["trials"]
    assert trial["params"]["train.steps"] == steps
    wrong = ({"params": {}}, {"params": trial["params"] | {"train.steps": 9}}, {"folds": ["a"]}, {"state": ""})
    for change in wrong:
        file.write_text(json.dumps(search | {"trials": [trial | change]}))
        with pytest.raises(UserError, match=r"search.json: cannot be read as a search .*name another --out"):
            tune(config_of(tmp_path), tmp_path / "out", ranges=RATE | ONLY | given, trials=1, folds=2)


@pytest.mark.slow
def test_a_search_of_images_leaves_out_their_test_split_and_prunes(tmp_path, monkeypatch):
    seen: list[Manifest] = []

    def trained(config: Any, out: Path, *, dataset: Manifest, listener: Any, **_: Any) -> aurank.TrainResult:
        seen.append(dataset)
        values = [config.optim.lr, config.optim.lr / 2]  # the higher the rate, the better, up to 0.05
        if config.optim.lr > 0.05:
            raise Diverged("the loss is nan at step 2")
        for value in values:
            listener("validation", {"mauprc": value})
        return aurank.TrainResult(out, 4, {"mauprc": max(values)}, None)

    monkeypatch.setattr(sys.modules["aurank.commands.tune"], "train", trained)
    steps = ["train.steps=4", "train.validate_every=2", "optim.warmup_steps=0"]
    config = read_config("digits/soprc", ["optim.lr=0.001", *steps])
    lines: list[dict[str, Any]] = []
    found = tune(config, tmp_path, ranges=RATE, trials=40, listener=lines.append)
    assert all(manifest.split_sizes.keys() == {"train", "val"} for manifest in seen)
    assert not any({*one.labels[one.splits == "val"]} & {*one.labels[one.splits == "train"]} for one in seen)
    pruned = [line for line in lines if line["state"] == "pruned"]
    assert pruned
    assert all(len(line["folds"]) < 3 for line in pruned)
    assert all(("nan" in line["error"]) == (line["state"] == "failed") for line in lines)
    assert 0.035 < found.value <= 0.05
    assert lines[0]["value"] == 0.001
    assert found.trials == len(lines) == 40
    page = (tmp_path / "tune.html").read_text(encoding="utf-8")
    assert "fANOVA" in page
    assert all(key in page for key in searched_ranges(config, RATE))


FILES = {"best.yaml", "search.json", "trials.csv", "tune.html"}
# The second step of the fourth training, after the seven steps that say how long a search takes.
STOPPED = ending_at(7 + 4 * 3 + 2, signal.SIGINT)


@pytest.mark.slow
def test_a_search_that_was_interrupted_finds_what_it_would_have_found(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(dump_config(config_of(tmp_path)), encoding="utf-8")
    words = ("tune", file, "--trials", 5, "--folds", 2, "--out")
    whole = run_aurank(*words, tmp_path / "whole")
    stopped = run_aurank(*words, tmp_path / "stopped", setup=STOPPED)
    assert stopped.wait() == 130, stopped.communicate()
    assert "stopped at training steps: 14 of 40" in stopped.communicate()[1]
    ((_, output, _),) = succeeded([run_aurank(*words, tmp_path / "stopped")])
    assert re.findall(r"trial (\d) of 5", output) == ["2", "3", "4", "5"]
    succeeded([whole])
    assert table(tmp_path / "stopped") == table(tmp_path / "whole")
    assert {path.name for path in (tmp_path / "stopped").iterdir()} == FILES


def kill_searches(folder: Path, kills: int) -> None:
    """Search with a training that takes no time, in processes that die after some processor time, until all ended."""
    module: Any = sys.modules["aurank.commands.tune"]

    def trained(config: Any, out: Path, *, dataset: Manifest, listener: Any, page: bool) -> aurank.TrainResult:
        if config.optim.lr > 0.05:
            raise Diverged("the loss is nan at step 2")
        assert not out.exists()
        write_text(out / "last", "")
        best = {"mauprc": config.optim.lr * 1e4 % 1}  # which no search learns, so some are pruned
        for values in (best, {"mauprc": 0.0}):
            listener("validation", values)
        return aurank.TrainResult(out, 4, best, None)

    def search(out: Path) -> None:
        tune(config, out, ranges=RATE | ONLY, trials=10, folds=2)

    def start(out: Path) -> None:
        # Mostly in a trial; else there would be none at the end, where the page is drawn.
        seconds = float(chance.uniform(1e-4, chance.choice([0.02, 0.2, 9], p=[0.8, 0.1, 0.1])))
        if os.fork() == 0:
            signal.setitimer(signal.ITIMER_PROF, seconds)
            with suppress(Exception):
                search(out)
                os._exit(0)
            os._exit(1)

    module.train, config, chance = trained, config_of(folder), np.random.default_rng(1)
    search(folder / "whole")
    assert {line["state"] for line in table(folder / "whole")} == {"complete", "pruned", "failed"}
    while kills > 0:
        out, codes = folder / f"search{len(list(folder.iterdir()))}", list[int]()
        while 0 not in codes:
            start(out)
            codes.append(os.waitstatus_to_exitcode(os.wait()[1]))
        kills -= codes.count(-signal.SIGPROF)
        assert {*codes} <= {0, -signal.SIGPROF}
        assert table(out) == table(folder / "whole")
        assert {path.name for path in out.iterdir()} == FILES


@pytest.mark.slow
def test_every_trial_ends_whatever_kills_the_process_of_a_search(tmp_path):
    searches = CONTEXT.Process(target=kill_searches, args=(tmp_path, 30))
    searches.start()
    searches.join()
    assert searches.exitcode == 0


@pytest.mark.slow
def test_what_does_not_fit_is_refused_before_a_training(tmp_path):
    config, out = config_of(tmp_path), tmp_path / "out"
    file = tmp_path / "mine.yaml"
    file.write_text(dump_config(config), encoding="utf-8")
    for ranges, said in (
        ({"optim.lrr": [1, 2]}, "optim.lrr: unknown key"),
        ({"optim.lr": [1, 2, "logs"]}, "optim.lr: got [1, 2, \"logs\"], expected [low, high]"),
        ({"optim.lr": [2, 1]}, "optim.lr: got [2, 1], expected [low, high]"),
        ({"optim.lr": [0.0, 1.0]}, "optim.lr: got 0.0"),
        ({"loss.params.temperature": {"choices": [0.1, "warm"]}}, "temperature"),
        ({"loss.params.tau9": None}, "loss.params.tau9 has none"),
    ):  # fmt: skip
        (tmp_path / "ranges.yaml").write_text(yaml.safe_dump(ranges), encoding="utf-8")
        with pytest.raises(UserError, match=re.escape(said)):
            tune(config, out, ranges=read_ranges(tmp_path / "ranges.yaml"))
    assert not out.exists()
    with pytest.raises(UserError, match="no class has per_class=32 images"):
        tune(config_of(tmp_path, sampler={"batch": 64, "params": {"per_class": 32}}), out, trials=2, folds=2)
    # The ranges leave out what does not fit: then no steps can say how long it takes, and the search goes on.
    told: list[str] = []
    mended = config_of(tmp_path, sampler={"batch": 8, "params": {"per_class": 8}})
    ranges = RATE | ONLY | {"sampler.params.per_class": Range(choices=(2, 4))}
    assert tune(mended, tmp_path / "mended", ranges=ranges, trials=1, folds=2, say=told.append).trials == 1
    assert told == []
    with pytest.raises(UserError, match=r"holds another search .*per_class.*seed: 0 != 1"):
        tune(config, out, trials=2, folds=2, seed=1)
    ((_, text, _),) = succeeded([run_aurank("tune", file, "--list")])
    assert re.search(r"optim\.lr +1e-05 to 0\.03, log +0\.01", text)

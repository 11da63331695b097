"""An adaptation: it keeps what surely helps and nothing else, plans with its time, and goes on after any kill."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from testing.processes import ended, ending_at, run_aurank
from testing.trees import write_image

import aurank
from aurank.commands import adapt, evaluate_model
from aurank.config import dump_config
from aurank.data import READERS
from aurank.embedding.stored.checkpoint import load_checkpoint
from aurank.errors import UserError
from aurank.training import TrainingProfile, read_config

QUICK = ["train.steps=30", "optim.lr=0.01", "train.checkpoint_every=10", "train.validate_every=30"]
# Lines to run before the command, for quick heads.
QUICK_HEADS = f"""
import sys
from aurank.commands import adapt as _
for overrides in sys.modules["aurank.commands.adapt"].HEADS.values():
    overrides += {QUICK}
"""


def write_lit(folder: Path, *, shuffled: bool = False) -> Path:
    """Write photos of one colour a class under light of any strength, which a head learns to leave out.

    Shuffled, the photos of the ten training classes have their names by chance.
    """
    seed = 1 if shuffled else 0  # shuffled by seed 0, a step is kept with p 0.0072: of 20 draws about 1 is
    chance = np.random.default_rng(seed)
    colours = chance.normal(size=(14, 3))
    colours -= colours.mean(axis=1, keepdims=True)
    labels = np.repeat(np.arange(14), 6)
    names = np.concatenate([chance.permutation(labels[:60]), labels[60:]]) if shuffled else labels
    for number, (label, name) in enumerate(zip(labels.tolist(), names.tolist(), strict=True)):
        light, noise = chance.normal() * 40, chance.normal(size=(24, 24, 3)) * 10
        path = folder / ("train" if name < 10 else "test") / f"class{name}" / f"{number}.png"
        write_image(path, (128 + 25 * colours[label] + light + noise).clip(0, 255))
    return folder


def write_config(folder: Path, **sections: Any) -> Path:
    torch.manual_seed(0)
    weights = folder / "network.safetensors"
    save_file(timm.create_model("test_vit", num_classes=0).state_dict(), weights)
    pooled = {"params": {"global_pool": "token"}, "discard_head": True}
    config: dict[str, Any] = {
        "data": {"name": "folder", "root": str(folder), "image_size": 32, "train_transform": {"name": "random_crop"}},
        "sampler": {"batch": 16, "params": {"per_class": 4}},
        "model": {"backbone": "test_vit", "weights": str(weights), "dim": 8, **pooled},
        "loss": {"name": "sup_con", "params": {"temperature": 0.1}},
        "optim": {"lr": 1e-4},
        "train": {"steps": 3, "validate_every": 3, "checkpoint_every": 2},
        "evaluate": {"recall_at": [1]},
    }
    file = folder / "mine.yaml"
    file.write_text(dump_config(read_config(config | sections)), encoding="utf-8")
    return file


def without_times(saved: Any) -> Any:
    """The content of adapt.json but for what a clock says."""
    steps = [{key: step[key] for key in step.keys() - {"expected_seconds", "ms"}} for step in saved["steps"]]
    return json.loads(json.dumps(saved | {"steps": steps, "ms": {}}))


@pytest.fixture(scope="module")
def quick() -> Iterator[Any]:
    module = sys.modules[adapt.__module__]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "HEADS", {name: [*each, *QUICK] for name, each in module.HEADS.items()})
        yield module


@pytest.fixture(scope="module")
def lit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lit(tmp_path_factory.mktemp("lit"))


@pytest.fixture(scope="module")
def adapted(lit: Path, quick: Any) -> tuple[Path, dict[str, Any], list[str]]:
    lines: list[str] = []
    return lit / "out", adapt(str(write_config(lit)), lit / "out", hours=1.0, listener=lines.append), lines


@pytest.mark.slow
def test_a_step_is_kept_if_it_is_surely_better_than_the_best_before_it(adapted: Any) -> None:
    out, saved, lines = adapted
    steps = {step["name"]: step for step in saved["steps"]}
    assert steps["head, SOPRC"]["kept"]
    best = "published"
    for name, step in steps.items():
        if step["folds"] and name != "published":
            assert step["against"] == best
            assert step["kept"] == (step["difference"][1] > 0 and step["p"] < 0.05 / 6)
            best = name if step["kept"] else best
    assert saved["kept"] == best
    assert steps["published"]["bytes"] == 4 * 64
    heading, *plan = lines[: len(steps) + 1]
    assert heading == "Plan for 1.0 hours, by a trial of some batches:"
    assert [line.strip().partition(":")[0] for line in plan] == list(steps)
    assert lines[len(steps) + 1].startswith("  final training on all classes: ")
    assert lines[len(steps) + 2] == "Results on held-out training classes:"
    trainings = [line.partition(":")[0] for line in lines if line.startswith("  fine-tuning on ")]
    assert trainings[:3] == [f"  fine-tuning on fold {fold}, seed 0" for fold in (1, 2, 3)]
    averaged = [line.partition(":")[0] for line in lines if line.startswith("  average of 3 seeds on fold 1")]
    assert averaged == [f"  average of 3 seeds on fold 1, seed {seed}" for seed in (1, 2)]  # 0 was trained before
    names = ("adapt.json", "adapt.html", "best.safetensors", "best.yaml", "features0.npz")
    assert {path.name for path in out.iterdir()} == {*names}
    assert json.loads((out / "adapt.json").read_bytes())["steps"] == json.loads(json.dumps(saved["steps"]))
    start, *_ = saved["steps"]
    ap, queries, classes = (np.concatenate(start[name]) for name in ("ap", "queries", "classes"))
    assert start["mauprc"][0] == pytest.approx(float((ap * queries).sum() / queries.sum()), abs=1e-12)
    assert queries.tolist() == [6] * len(ap)
    assert sorted(classes) == sorted(f"class{number}" for number in range(10))


@pytest.mark.slow
def test_what_is_kept_measures_as_the_page_says_and_its_configuration_repeats_it(adapted: Any, tmp_path: Path) -> None:
    out, saved, _ = adapted
    report = evaluate_model(f"aurank:{out}/best")
    assert report.mauprc == pytest.approx(saved["test"][saved["kept"]][0], abs=1e-12)
    page = (out / "adapt.html").read_text(encoding="utf-8")
    assert f"<b>{report.mauprc:.4f}</b>" in page
    assert "Not tried" not in page
    assert "<th></th>" not in page
    assert re.search(r"84 images of lit\d*, 14 classes; 60 train, 24 test", page)
    assert re.search(r"<code>aurank adapt \S*mine.yaml --out=\S*out --hours=1</code>", page)
    assert f"Made by aurank {version('aurank')}." in page
    step = next(step for step in saved["steps"] if step["name"] == saved["kept"])
    assert 4 * aurank.load(out / "best").encode(np.zeros((9, 9, 3), np.uint8)).size == step["bytes"]
    again = aurank.train(out / "best.yaml", tmp_path / "again", page=False)
    weights = [load_checkpoint(folder / "best.safetensors")["encoder"] for folder in (out, again.out)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in ("head.weight", "head.bias"))


@pytest.mark.slow
def test_killed_five_times_it_ends_the_same(adapted: Any, lit: Path, tmp_path: Path) -> None:
    _, saved, _ = adapted
    words = ("adapt", lit / "mine.yaml", "--hours", 1.0, "--out", tmp_path / "out")
    for at in (4, 20, 60, 100, 45, 10**9):
        ((code, output, complaints),) = ended([run_aurank(*words, setup=QUICK_HEADS + ending_at(at))])
        assert code == (0 if at == 10**9 else -9), complaints
    assert f"kept: {saved['kept']}" in output
    again = json.loads((tmp_path / "out" / "adapt.json").read_bytes())
    assert without_times({key: again[key] for key in saved}) == without_times(saved)
    best = [load_checkpoint(folder / "best.safetensors")["encoder"] for folder in (lit / "out", tmp_path / "out")]
    assert all(torch.equal(value, best[1][name]) for name, value in best[0].items())


@pytest.mark.slow
def test_labels_by_chance_keep_the_published_network(quick: Any, tmp_path: Path) -> None:
    file = write_config(write_lit(tmp_path / "photos", shuffled=True))
    lines: list[str] = []
    saved = adapt(str(file), tmp_path / "out", hours=1.0, listener=lines.append)
    assert saved["kept"] == "published"
    assert list(saved["test"]) == ["published"]
    assert not (tmp_path / "out" / "best.yaml").exists()  # nothing was trained that it could repeat
    assert lines[-1] == "kept: published network, as nothing is surely better"
    assert "Keep the published network" in (tmp_path / "out" / "adapt.html").read_text(encoding="utf-8")
    report = evaluate_model(f"aurank:{tmp_path}/out/best")
    assert report.mauprc == pytest.approx(saved["test"]["published"][0], abs=1e-12)
    again = adapt(str(file), tmp_path / "out", hours=1.0)
    assert json.loads(json.dumps(again)) == json.loads(json.dumps(saved))  # it had ended


Plan = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture
def plan(quick: Any, lit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Plans with an image of 0.01 and a training step of 10 seconds, and does nothing."""
    phases = {"data": 0.08, "forward": 0.08, "backward": 9.84}
    profile = TrainingProfile("cpu", 0, "images", 16.0, 2, phases)

    def planned(hours: float, **options: Any) -> dict[str, dict[str, Any]]:
        saved = adapt(str(write_config(lit)), tmp_path / f"{hours}", hours=hours, **options)
        return {step["name"]: step for step in saved["steps"]}

    monkeypatch.setattr(quick, "profile_training", lambda *_, **__: profile)
    for name in ("run", "conclude"):
        monkeypatch.setattr(quick._Search, name, lambda *_: None)
    monkeypatch.setattr(quick, "render", lambda *_, **__: "")
    return planned


def test_the_time_decides_how_many_folds_a_step_is_tried_on(plan: Plan) -> None:
    folds = {hours: {name: step["folds"] for name, step in plan(hours).items()} for hours in (0.02, 0.04, 0.1)}
    assert folds[0.02] == {
        **dict.fromkeys(("published", "centred", "whitened"), 3),
        "head, SOPRC": 3, "head, SupCon": 3, "LoRA": 0, "fine-tuning": 0, "average of 3 seeds": 0,
    }  # fmt: skip
    assert [*folds[0.04].values()][-3:] == [1, 1, 0]
    assert [*folds[0.1].values()][-3:] == [3, 3, 0]


def test_what_is_not_tried_for_lack_of_time_says_which_hours_are_enough(plan: Plan) -> None:
    hours = []
    for name in ("LoRA", "fine-tuning", "average of 3 seeds"):
        step = plan(0.02)[name]
        said = r"for lack of time: --hours (\d+\.\d\d) is enough, with the final training"
        match = re.fullmatch(said, step["reason"])
        assert match is not None
        hours.append(float(match[1]) + 0.01)  # the features are timed anew
        assert plan(hours[-1])[name]["folds"] > 0
    assert hours == sorted(hours)
    assert plan(hours[0])["average of 3 seeds"]["folds"] == 0


def test_networks_to_choose_from_are_named_with_commas_between_them(plan: Plan) -> None:
    both = "timm:test_vit,pretrained=false,input_size=32,timm:test_resnet,pretrained=false,input_size=32"
    names = list(plan(1.0, backbones=both))
    assert names[:2] == ["published", "published, timm:test_resnet,pretrained=false,input_size=32"]


def test_what_cannot_be_adapted_is_refused(lit: Path, tmp_path: Path, plan: Plan) -> None:
    with pytest.raises(UserError, match=r"--hours 1e-09 is too short for one step: the features need "):
        plan(1e-9)
    assert not (tmp_path / "1e-09").exists()
    plan(1.0)
    file, before = str(lit / "mine.yaml"), tmp_path / "1.0"
    steps = (1.0, ["train.steps=7"], r"train\.steps: 3 != 7")
    for hours, overrides, another in ((2.0, [], r"hours: 1\.0 != 2\.0"), steps):
        with pytest.raises(UserError, match=rf"holds an adaptation with another {another} \(saved != given\): name"):
            adapt(file, before, overrides, hours=hours)
    assert adapt(file, before, ["data.workers=1"], hours=1.0)["kept"] == "published"  # which changes no result
    with pytest.raises(UserError, match="takes images of classes"):
        adapt("grocery_unlabelled/isogclr", tmp_path / "views")
    few = READERS["digits"](None)
    with pytest.raises(UserError, match="too few training classes"):
        adapt(few.select(few.labels < 3), tmp_path / "few")

"""The average of several models: its numbers, that it is a model as any other, and what it refuses or doubts."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from testing.runs import pairs_config, tiny_config, trainer_of, write_table
from testing.trees import write_tree
from torch import Tensor

import aurank
from aurank.commands import evaluate_model, evaluate_pairs, export_model
from aurank.embedding import ImageSelection
from aurank.embedding.build import build_encoder, with_preprocessing
from aurank.embedding.stored.checkpoint import load_checkpoint, save_checkpoint
from aurank.errors import AurankWarning, UserError
from aurank.training import read_config

IMAGES = torch.rand(5, 1, 16, 16, generator=torch.Generator().manual_seed(0))


def moved(state: dict[str, Tensor], seed: int, by: float = 0.01) -> dict[str, Tensor]:
    """Weights as after another training from the same start: what is trained is a little elsewhere."""
    random = torch.Generator().manual_seed(seed)
    fixed = ("running_mean", "running_var", "num_batches_tracked")
    return {
        name: value if name.endswith(fixed) else value + by * torch.randn(value.shape, generator=random)
        for name, value in state.items()
    }


def save(folder: Path, seed: int, *, by: float = 0.01, manifest: str = "m", **sections: Any) -> Path:
    """Write best.safetensors of a run of that seed, of a small network that began at weights of a file."""
    sections["model"] = {"freeze_batch_norm": True, "weights": "w.safetensors", **sections.get("model", {})}
    config = read_config({**tiny_config(**sections), "seed": seed})
    config = with_preprocessing(config, with_preprocessing(read_config(tiny_config())))
    torch.manual_seed(0)
    state = build_encoder(config.model, channels=config.data.channels, load=False).state_dict()
    content = {"config": config.model_dump(mode="json"), "manifest": manifest, "data": {"sizes": "1"}}
    content |= {"progress": {"step": 10 * seed}, "tokeniser": None, "encoder": moved(state, seed, by), "average": None}
    save_checkpoint(folder / "best.safetensors", content)
    return folder


@contextmanager
def changing(folder: Path) -> Iterator[dict[str, Any]]:
    content = load_checkpoint(folder / "best.safetensors")
    yield content
    save_checkpoint(folder / "best.safetensors", content)


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    return [save(tmp_path / name, seed) for name, seed in (("one", 1), ("two", 2))]


def weights(folder: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = load_checkpoint(folder / "best.safetensors")["encoder"]
    return found


def embeddings(module: torch.nn.Module, images: Tensor = IMAGES) -> Tensor:
    with torch.inference_mode():
        found: Tensor = module.eval()(images)
    return found


def mean_of(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean by hand, of float32 weights."""
    return {
        name: (sum(state[name].double() for state in states) / len(states)).to(value.dtype)
        if value.is_floating_point()
        else value
        for name, value in states[0].items()
    }


def test_the_mean_is_rounded_once_and_counters_are_the_first_models(two, tmp_path):
    random = torch.Generator().manual_seed(0)
    states = []
    for folder, count in zip(two, (7, 9), strict=True):
        with changing(folder) as content:
            half = (100 * torch.randn(50, generator=random)).half()
            content["encoder"] |= {"half": half, "same": torch.full((5,), 0.1), "count": torch.tensor(count)}
            states.append(content["encoder"])
    found = load_checkpoint(aurank.average_models(two, tmp_path / "average"))["encoder"]
    for at in range(50):
        exact = sum(float(state["half"][at]) for state in states) / 2
        assert found["half"][at] == torch.tensor(exact, dtype=torch.float64).half()
    assert found["same"].equal(states[0]["same"])
    assert int(found["count"]) == 7
    assert [value.dtype for value in found.values()] == [states[0][name].dtype for name in found]


def test_an_average_is_loaded_as_a_run_is_and_says_of_what_it_is(two, tmp_path):
    best = aurank.average_models([two[0], f"aurank:{two[1]}/best"], tmp_path / "average")
    assert best == tmp_path / "average/best.safetensors"
    by_hand = aurank.load(two[0]).module
    by_hand.load_state_dict(mean_of([weights(folder) for folder in two]))
    for name in (best, best.parent, best.parent / "best"):
        assert embeddings(aurank.load(name).module).equal(embeddings(by_hand))
    content = load_checkpoint(best)
    assert [(one["config"]["seed"], one["step"]) for one in content["average_of"]] == [(1, 10), (2, 20)]
    assert content["config"] == load_checkpoint(two[0] / "best.safetensors")["config"]
    assert (content["manifest"], content["data"]) == ("m", {"sizes": "1"})
    again = aurank.average_models([best.parent, two[0]], tmp_path / "again")
    with pytest.raises(UserError, match=r"weights only|no aurank run"):
        aurank.train(tiny_config(), again.parent, resume=True)


def test_the_moving_average_is_taken_where_there_is_one(two, tmp_path):
    with changing(two[0]) as content:
        content["average"] = {"updates": 5, "values": moved(content["encoder"], 9)}
    found = load_checkpoint(aurank.average_models(two, tmp_path / "average"))
    expected = mean_of([content["average"]["values"], weights(two[1])])
    assert all(found["encoder"][name].equal(value) for name, value in expected.items())
    assert found["average"] is None


@pytest.mark.slow
def test_two_towers_are_averaged_as_one(tmp_path):
    write_table(tmp_path)
    settings = {"weights": "w.safetensors", "freeze_batch_norm": True}
    runs = []
    trainer = trainer_of(pairs_config(tmp_path))
    for seed in (3, 4):
        config = read_config({**pairs_config(tmp_path, model=settings), "seed": seed})
        config = with_preprocessing(config, trainer.config)
        content = {"config": config.model_dump(mode="json"), "manifest": "m", "data": None, "progress": {}}
        content |= {"tokeniser": trainer.task.state_dict(), "average": None}
        runs.append(tmp_path / str(seed))
        save_checkpoint(runs[-1] / "best.safetensors", {**content, "encoder": moved(trainer.model.state_dict(), seed)})
    best = aurank.average_models(runs, tmp_path / "average")
    model, *_ = aurank.load_pairs(best)
    expected = mean_of([weights(run) for run in runs])
    assert all(value.equal(expected[name]) for name, value in model.state_dict().items())
    notes = evaluate_pairs(f"aurank:{best}").two_way["all"].image_to_text.notes
    assert any(f"average of {runs[0]} (seed 3), {runs[1]} (seed 4)" in note for note in notes)
    with changing(runs[1]) as content:
        content["tokeniser"] = {**content["tokeniser"], "merges": content["tokeniser"]["merges"][:-1]}
    with pytest.raises(UserError, match="they learnt other tokens"):
        aurank.average_models(runs, tmp_path / "other")


def test_reports_and_cards_tell_of_the_average(two, tmp_path):
    best = aurank.average_models(two, tmp_path / "average")
    write_tree(tmp_path / "photos", [f"class{place % 2}/{place}.png" for place in range(6)])
    few = ImageSelection(f"folder:{tmp_path / 'photos'}", overrides=["data.odd_classes=keep"])
    report = evaluate_model(f"aurank:{best}", few)
    assert f"the weights are the average of {two[0]} (seed 1), {two[1]} (seed 2)" in report.notes
    export_model(f"aurank:{best}", "hf", tmp_path / "out", images=few)
    card = (tmp_path / "out/README.md").read_text(encoding="utf-8")
    assert "the weights are the average of 2 models: seed 1, seed 2; the lines above are of the first" in card
    assert str(tmp_path) not in card + json.dumps(json.loads((tmp_path / "out/export.json").read_text("utf-8")))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": {"dim": 4}}, r"model\.dim: 8 != 4"),
        ({"model": {"head_layers": 2, "pooling": "max"}}, r"model\.head_layers: 1 != 2"),
        ({"data": {"image_size": 24}}, r"data\.image_size: 16 != 24"),
        ({"data": {"test_transform": {"name": "center", "params": {}}}}, r"data\.test_transform\.name"),
    ],
)
def test_models_that_differ_in_more_than_training_are_refused(changes, named, two, tmp_path):
    with pytest.raises(UserError, match=named):
        aurank.average_models([two[0], save(tmp_path / "other", 3, **changes)], tmp_path / "average")
    assert not (tmp_path / "average").exists()


def test_adapters_are_refused(two, tmp_path):
    with changing(two[1]) as content:
        content["config"]["model"]["lora"] = {"rank": 2, "targets": ["fc"]}
    with pytest.raises(UserError, match=r"two has adapters \(model\.lora\)"):
        aurank.average_models(two, tmp_path / "average")


def test_what_acts_in_training_alone_may_differ(two, tmp_path):
    changes = {"channels_last": True, "params": {"drop_rate": 0.3}, "freeze": ["conv1"], "freeze_batch_norm": False}
    aurank.average_models([two[0], save(tmp_path / "other", 3, model=changes)], tmp_path / "average")


@pytest.mark.parametrize(
    ("models", "out", "named"),
    [
        ([], "average", "got none"),
        (["one"], "average", "two different models or more, got .*one"),
        (["one", "two", "one/best.safetensors"], "average", "two different models or more"),
        (["one", "."], "average", "no checkpoint at .*best"),
        (["one", "two"], "one", r"one.best\.safetensors exists already"),
    ],
)
def test_too_few_models_and_folders_in_use_are_refused(models, out, named, two, tmp_path):
    with pytest.raises(UserError, match=named):
        aurank.average_models([tmp_path / model for model in models], tmp_path / out)


@pytest.mark.parametrize("part", ["backbones", "projections"])
def test_models_that_began_elsewhere_are_told(part, two, tmp_path):
    with changing(two[1]) as content:
        for name, value in content["encoder"].items():
            if value.is_floating_point() and name.startswith("head") == (part == "projections"):
                content["encoder"][name] = torch.randn(value.shape)
    message = rf"the {part} of {two[0]} and {two[1]} have a cosine of -?0\.\d\d: .* begin all at one network"
    with pytest.warns(AurankWarning, match=message) as told:
        aurank.average_models(two, tmp_path / "average")
    assert len(told) == 1
    if part == "projections":
        for folder in two:
            with changing(folder) as content:
                content["config"]["model"]["discard_head"] = True
        aurank.average_models(two, tmp_path / "without")  # the projection is for training alone

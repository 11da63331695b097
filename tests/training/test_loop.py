import json
import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from testing.galleries import broken_photos
from testing.runs import records, tiny_config, train_and_listen, trainer_of

import aurank
from aurank.commands import embed_model, evaluate_model
from aurank.data import view_keys
from aurank.data.decode import decode
from aurank.embedding import ImageSelection
from aurank.embedding.build import build_dataset, build_encoder, fill_preprocessing
from aurank.embedding.embed import embed
from aurank.embedding.stored.checkpoint import load_checkpoint
from aurank.errors import AurankError, UserError
from aurank.models import Encoder
from aurank.training.build import build_splits
from aurank.training.components import read_config
from aurank.training.state import seed_everything
from aurank.training.trainer import build_trainer
from aurank.training.watch import collapse_signs


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    aurank.train(tiny_config("smooth_ap", optim={"lr": 1e-2}, train={"steps": 60, "validate_every": 20}), out)
    return out


@pytest.mark.slow
def test_a_short_run_learns_and_leaves_every_promised_file(trained):
    names = {path.name for path in trained.iterdir()}
    measured = {"report.json", "per_query.parquet", "per_class.csv", "report.html"}
    assert names == {"config.yaml", "metrics.jsonl", "last.safetensors", "best.safetensors", "timing.json", *measured}
    assert {"finished", "command"} < json.loads((trained / "timing.json").read_text(encoding="utf-8")).keys()
    losses = [record["loss"] for record in records(trained, "train")]
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])
    splits = build_splits(read_config(tiny_config()))
    data = build_dataset(fill_preprocessing(read_config(tiny_config())).data, splits.test, train=False)
    untrained = embed(build_encoder(read_config(tiny_config()).model, channels=1), data).evaluate()
    report = aurank.Report.load(trained / "report.json")
    assert report.mauprc > untrained.mauprc + 0.02  # 0.034 seen
    assert json.loads((trained / "report.json").read_text(encoding="utf-8"))["metrics"]["mauprc"] == report.mauprc


def test_best_is_the_step_of_the_highest_validation(trained):
    values = {record["step"]: record["mauprc"] for record in records(trained, "val")}
    assert list(values) == [20, 40, 60]
    best = load_checkpoint(trained / "best.safetensors")["progress"]
    assert best["step"] == max(values, key=lambda step: values[step])
    assert best["best"]["mauprc"] == max(values.values())


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_the_loaded_model_gives_the_reported_numbers(request, tmp_path, precision):
    trained = tmp_path / "run"
    if precision == "no":
        trained = request.getfixturevalue("trained")
    else:
        # No convolution: oneDNN's bfloat16 gradient of one with stride 2 on a map of one pixel reads unwritten memory.
        model = {"backbone": "test_vit", "params": {"img_size": 16}}
        aurank.train(tiny_config(model=model, train={"steps": 3, "mixed_precision": precision}), trained)
    report = aurank.Report.load(trained / "report.json")
    config = read_config(tiny_config())
    image_model = aurank.load(trained / "best")
    model, transform = image_model.module, image_model.transform
    manifest = build_splits(config).test
    images = torch.stack([transform(decode(manifest.source, path, 1), None) for path in manifest.paths[:8]])
    whole = embed_model(f"aurank:{trained}/best")
    with torch.inference_mode():
        torch.testing.assert_close(model(images), torch.from_numpy(whole.embeddings[:8]), rtol=1e-4, atol=1e-5)
    again = evaluate_model(f"aurank:{trained}/best")
    assert again.metrics == report.metrics
    best = load_checkpoint(trained / "best.safetensors")["progress"]["best"]
    validation = evaluate_model(f"aurank:{trained}/best", ImageSelection(split="val"))
    assert best == {"step": best["step"], **validation.metrics}
    whole.save(tmp_path / "saved.npz")
    assert evaluate_model(f"embeddings:{tmp_path / 'saved.npz'}").mauprc == report.mauprc


@pytest.mark.slow
def test_accumulated_gradients_are_the_mean_of_their_batches(tmp_path, monkeypatch):
    """Two accumulated batches move the weights as one step along the mean of their gradients (SGD, one step)."""
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "3")  # which is of other programs
    config = tiny_config(
        "smooth_ap",
        optim={"name": "sgd", "lr": 0.1, "weight_decay": 0.0, "warmup_steps": 0, "schedule": {"name": "constant"}},
        model={"params": {}, "freeze_batch_norm": True},
        train={"steps": 1, "accumulate": 2, "validate_every": 1, "checkpoint_every": 1},
    )
    aurank.train(config, tmp_path / "out")
    seed_everything(config["seed"])
    trainer = trainer_of(config)
    position = trainer.sampler.iterate(0, 0)
    for _ in range(2):
        epoch, _, rows = next(position)
        batch = trainer.train_data.__getitems__(view_keys(rows, epoch))
        embeddings = trainer.model(trainer.train_data.to_input(batch.image))
        (trainer.loss(embeddings, batch.label) / 2).backward()
    momentum_step = 0.1 * 1.9  # Nesterov's first step moves by (1 + momentum) times the gradient
    final = load_checkpoint(tmp_path / "out" / "last.safetensors")["encoder"]
    for name, parameter in trainer.model.named_parameters():
        if parameter.grad is not None:
            moved = parameter.detach() - momentum_step * parameter.grad
            torch.testing.assert_close(final[name], moved, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("accumulate", "memory", "views", "late"), [(1, None, 1, False), (2, {"size": 70}, 2, False), (1, None, 1, True)]
)
def test_a_loss_that_is_not_finite_stops_the_run_names_the_images_and_keeps_the_last_checkpoint(
    tmp_path, monkeypatch, accumulate, memory, views, late
):
    """Late: numbers are looked at every so many steps, as on a GPU."""
    if late:
        monkeypatch.setattr("aurank.training.watch.READ_AT_ONCE", ())
    original, calls = Encoder.forward, list[bool]()

    def poisoned(self: Encoder, images: torch.Tensor) -> torch.Tensor:
        calls.append(self.training)
        return original(self, images * float("nan") if sum(calls) == 3 * accumulate else images)

    monkeypatch.setattr(Encoder, "forward", poisoned)
    train = {"accumulate": accumulate, "validate_every": 100, "ema": 0.5}
    train |= {"checkpoint_every": 100, "log_every": 6} if late else {"checkpoint_every": 1}
    config = tiny_config(train=train, data={"views": views}) | {"memory": memory}
    place, kept = f"epoch 0, batch {3 * accumulate - 1}", 0 if late else 2
    said = rf"the loss is nan at step 3 \({place}\).* weights of step {kept} in .*optim\.lr"
    with pytest.raises(AurankError, match=said) as caught:
        aurank.train(config, tmp_path / "out")
    assert not isinstance(caught.value, UserError)
    assert sum(calls) == (6 if late else 3 * accumulate)
    record = json.loads((tmp_path / "out" / "diverged.json").read_text(encoding="utf-8"))
    assert (record["step"], record["batch"], record["loss"]) == (3, 3 * accumulate - 1, "nan")
    assert 8 <= len(record["paths"]) <= 16
    state = load_checkpoint(tmp_path / "out" / "last.safetensors")
    assert state["progress"]["step"] == kept
    assert all(value.isfinite().all() for value in state["encoder"].values())


@pytest.mark.slow
def test_a_network_that_collapses_is_told_as_such(tmp_path):
    with pytest.raises(AurankError, match=r"has collapsed: of \d+ embeddings \d+ are all zeros .* lower optim.lr"):
        aurank.train(tiny_config(optim={"lr": 1e3, "warmup_steps": 0}, train={"validate_every": 2}), tmp_path / "run")


@pytest.mark.slow
def test_a_weight_average_is_what_is_measured_and_loaded(tmp_path):
    result = aurank.train(tiny_config(train={"steps": 4, "ema": 0.5, "trackers": ["tensorboard"]}), tmp_path / "out")
    state = load_checkpoint(tmp_path / "out" / "best.safetensors")
    model = aurank.load(tmp_path / "out" / "best").module
    weight = model.state_dict()["head.weight"]
    assert torch.equal(weight, state["average"]["values"]["head.weight"])
    assert not torch.equal(weight, state["encoder"]["head.weight"])
    assert evaluate_model(f"aurank:{tmp_path}/out/best").metrics == result.report.metrics  # type: ignore[union-attr]
    assert list((tmp_path / "out").rglob("events.out.tfevents.*"))


def test_collapse_shows_in_similarity_and_rank():
    collapsed = collapse_signs(torch.ones(8, 4) / 2)
    assert collapsed["mean_similarity"] == pytest.approx(1.0)
    assert collapsed["effective_rank"] == pytest.approx(1.0, abs=1e-3)
    spread = collapse_signs(torch.eye(4))
    assert spread["mean_similarity"] == pytest.approx(0.0, abs=1e-6)
    assert spread["effective_rank"] == pytest.approx(4.0, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "params", "refused"),
    [
        ({}, {}, r"for 16 pixels .*image_size"),
        ({"image_size": [16, 32], "resize": "pad"}, {}, r"for \[16, 32\] pixels .*image_size"),
        ({"image_size": [16, 32], "resize": "pad"}, {"img_size": [16, 32]}, None),
    ],
)
def test_a_size_that_the_backbone_cannot_take_is_refused_with_the_remedy(data, params, refused):
    config = read_config(tiny_config(data=data, model={"backbone": "vit_tiny_patch16_224", "params": params}))
    with nullcontext() if refused is None else pytest.raises(UserError, match=refused):
        build_trainer(config)


@pytest.mark.slow
def test_a_resumed_run_needs_no_first_weights(trained, tmp_path):
    source = tmp_path / "first.pt"
    shutil.copy(trained / "best.safetensors", source)
    config = tiny_config("smooth_ap", model={"init_from": str(source)}, train={"steps": 3})
    first = aurank.train(config, tmp_path / "out")
    source.unlink()
    again = aurank.train(config, tmp_path / "out", resume=True)
    assert again.report.metrics == first.report.metrics
    with pytest.raises(UserError, match="no checkpoint at"):
        aurank.train(config, tmp_path / "new")


def test_what_measures_is_tried_before_the_first_step(tmp_path, monkeypatch):
    monkeypatch.setattr("aurank.embedding.embedded.evaluate", Mock(side_effect=AurankError("no kernel")))
    with pytest.raises(AurankError, match="no kernel"):
        aurank.train(tiny_config(), tmp_path / "out")
    assert not (tmp_path / "out" / "metrics.jsonl").exists()


@pytest.mark.filterwarnings("ignore:no query of the batch")
@pytest.mark.slow
def test_a_run_passes_over_batches_of_fewer_than_two_images_and_tells_what_it_skipped(tmp_path):
    """Whether images are kept in memory or read by workers changes neither."""
    config = broken_photos(tmp_path / "photos")
    logs = set()
    for name, data in {"a": {"workers": 2, "cache": "0"}, "b": {}}.items():
        result, events = train_and_listen({**config, "data": {**config["data"], **data}}, tmp_path / name)
        told = {kind: values[-1]["skipped"] for kind, values in events.items() if "skipped" in values[-1]}
        assert result.steps == 12
        assert result.skipped == {"train": 8, "validation": 1, "test": 1}
        assert told == {"step": 8, "validation": 1, "tested": 1}
        logs.add((tmp_path / name / "metrics.jsonl").read_bytes())
    assert len(logs) == 1


@pytest.mark.filterwarnings("ignore:no query of the batch")
def test_a_training_set_without_readable_images_ends_the_run(tmp_path):
    config = broken_photos(tmp_path / "photos")
    config["data"]["cache"] = "0"
    for path in (tmp_path / "photos" / "train").rglob("*.png"):
        path.write_bytes(b"broken")
    with pytest.raises(UserError, match=r"no batch of a whole epoch of photos has two readable images \(16 of 16"):
        aurank.train(config, tmp_path / "out")


@pytest.mark.slow
def test_compiled_cached_accumulated_channels_last_and_in_half_precision_it_is_the_same_gradient():
    script = Path(__file__).parents[1] / "testing" / "compiled_training.py"
    paths = os.pathsep.join(str(path) for path in (script.parents[2], script.parents[1]))
    environment = {**os.environ, "PYTHONPATH": paths}
    run = subprocess.run([sys.executable, script, "aot_eager"], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    away = json.loads(run.stdout)
    assert away["all in float32"] < 1e-5
    assert away["all in bfloat16"] < 2 * away["bfloat16 alone"] < 0.04

"""Training on pairs of images and texts from a configuration: what is compared, measured, saved and resumed."""

import json
import os
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from testing.processes import Shell
from testing.runs import EXACT, assert_equal, pairs_config, records, trainer_of, write_config, write_table
from torch import Tensor, nn

import aurank
from aurank.commands import RunOptions, evaluate_model, evaluate_pairs
from aurank.embedding import ImageSelection
from aurank.embedding.stored.checkpoint import load_checkpoint, save_checkpoint
from aurank.errors import UserError
from aurank.evaluation.two_way import TwoWayReport
from aurank.losses import SogCLRLoss
from aurank.training import load_pairs, read_config, rehearse
from aurank.training.build import build_splits

LARGER = {"backbone": "resnet10t"}  # which learns in a few steps


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    write_table(folder)
    return folder


@pytest.fixture(scope="module")
def trained(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, aurank.TrainResult]:
    out = tmp_path_factory.mktemp("trained") / "run"
    return out, aurank.train(pairs_config(root, model=LARGER, train={"steps": 40, "validate_every": 20}), out)


@pytest.mark.slow
def test_a_run_learns_both_ways_and_measures_all_pairs_and_each_group(trained):
    out, result = trained
    assert list(result.two_way) == ["all", "seen_texts", "new_texts", "new_classes"]
    seen = result.two_way["seen_texts"]
    for direction, recall in seen.recall.items():
        assert recall[1] > 2 * seen.chance[direction][1]
    for name, report in result.two_way.items():
        assert TwoWayReport.load(out / "two_way" / name).metrics == report.metrics
        assert "best weights, of step" in report.image_to_text.notes[-1]
    assert result.two_way["all"].image_to_text.num_queries == 6 * 6 + 2 * 16
    assert result.two_way["new_classes"].image_to_text.num_queries == 2 * 16 + 2 * 6  # with those of validation
    assert result.report.num_queries == 6 * 6 + 2 * 16
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    measured = [line for line in lines if line["split"] == "val"]
    assert result.best["mean_recall"] == max(line["mean_recall"] for line in measured)


def test_the_loss_is_of_images_and_of_the_texts_of_the_same_rows_both_ways(root):
    trainer = trainer_of(pairs_config(root))
    trainer.model.eval()
    rows = [17, 3, 39, 8, 9, 21]
    batch = trainer.train_data.__getitems__(rows)
    embeddings, value = trainer.forward(batch)
    texts = trainer.train_data.manifest.texts
    module: Any = trainer.model
    tokens = trainer.task.towers.tokenise([texts[row] for row in rows])  # type: ignore[union-attr]
    images, others = module.encode_image(trainer.train_data.to_input(batch.image)), module.encode_text(tokens)
    torch.testing.assert_close(embeddings, images)
    loss = SogCLRLoss(len(trainer.train_data), two_way=True)
    ids = torch.tensor(rows)
    expected = loss(images, batch.label, ref_emb=others, ref_labels=batch.label, ids=ids, ref_ids=ids)
    torch.testing.assert_close(value, expected)
    state: Any = trainer.loss
    assert (state.log_u != 0).any(dim=0).nonzero().flatten().tolist() == sorted(rows)


def test_every_parameter_of_both_towers_is_optimised_once_and_heads_by_their_own_rate(root):
    trainer = trainer_of(pairs_config(root, optim={"head_lr_multiplier": 7.0}))
    groups = {group["name"]: group for group in trainer.optimiser.param_groups}
    held = [id(parameter) for group in groups.values() for parameter in group["params"]]
    assert sorted(held) == sorted(id(parameter) for parameter in trainer.model.parameters())
    heads = {name for name, parameter in trainer.model.named_parameters()
             if any(parameter is one for key in groups if "head" in key for one in groups[key]["params"])}  # fmt: skip
    assert heads == {"image.head.weight", "image.head.bias", "text.head.weight"}
    assert groups["head"]["lr_multiplier"] == 7.0


@pytest.mark.slow
def test_an_interrupted_run_resumes_bit_for_bit(root, tmp_path):
    """With a temperature that is learnt, a moving average, and a tokeniser that is not learnt anew."""
    train = {"steps": 6, "accumulate": 2, "ema": 0.8, "validate_every": 2}
    config = pairs_config(root, "clip", train=train, optim={"temperature_lr": 0.01})

    def interrupt(kind: str, values: dict[str, Any]) -> None:
        if kind == "step" and values["step"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    aurank.train(config, tmp_path / "whole")
    stopped = aurank.train(config, tmp_path / "stopped", listener=interrupt)
    assert (stopped.steps, stopped.two_way) == (3, {})
    aurank.train(config, tmp_path / "stopped", resume=True)
    for name in ("last.safetensors", "best.safetensors"):
        states = [load_checkpoint(tmp_path / out / name) for out in ("whole", "stopped")]
        assert_equal(*states, ignore=("python",))
    assert states[0]["tokeniser"]["length"] == 12
    for name in ("metrics.jsonl", "report.json", "two_way/all/two_way.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "stopped" / name).read_bytes()
    value = load_checkpoint(tmp_path / "whole" / "last.safetensors")["loss"]["temperature.parameter"].exp()
    assert records(tmp_path / "whole", "train")[-1]["temperature"] == pytest.approx(float(value))


@pytest.mark.slow
def test_cached_gradients_train_the_weights_of_plain_ones(root, tmp_path):
    states = []
    for name, micro_batch in (("plain", None), ("cached", 5)):
        train = {"steps": 3, "accumulate": 2, "micro_batch": micro_batch}
        aurank.train(pairs_config(root, "clip", **EXACT, train=train), tmp_path / name)
        states.append(load_checkpoint(tmp_path / name / "last.safetensors"))
    for part in ("encoder", "loss"):
        torch.testing.assert_close(states[1][part], states[0][part], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_trained_pair_is_an_image_encoder_for_all_that_takes_images(root, tmp_path, trained):
    out, result = trained
    assert evaluate_model(f"aurank:{out}/best").metrics == pytest.approx(result.report.metrics)
    image_model = aurank.load(out / "best")
    encoder, transform = image_model.module, image_model.transform
    towers, tokenise, same = load_pairs(out / "best")
    image = np.asarray(Image.open(root / "red0.png"))
    with torch.inference_mode():
        mine, theirs = encoder(transform(image)[None]), towers.encode_image(same(image)[None])
        assert torch.equal(mine, theirs)
        similarity = theirs @ towers.encode_text(tokenise(["a red square", "a green square"])).T
    assert similarity[0, 0] > similarity[0, 1]
    started = trainer_of(pairs_config(root, model={**LARGER, "init_from": str(out / "best")}))
    assert_equal(started.task.encoder.state_dict(), encoder.state_dict(), ignore=())


@pytest.mark.slow
def test_the_command_pairs_measures_as_training_did_and_classifies_by_names(
    root, tmp_path, trained, monkeypatch, capsys
):
    out, result = trained
    monkeypatch.setenv("AURANK_CACHE", str(tmp_path / "cache"))
    command = ("pairs", "--model", f"aurank:{out}/best", "--out", tmp_path, "--prompt", "a {} square")
    printed, _ = Shell(monkeypatch, capsys).done(*command)
    for name, report in result.two_way.items():
        assert TwoWayReport.load(tmp_path / "two_way" / name).metrics == pytest.approx(report.metrics)
        assert f"two-way retrieval, {name.replace('_', ' ')}\n" in printed
    zero_shot = json.loads((tmp_path / "zero_shot.json").read_text(encoding="utf-8"))
    assert zero_shot["metrics"]["recall@1"] > 0.3
    assert "zero-shot: 8 classes by 1 prompt each" in printed
    assert printed.count("manifest ") == 1
    table = (root / "pairs.csv").read_text(encoding="utf-8")
    (root / "others.csv").write_text(table.replace("train", "val"), encoding="utf-8")
    others = ImageSelection(data=f"table:{root}/others.csv")
    assert list(evaluate_pairs(f"aurank:{out}/best", others).two_way) == list(result.two_way)
    (root / "pairs.csv").write_text(table.replace("square", "rectangle"), encoding="utf-8")
    try:
        found = evaluate_pairs(f"aurank:{out}/best", others)
    finally:
        (root / "pairs.csv").write_text(table, encoding="utf-8")
    assert list(found.two_way) == ["all"]  # the table of training is another: nothing is known of what it has seen
    with pytest.raises(UserError, match="pairs need both encoders"):
        evaluate_pairs("timm:resnet10t")


@pytest.mark.slow
def test_captions_without_labels_are_measured_both_ways_alone_and_said_to_be_written(tmp_path, monkeypatch, capsys):
    """An image in several rows has several labels, so there is nothing that images could be compared by."""
    write_table(tmp_path, labelled=False, captions=2)
    content = pairs_config(tmp_path, data={"validation_fraction": 0}, train={"steps": 3})
    config = write_config(tmp_path, content)
    printed, _ = Shell(monkeypatch, capsys).done("train", config, "--out", tmp_path / "out")
    assert printed.count("two-way retrieval, ") == 3
    assert "images with each other" not in printed
    assert "images and texts, seen_texts" in (tmp_path / "out" / "report.html").read_text("utf-8")
    assert printed.endswith(f"written to {tmp_path / 'out'}\n")
    assert not (tmp_path / "out" / "report.json").exists()
    with pytest.raises(UserError, match="has images with several labels"):
        evaluate_model(f"aurank:{tmp_path}/out/best")
    assert evaluate_pairs(f"aurank:{tmp_path}/out/best").zero_shot is None


@pytest.mark.parametrize("train_labels", ["class", "image"])
def test_without_a_text_model_an_image_stands_once_in_every_split(tmp_path, train_labels):
    write_table(tmp_path, captions=2)
    data = {"train_labels": train_labels, "views": 2}
    config = read_config(pairs_config(tmp_path, model={"text": None}, data=data))
    splits = build_splits(config)
    with_texts = build_splits(config.model_copy(update={"model": read_config(pairs_config(tmp_path)).model}))
    assert splits.manifest.sha256 == with_texts.manifest.sha256
    for name in ("train", "val", "test"):
        pairs, once = getattr(with_texts, name), getattr(splits, name)
        assert once.paths == tuple(dict.fromkeys(pairs.paths))
        assert len(once) == len(pairs) // 2


class Clip(nn.Module):
    """A text model with a parameter that no text depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(200, 6)
        self.logit_scale = nn.Parameter(torch.ones(()))

    def encode_text(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens).mean(1)


@pytest.mark.slow
def test_a_text_model_of_another_library_is_trained_with_its_own_tokens(root, tmp_path, monkeypatch):
    def tokenise(texts: list[str]) -> Tensor:
        return torch.tensor([[1 + ord(letter) for letter in text.ljust(20)[:20]] for text in texts])

    fetched: list[str | None] = []
    library = ModuleType("open_clip")
    vars(library).update(
        create_model=lambda model, pretrained, **_: fetched.append(pretrained) or Clip(),
        get_tokenizer=lambda model: tokenise,
        list_pretrained=lambda: [("ViT-B-32", "laion2b")],
    )
    monkeypatch.setitem(sys.modules, "open_clip", library)
    config = pairs_config(root, model={"text": {"name": "open_clip:ViT-B-32,pretrained=laion2b"}}, train={"steps": 3})
    trainer = trainer_of(config)
    frozen = [name for name, parameter in trainer.model.named_parameters() if not parameter.requires_grad]
    assert frozen == ["text.model.model.logit_scale"]
    result = aurank.train(config, tmp_path / "out")
    checkpoint = load_checkpoint(tmp_path / "out" / "last.safetensors")
    assert checkpoint["tokeniser"] is None
    started = trainer.model.state_dict()["text.model.model.embedding.weight"]
    assert not torch.equal(checkpoint["encoder"]["text.model.model.embedding.weight"], started)
    fetched.clear()
    found = evaluate_pairs(f"aurank:{tmp_path}/out/best")
    assert found.two_way["all"].metrics == pytest.approx(result.two_way["all"].metrics)
    assert fetched == [None]  # the published weights would be written over


@pytest.fixture
def best(trained: tuple[Path, aurank.TrainResult]) -> Path:
    return trained[0] / "best.safetensors"


@pytest.mark.slow
def test_pairs_are_drawn_and_their_images_embedded_once_for_all_commands(best, tmp_path):
    told: list[tuple[str, int, int]] = []
    said: list[str] = []
    running = RunOptions(batch=50, cache=tmp_path, listener=lambda *stage: told.append(stage), say=said.append)
    first = evaluate_pairs(f"aurank:{best}", running=running)
    assert told[:3] == [("embedding images", 50, 68), ("embedding images", 68, 68), ("embedding texts", 16, 16)]
    assert {stage for stage, _, _ in told[3:]} == {"ranking"}
    assert said == []
    told.clear()
    again = evaluate_pairs(f"aurank:{best}", running=running)
    assert told[:2] == [("embedding images", 68, 68), ("embedding texts", 16, 16)]
    assert again.two_way["all"].metrics == first.two_way["all"].metrics
    evaluate_model(f"aurank:{best}", running=running)
    assert [line[:47] for line in said] == ["read 68 embeddings from the cache " + str(tmp_path)[:13]] * 2


@pytest.mark.slow
def test_of_several_texts_of_an_image_pairs_and_evaluate_read_one_embedding(best, tmp_path):
    write_table(tmp_path, captions=2)
    broken = tmp_path / "red15.png"
    broken.write_bytes(b"broken")
    said: list[str] = []
    running = RunOptions(cache=tmp_path / "cache", say=said.append)
    images = ImageSelection(data=f"table:{tmp_path}/pairs.csv", overrides=["data.on_error=skip"])
    first = evaluate_pairs(f"aurank:{best}", images, running=running)
    assert "; 136 pairs of " in first.two_way["all"].image_to_text.notes[-1]
    assert first.two_way["all"].image_to_text.notes[-1].endswith(" 2 of them skipped as unreadable")
    assert said == []
    report = evaluate_model(f"aurank:{best}", images, running=running)
    assert report.num_queries == 67
    Image.new("RGB", (16, 16), (220, 30, 30)).save(broken)
    whole = ImageSelection(data=images.data)
    evaluate_pairs(f"aurank:{best}", whole, running=running)  # a changed file: all anew
    evaluate_pairs(f"aurank:{best}", whole, running=running)
    assert [line.partition(" from ")[0] for line in said] == ["read 67 of 68 embeddings", "read 68 embeddings"]
    assert len(list((tmp_path / "cache").iterdir())) == 2


@pytest.mark.slow
def test_a_run_of_images_alone_is_refused_before_data_are_read(best, tmp_path):
    checkpoint = load_checkpoint(best)
    checkpoint["config"]["model"]["text"] = None
    checkpoint["config"]["data"]["root"] = str(tmp_path / "nowhere")
    save_checkpoint(tmp_path / "images.pt", checkpoint)
    with pytest.raises(UserError, match=r"images\.pt was trained on images alone: .* measure it with aurank evaluate"):
        evaluate_pairs(f"aurank:{tmp_path}/images.pt")


@pytest.mark.slow
def test_an_image_in_several_rows_stands_once_among_images_and_an_unreadable_one_is_left_out_with_its_texts(tmp_path):
    write_table(tmp_path, captions=2)
    for name in ("red0", "blue3", "green15", "pink2"):
        (tmp_path / f"{name}.png").write_bytes(b"broken")
    config = pairs_config(tmp_path, data={"on_error": "skip", "validation_fraction": 0}, train={"steps": 3})
    config["loss"]["matryoshka"] = [4, config["model"]["dim"]]
    result = aurank.train(config, tmp_path / "out")
    assert result.skipped == {"train": 2, "test": 4}
    assert result.two_way["all"].image_to_text.num_queries == 6 * 6 + 2 * 16 - 2
    assert result.report.num_queries == 6 * 6 + 2 * 16 - 2
    assert [code["dim"] for code in result.report.codes] == [4]
    assert evaluate_model(f"aurank:{tmp_path}/out/best").metrics == pytest.approx(result.report.metrics)
    assert rehearse(read_config(config)).images == {"train": 120, "test": 136}

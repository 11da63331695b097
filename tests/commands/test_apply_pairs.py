"""`aurank pairs`, and what a run of images and texts says before it starts."""

from pathlib import Path

import pytest
from PIL import Image
from testing.runs import pairs_config, write_table

import aurank
from aurank.commands import RunOptions, evaluate_model, evaluate_pairs
from aurank.embedding import ImageSelection
from aurank.embedding.stored.checkpoint import load_checkpoint, save_checkpoint
from aurank.errors import UserError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    write_table(folder)
    return folder


@pytest.fixture(scope="module")
def best(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    aurank.train(pairs_config(root, train={"steps": 3}), out)
    return out / "best.safetensors"


def test_pairs_are_drawn_and_their_images_embedded_once_for_all_commands(best: Path, tmp_path: Path) -> None:
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


def test_of_several_texts_of_an_image_pairs_and_evaluate_read_one_embedding(best: Path, tmp_path: Path) -> None:
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


def test_a_run_of_images_alone_is_refused_before_data_are_read(best: Path, tmp_path: Path) -> None:
    checkpoint = load_checkpoint(best)
    checkpoint["config"]["model"]["text"] = None
    checkpoint["config"]["data"]["root"] = str(tmp_path / "nowhere")
    save_checkpoint(tmp_path / "images.pt", checkpoint)
    with pytest.raises(UserError, match=r"images\.pt was trained on images alone: .* measure it with aurank evaluate"):
        evaluate_pairs(f"aurank:{tmp_path}/images.pt")

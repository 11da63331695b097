"""Snippets of the pages run as they stand there."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import aurank
from aurank.training.components import read_config as load_config
from aurank.training.dry_run import rehearse

ROOT = Path(__file__).parents[1]


def snippet(page: str, language: str, word: str) -> str:
    """The one block of code of a page that holds a word."""
    blocks = re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    (found,) = [block for block in blocks if word in block]
    return str(found)


def test_emc2_s_miner_with_a_loss_of_pml() -> None:
    names: dict[str, Any] = {}
    exec(snippet("docs/losses.md", "python", "EMC2Miner"), names)
    assert len(names["triplets"][0]) > 0
    assert names["encoder"].weight.grad.abs().sum() > 0
    assert int((names["miner"].emc2.chains.table.tags != -1).sum()) > 32


def test_reports_that_are_compared_are_of_one_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random, labels = np.random.default_rng(0), np.arange(24) // 4
    rows = random.normal(size=(24, 5)).astype(np.float32) + 2 * labels[:, None].astype(np.float32)
    (tmp_path / "other").mkdir()
    aurank.evaluate(rows + random.normal(size=rows.shape).astype(np.float32), labels).save(
        tmp_path / "other/report.json"
    )
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {
        "aurank": aurank,
        "embeddings": rows,
        "labels": labels,
        "cameras": np.arange(24) % 2,
        "queries": rows[::2],
        "query_labels": labels[::2],
        "gallery": rows[1::2],
        "gallery_labels": labels[1::2],
        "images": rows[:6],
        "captions": rows[6:18],
        "pairs": np.stack([np.arange(12) // 2, np.arange(12)], axis=1),
    }
    exec(snippet("README.md", "python", "aurank.compare"), names)
    assert names["report"].per_query["ap"].shape == (24,)


def test_the_configuration_without_labels_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "photos.yaml"
    file.write_text(snippet("docs/training.md", "yaml", "name: unlabelled"), encoding="utf-8")
    assert load_config(file).data.views == 2
    (tmp_path / "photos").mkdir()
    random = np.random.default_rng(0)
    for number in range(24):
        Image.fromarray(random.integers(256, size=(20, 20, 3), dtype=np.uint8)).save(tmp_path / f"photos/{number}.png")
    monkeypatch.chdir(tmp_path)
    small = ["data.image_size=16", "sampler.batch=8", "model.backbone=resnet10t", "model.pretrained=false"]
    assert rehearse(load_config(file, [*small, "data.workers=0"])).loss > 0

"""Files whose damage no checksum tells, as an outsider meets them: exit code 2 and one line that names the file."""

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from testing.galleries import MODEL, small_index, write_photos

from aurank.commands.prepare import prepare_data
from aurank.data.prepared import IMAGES
from aurank.evaluation.postprocessing import PostProcessing
from aurank.files import content_sha256


def changed(path: Path, change: Callable[[Any], object]) -> None:
    """Change what a JSON file says."""
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def steps_that_are_no_text(folder: Path) -> tuple[str, str]:
    rows = np.random.default_rng(0).normal(size=(12, 4))
    np.savez(folder / "e.npz", embeddings=rows, labels=np.arange(12) // 3)
    file = folder / "steps.safetensors"
    PostProcessing.parse("center").fit(rows).save(file)
    content = file.read_bytes()
    end = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:end])
    bundle = json.loads(header["__metadata__"]["bundle"])
    bundle["content"] = json.dumps({**json.loads(bundle["content"]), "steps": 5})
    header["__metadata__"]["bundle"] = json.dumps(bundle)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + content[end:])
    return "evaluate --model embeddings:e.npz --postprocess steps.safetensors --out out", "steps.safetensors"


def a_schema_of_other_bytes(folder: Path) -> tuple[str, str]:
    data = {"name": "folder", "root": str(folder), "params": {"path": "photos"}, "channels": 3, "image_size": 16}
    sections = {"sampler": {"batch": 8}, "loss": {"name": "soprc"}, "optim": {"lr": 0.1}, "train": {"steps": 1}}
    config = {"data": {**data, "odd_classes": "keep"}, "model": {"backbone": "test_resnet"}, **sections}
    (folder / "config.yaml").write_text(json.dumps(config))
    prepare_data(config, folder / "store", short_side=16)
    file = folder / "store" / IMAGES
    content = file.read_bytes()
    file.write_bytes(content[:100] + b"\xff" * 200 + content[300:])
    return f"evaluate --model {MODEL} --data config.yaml data.prepared=store --no-cache --out out", "store"


def an_index_that_was_sealed_again(folder: Path) -> tuple[str, str]:
    small_index(folder / "photos", folder / "index")

    def change(content: dict[str, Any]) -> None:
        content["model"]["name"] = 5
        content["checksum"] = content_sha256(content)

    changed(folder / "index/index.json", change)
    return "search index photos/c0/0.png", "index.json"


@pytest.mark.slow
@pytest.mark.parametrize("damage", [steps_that_are_no_text, a_schema_of_other_bytes, an_index_that_was_sealed_again])
def test_a_damaged_file_ends_in_one_line_with_its_name(
    damage: Callable[[Path], tuple[str, str]], tmp_path: Path
) -> None:
    write_photos(tmp_path / "photos", classes=2, images=2)
    command, name = damage(tmp_path)
    # In a process of its own, without the checks of types that the tests have.
    ended = subprocess.run(
        [sys.executable, "-m", "aurank", *command.split()], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 2, ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert name in line

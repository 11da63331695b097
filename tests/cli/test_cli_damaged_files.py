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
from aurank.config import ModelConfig
from aurank.data import TRANSFORMS
from aurank.data.prepared import IMAGES
from aurank.evaluation.postprocessing import PostProcessing
from aurank.exporting.formats import TrainedEncoder
from aurank.exporting.timm_folder import write_folder
from aurank.files import content_sha256
from aurank.models import Encoder
from aurank.models.adapters.exported import PREPROCESSING, pack_preprocessing

EMBED = "embed --data folder:photos --out rows.npz --no-cache --model"
PIPELINE = TRANSFORMS["resize"](32, 3)


def changed(path: Path, change: Callable[[Any], object]) -> None:
    """Change what a JSON file says."""
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def encoder() -> Encoder:
    return Encoder("test_resnet", dim=8, pretrained=False).eval()


def a_mean_of_another_type(folder: Path) -> tuple[str, str]:
    (folder / "model").mkdir()
    config = ModelConfig(backbone="test_resnet", pretrained=False, dim=8)
    write_folder(TrainedEncoder(encoder(), config, PIPELINE), folder / "model/model.safetensors")
    changed(folder / "model/config.json", lambda content: content["pretrained_cfg"].update(mean="x"))
    return f"{EMBED} timm:local-dir:model", "local-dir:model"


def metadata_that_are_no_utf_8(folder: Path) -> tuple[str, str]:
    onnx = pytest.importorskip("onnx")
    kinds, make = onnx.TensorProto, onnx.helper
    pixels = make.make_tensor_value_info("pixels", kinds.UINT8, ["batch", 3, 32, 32])
    embedding = make.make_tensor_value_info("embedding", kinds.FLOAT, ["batch", 3])
    nodes = [
        make.make_node("Cast", ["pixels"], ["values"], to=kinds.FLOAT),
        make.make_node("ReduceMean", ["values"], ["embedding"], axes=[2, 3], keepdims=0),
    ]
    graph = make.make_graph(nodes, "sums", [pixels], [embedding])
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8)
    model.metadata_props.add(key=PREPROCESSING, value=pack_preprocessing(PIPELINE, dim=3, is_inside=True))
    (folder / "m.onnx").write_bytes(model.SerializeToString().replace(b'"transform"', b'"tr\xffnsform"'))
    return f"{EMBED} onnx:m.onnx", "m.onnx"


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
@pytest.mark.parametrize(
    "damage",
    [
        a_mean_of_another_type,
        metadata_that_are_no_utf_8,
        steps_that_are_no_text,
        a_schema_of_other_bytes,
        an_index_that_was_sealed_again,
    ],
)
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

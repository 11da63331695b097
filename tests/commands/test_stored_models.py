"""Models that are files: kept in an index, loaded without the file of before, refused when they are changed."""

from pathlib import Path

import numpy as np
import pytest
from testing.galleries import write_photos

from aurank.commands import ImageIndex, RunOptions, build_index, export_model
from aurank.embedding import ImageSelection
from aurank.errors import UserError


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("stored") / "photos", classes=2, images=3)


def require_kept(model: str, file: Path, photos: Path, out: Path) -> None:
    """Check that an index of the model is searched after the file has gone, and that its own copy is watched."""
    coded = RunOptions(allow_code=True, device="cpu")
    built = build_index(model, ImageSelection(f"folder:{photos}"), out=out, running=coded)
    for path in file.parent.iterdir():
        path.unlink()
    photo = photos / "c1/2.png"
    index = ImageIndex.open(out, allow_code=True)
    assert index.search([photo], k=1)[0][0].path == "c1/2.png"
    np.testing.assert_array_equal(index.embed([photo]), built.embed([photo]))
    np.testing.assert_allclose(index.embed([photo])[0], index.rows.embeddings[5], atol=1e-6)
    for kept in sorted((out / index.about["model"]["folder"]).iterdir()):
        content = kept.read_bytes()
        for damage, said in ((b"other", "is damaged, cut short or of another index"), (None, "No such file")):
            kept.unlink() if damage is None else kept.write_bytes(damage)
            with pytest.raises(UserError, match=said) as refused:
                ImageIndex.open(out, allow_code=True).load_model()
            assert kept.name in str(refused.value)
            assert "\n" not in str(refused.value)
        kept.write_bytes(content)


@pytest.mark.slow
def test_an_onnx_graph_is_kept_with_its_options(photos: Path, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    kind, helper = onnx.TensorProto.FLOAT, onnx.helper
    (tmp_path / "given").mkdir()
    file = tmp_path / "given/net.onnx"
    nodes = [helper.make_node("Flatten", ["images"], ["flat"])]
    inputs = [helper.make_tensor_value_info("images", kind, ["batch", 3, 4, 4])]
    outputs = [helper.make_tensor_value_info("flat", kind, ["batch", 48])]
    graph = helper.make_graph(nodes, "flat", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), file)
    require_kept(f"onnx:{file},mean=0.5,std=0.25", file, photos, tmp_path / "index")


@pytest.mark.slow
@pytest.mark.parametrize(("to", "name"), [("safetensors", "model.safetensors"), ("torchexport", "model.pt2")])
def test_an_exported_model_is_kept(to: str, name: str, photos: Path, tiny_run: Path, tmp_path: Path) -> None:
    images = ImageSelection(f"folder:{photos}")
    export_model(str(tiny_run / "best"), to, tmp_path / "given", images=images)  # type: ignore[arg-type]
    require_kept(f"{to}:{tmp_path / 'given' / name}", tmp_path / "given" / name, photos, tmp_path / "index")
    if to == "torchexport":
        with pytest.raises(UserError, match="add --allow-code"):
            ImageIndex.open(tmp_path / "index").load_model()

"""Models that are files: stored in an index, loaded without the first file, refused when they are changed."""

from pathlib import Path

import numpy as np
import pytest
from testing.galleries import write_photos

from aurank.commands import ImageIndex, RunOptions, build_index
from aurank.embedding import ImageSelection
from aurank.errors import UserError


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("stored") / "photos", classes=2, images=3)


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
    on_cpu = RunOptions(device="cpu")
    built = build_index(
        f"onnx:{file},mean=0.5,std=0.25", ImageSelection(f"folder:{photos}"), out=tmp_path / "index", running=on_cpu
    )
    file.unlink()
    photo = photos / "c1/2.png"
    index = ImageIndex.open(tmp_path / "index")
    assert index.search([photo], k=1)[0][0].path == "c1/2.png"
    np.testing.assert_array_equal(index.embed([photo]), built.embed([photo]))
    np.testing.assert_allclose(index.embed([photo])[0], index.rows.embeddings[5], atol=1e-6)
    for stored in sorted((tmp_path / "index" / index.about["model"]["folder"]).iterdir()):
        content = stored.read_bytes()
        for damage, message in ((b"other", "is damaged, cut short or of another index"), (None, "No such file")):
            stored.unlink() if damage is None else stored.write_bytes(damage)
            with pytest.raises(UserError, match=message) as refused:
                ImageIndex.open(tmp_path / "index").load_model()
            assert stored.name in str(refused.value)
            assert "\n" not in str(refused.value)
        stored.write_bytes(content)

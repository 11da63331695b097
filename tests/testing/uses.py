"""What runs with an extra of the installation alone, as code; as a script: `uses.py EXTRAS`, in an empty folder."""

import sys

IN_CORE = """
import numpy as np
import aurank
from aurank.losses import LOSSES, MINERS, SOPRCLoss
assert all(map(callable, (LOSSES[name] for name in LOSSES)))
report = aurank.evaluate(np.random.default_rng(0).normal(size=(40, 4)), np.arange(40) % 4)
assert aurank.compare(report, report, resamples=100).p_value == 1
try:
    aurank.train
except ModuleNotFoundError as error:
    assert "pip install 'aurank[train]'" in str(error), error
else:
    raise AssertionError("this is no core alone")
"""
TRAINS = """
import aurank
config = {
    "data": {"name": "digits", "image_size": 32, "channels": 1}, "sampler": {"batch": 16},
    "model": {"backbone": "test_vit", "pretrained": False, "dim": 8, "params": {"img_size": 32}, **changes},
    "loss": {"name": "soprc"}, "optim": {"lr": 1e-3}, "train": {"steps": 2},
}
assert aurank.train(config, "run").steps == 2
"""
COMMANDS = """
import sys
from pathlib import Path
import numpy as np
from PIL import Image
from aurank.__main__ import main
for colour in ("red", "green"):
    Path("photos", colour).mkdir(parents=True)
    for side in (8, 16):
        Image.new("RGB", (side, side), colour).save(f"photos/{colour}/{side}.png")
np.savez("rows.npz", embeddings=np.eye(2)[[0, 0, 1, 1]], labels=[5, 5, 6, 6])

def run(*words):
    sys.argv = ["aurank", *words]
    try:
        main()
    except SystemExit as ended:
        return ended.code
"""
USES = {
    "": IN_CORE,
    "train": "changes = {}" + TRAINS,
    "train,lora": "changes = {'lora': {}}" + TRAINS,
    "cli": COMMANDS
    + """
assert not run("evaluate", "--model", "embeddings:rows.npz", "--out", "out")
assert not run("doctor", "folder:photos")
assert not run("train", "digits/soprc", "train.steps=2", "optim.warmup_steps=0", "--out", "run")
assert run("index", "build", "--model", "timm:test_vit,pretrained=false", "--data", "folder:photos", "--out", "i") == 2
""",
    "milvus": COMMANDS
    + """
to = "milvus:gallery.db#photos"
assert not run("index", "build", "--model", "timm:test_vit,pretrained=false", "--data", "folder:photos", "--to", to)
assert not run("search", to, "photos/red/8.png")
""",
    "cli,index,serve": COMMANDS
    + """
assert not run("index", "build", "--model", "timm:test_vit,pretrained=false", "--data", "folder:photos", "--out", "i")
assert not run("search", "i", "photos/red/8.png")
from aurank.commands import ImageIndex
from aurank.serving.app import make_app
make_app(ImageIndex.open("i"))
""",
    "index": IN_CORE
    + """
from aurank.evaluation import Index
rows = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
assert (Index.build(rows, "HNSW8").search(rows, 1).row[:, 0] == np.arange(40)).mean() > 0.9
""",
    "export": COMMANDS
    + """
assert not run("train", "digits/soprc", "train.steps=2", "optim.warmup_steps=0", "--out", "run")
assert not run("export", "run/best", "--to", "onnx", "--out", "onnx")
assert not run("evaluate", "--model", "onnx:onnx/model.onnx", "--data", "digits", "--out", "out")
""",
}

if __name__ == "__main__":
    exec(USES[sys.argv[1].replace("gpu", "index")], {"__name__": "__main__"})  # the other faiss

"""The folder of an export and its files, looked at without torch."""

from pathlib import Path

from aurank.errors import UserError
from aurank.files import LOCK, require_writable
from aurank.lazy import require_libraries

MODELS = {"onnx": "model.onnx", "hf": "model.safetensors", "timm": "model.safetensors"}  # timm is another word for hf
INT8, CARD, RESULT = "model.int8.onnx", "README.md", "export.json"
_FILES = {*MODELS.values(), INT8, CARD, RESULT, "preprocessing.json", "config.json"}


def require_export(to: str, out: Path, *, int8: bool, overwrite: bool) -> None:
    """Raise UserError unless a model can be exported to a folder: a new one, or with `overwrite` an earlier export."""
    files, reason = {path.name for path in out.iterdir() if path.name != LOCK} if out.is_dir() else set(), ""
    if to not in MODELS:
        reason = f"--to {to!r}: expected one of {', '.join(MODELS)}"
    elif int8 and to != "onnx":
        reason = f"--int8 goes with --to onnx, not with --to {to}"
    elif out.resolve() == Path.cwd():
        reason = f"--out {out} is the folder that you are in; name one to make, such as exported"
    elif strange := sorted(files - _FILES):
        reason = f"--out {out} holds {strange[0]!r}, which is of no export; name another folder"
    elif files and RESULT not in files:
        reason = f"--out {out} holds no earlier export; name another folder"
    elif files and not overwrite:
        reason = f"--out {out} holds an earlier export; name another folder, or add --overwrite"
    if reason:
        raise UserError(reason)
    if to == "onnx":
        require_libraries("--to onnx", "onnx", "onnxruntime", "onnxscript")
    require_writable(out / RESULT)

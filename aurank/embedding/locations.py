"""Models, runs, indexes and exports by their names and folders, looked at without torch."""

from pathlib import Path
from typing import NamedTuple

from aurank.errors import UserError
from aurank.extras import require_libraries
from aurank.files import LOCK, reading, require_writable
from aurank.models.adapters.names import IMAGES, require_known_name
from aurank.names import meant, nearest

HUB = "hf-hub"
SUFFIX = ".safetensors"
LAST, BEST = f"last{SUFFIX}", f"best{SUFFIX}"
KEPT = f"checkpoint{SUFFIX}"  # in the folder of a stored model
RECORD = "model.json"  # there, too
ABOUT = "index.json"


# -- models -----------------------------------------------------------------------------------------------------------


def split_name(model: str) -> tuple[str, str]:
    kind, colon, what = model.partition(":")
    known = ("aurank", "embeddings", HUB, *IMAGES)
    if kind in known and what:
        return kind, what
    if not colon and (Path(model).exists() or resolve_checkpoint(model).exists()):
        return "aurank", model
    shapes = "a run (aurank:DIR/best), embeddings:FILE, hf-hub:OWNER/NAME, timm:NAME[,pretrained=false]"
    others = ", ".join(f"{name}:…" for name in known[4:])
    said = f"of no known kind{meant(nearest(kind, known))}" if colon else "there is no such run or folder"
    raise UserError(f"--model {model!r}: {said}; expected {shapes}, or one of {others}")


def require_model_name(model: str) -> None:
    """Raise UserError for a model that is not there, as far as can be said without torch or its library."""
    kind, what = split_name(model)
    if kind == "aurank":
        require_model(what)
    elif kind in IMAGES:
        require_known_name(model)


# -- checkpoints, indexes and folders to write -------------------------------------------------------------------------


def resolve_checkpoint(path: Path | str) -> Path:
    """Return the file meant by ``DIR/best``, ``DIR/best.safetensors`` or ``DIR`` (its best checkpoint, or only one)."""
    path = Path(path)
    if path.is_dir():
        return path / (KEPT if (path / KEPT).exists() and not (path / BEST).exists() else BEST)
    return path if path.suffix == SUFFIX or path.is_file() else path.with_name(path.name + SUFFIX)


def is_stored(folder: str) -> bool:
    """Return whether a folder holds a model of another library, as `ImageModel.save` writes it."""
    return (Path(folder) / RECORD).is_file() and not (Path(folder) / KEPT).exists()


def require_checkpoint(path: Path) -> None:
    if not path.exists():
        raise UserError(f"no checkpoint at {path}; a run writes {LAST} and {BEST} into its --out folder")


def require_model(folder: str) -> None:
    if not is_stored(folder):
        require_checkpoint(resolve_checkpoint(folder))


def require_index(folder: Path) -> None:
    if not (folder / ABOUT).exists():
        what = "there is no index in it" if folder.is_dir() else "there is no such folder"
        raise UserError(f"no index at {folder}: {what}; make one with aurank index build --out {folder}")


def require_usable(out: Path, resume: bool) -> None:
    with reading(out, "the folder of a run", remedy="name another folder"):
        names = {path.name for path in out.iterdir()} if out.is_dir() else set()
    names = {name for name in names if not name.startswith(".")}  # locks, and temporary files of a killed run
    if names and not resume:
        raise UserError(f"--out {out} is not empty; add --resume to go on with the run in it, or name another folder")
    if names and not names & {LAST, "config.yaml", "metrics.jsonl"}:
        raise UserError(f"--resume: {out} holds no aurank run (no {LAST}); name the folder of one")


def require_index_folder(out: Path, *, overwrite: bool) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise UserError(f"--out {out} is a file; name a folder")
    if (out / ABOUT).exists():
        if not overwrite:
            remedy = "add images with aurank index add, or replace it with --overwrite"
            raise UserError(f"--out {out} holds an index already: {remedy}")
    elif any(not one.name.startswith((".", "rows-", "model-")) for one in out.iterdir()):
        raise UserError(f"--out {out} holds other files: name a new folder")


EXPORTED = {
    "onnx": "model.onnx",
    "hf": "model.safetensors",
    "timm": "model.safetensors",  # another word for hf
}
_BESIDE = ("preprocessing.json", "config.json")  # of timm's layout


class ExportNames(NamedTuple):
    model: str
    int8: str = "model.int8.onnx"
    card: str = "README.md"
    result: str = "export.json"
    is_file: bool = False


def export_names(to: str, out: Path) -> ExportNames:
    if to == "onnx" and out.suffix == ".onnx" and not out.is_dir():
        return ExportNames(out.name, f"{out.stem}.int8.onnx", f"{out.stem}.md", f"{out.stem}.json", True)
    return ExportNames(EXPORTED[to])


def require_export(to: str, out: Path, *, int8: bool, overwrite: bool) -> ExportNames:
    if to not in EXPORTED:
        raise UserError(f"--to {to!r}: expected one of {', '.join(EXPORTED)}")
    names, reason, place = export_names(to, out), "", "name another folder"
    known = {*EXPORTED.values(), *names, *_BESIDE}
    if names.is_file:
        held = {name for name in names[:-1] if out.with_name(name).exists()}
        place = "name another file"
    else:
        held = {path.name for path in out.iterdir() if path.name != LOCK} if out.is_dir() else set()
    if int8 and to != "onnx":
        reason = f"--int8 goes with --to onnx, not with --to {to}"
    elif out.resolve() == Path.cwd():
        reason = f"--out {out} is the folder that you are in; name one to make, such as exported"
    elif strange := sorted(held - known):
        reason = f"--out {out} holds {strange[0]!r}, which is of no export; {place}"
    elif held and names.result not in held:
        reason = f"--out {out} holds no earlier export; {place}"
    elif held and not overwrite:
        reason = f"--out {out} holds an earlier export; {place}, or add --overwrite"
    elif to == "onnx":
        require_libraries("--to onnx", "onnx", "onnxruntime", "onnxscript")
    if reason:
        raise UserError(reason)
    require_writable(out.with_name(names.result) if names.is_file else out / names.result)
    return names

"""Models, runs and indexes by their names and folders, looked at without torch."""

from pathlib import Path

from aurank.errors import UserError
from aurank.files import require_own_folder
from aurank.lazy import require_libraries
from aurank.models.adapters.names import IMAGES, TOWERS, parse_name
from aurank.names import meant, nearest

HUB = "hf-hub"
SUFFIX = ".safetensors"
LAST, BEST = f"last{SUFFIX}", f"best{SUFFIX}"
KEPT = f"checkpoint{SUFFIX}"  # file in the folder of a stored model
RECORD = "model.json"  # the description beside it
ABOUT = "index.json"


def split_name(model: str) -> tuple[str, str]:
    """Return the kind of a model's name and the rest of it; a path alone is a model of aurank."""
    kind, colon, source = model.partition(":")
    kinds = ("aurank", "embeddings", HUB, *IMAGES)
    if kind in kinds and source:
        return kind, source
    if not colon and (Path(model).exists() or resolve_checkpoint(model).exists()):
        return "aurank", model
    shapes = "a run (aurank:DIR/best), embeddings:FILE, hf-hub:OWNER/NAME, timm:NAME[,pretrained=false]"
    further = ", ".join(f"{name}:…" for name in kinds[4:])
    reason = f"of no known kind{meant(nearest(kind, kinds))}" if colon else "there is no such run or folder"
    raise UserError(f"--model {model!r}: {reason}; expected {shapes}, or one of {further}")


def require_model_name(model: str) -> None:
    """Raise UserError for a model or library that is not there, as far as can be said without torch."""
    kind, source = split_name(model)
    if kind == "aurank" and not is_stored(source):
        require_checkpoint(resolve_checkpoint(source))
    elif kind in IMAGES:
        parse_name(model, {**IMAGES, **dict.fromkeys(TOWERS)})
        require_libraries(model, *{"onnx": ["onnxruntime"], "python": []}.get(kind, [kind]))


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


def require_index(folder: Path) -> None:
    if not (folder / ABOUT).exists():
        raise UserError(f"no index at {folder}; make one with aurank index build --out {folder}")


def require_usable(out: Path, resume: bool) -> None:
    names = {path.name for path in out.iterdir()} if out.is_dir() else set()
    names = {name for name in names if not name.startswith(".")}  # ignore locks and temporary files
    if names and not resume:
        raise UserError(f"--out {out} is not empty; add --resume to go on with the run in it, or name another folder")
    if names and not names & {LAST, "config.yaml", "metrics.jsonl"}:
        raise UserError(f"--resume: {out} holds no aurank run (no {LAST}); name the folder of one")


def require_index_folder(out: Path, *, overwrite: bool) -> None:
    if (out / ABOUT).exists():
        require_overwrite(f"--out {out}", overwrite=overwrite)
    else:
        require_own_folder(out, "rows-", "model-")


def require_overwrite(location: str, *, overwrite: bool) -> None:
    if not overwrite:
        remedy = "add images with aurank index add, or replace it with --overwrite"
        raise UserError(f"{location} holds an index already: {remedy}")

"""What options name, looked at without any model and without torch: images, checkpoints, folders to write."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from aurank.config import Choices, Config, DataConfig, load_config, shipped_configs
from aurank.config.schema import EMBEDDINGS
from aurank.data.readers import BENCHMARKS, READERS
from aurank.data.readers.given import GIVEN
from aurank.data.readers.published import locate
from aurank.data.sources import folder_or_file
from aurank.errors import UserError
from aurank.extras import require_libraries
from aurank.files import LOCK, address_of, reading, require_writable
from aurank.models.adapters.names import IMAGES, require_known_name
from aurank.names import meant, nearest

if TYPE_CHECKING:
    from aurank.data import Manifest
    from aurank.embedding.protocols import Protocol

ALL = "all"  # splits together
_READ_BY = {**dict.fromkeys((".csv", ".parquet", ".pq", ".feather", ".arrow"), "table"), ".tar": "webdataset"}
HUB = "hf-hub"
SUFFIX = ".safetensors"
LAST, BEST = f"last{SUFFIX}", f"best{SUFFIX}"
KEPT = f"checkpoint{SUFFIX}"  # in the folder of a stored model
RECORD = "model.json"  # there, too
ABOUT = "index.json"
DATA = {"data": Choices(READERS, frozenset({"root"}))}


@dataclass(frozen=True)
class ImageSelection:
    """The images to embed; nothing given: the test split of the data that the model was trained on.

    Args:
        data: READER:PATH such as folder:photos, or a configuration, by file or shipped name; from Python a manifest
            too; default: what an aurank: model was trained on.
        split: train, val, test or all; default: test, to mine train, for an index all. Of the data that the model was
            trained on, not named, train is what training used and val what it held out.
        protocol: a named protocol, such as sop; its data is in `root`.
        root: folder of the protocol's data.
        overrides: changes of the data section, such as data.workers=4.
        usual: the split where none is named: "test", or "train", without which all images are taken.

    Example:
        >>> ImageSelection("folder:photos", protocol="sop").check()
        Traceback (most recent call last):
        aurank.errors.UserError: --data and --protocol both say which images to take; give one of them
    """

    data: "str | Manifest | None" = None
    split: str | None = None
    protocol: str | None = None
    root: Path | None = None
    overrides: Sequence[str] = ()
    usual: str = "test"

    @property
    def given(self) -> list[str]:
        """The options that say where images are, as typed."""
        named = {name: getattr(self, name) for name in ("data", "split", "protocol", "root")}
        return [f"--{name} {value}" for name, value in named.items() if value is not None] + [*self.overrides]

    def require_there(self) -> None:
        """Raise UserError where the options name data that are not there."""
        if self.protocol is not None and (protocol := self.find_protocol()) is not None:
            require_data(protocol.reader, data_folder(self.root))
        elif self.data is not None:
            section = located(self.data)
            require_data(section["name"], data_folder(section.get("root")), **section["params"])

    @property
    def takes_embeddings(self) -> bool:
        """Whether the rows of a file of embeddings are named, or a configuration of a head on such."""
        return isinstance(self.data, str) and located(self.data)["name"] == EMBEDDINGS

    @property
    def takes_images(self) -> bool:
        """Whether images are named, none of which a head on saved embeddings was trained on."""
        return (self.data is not None or self.protocol is not None) and not self.takes_embeddings

    @property
    def settings(self) -> dict[str, Any]:
        """What the section `evaluate` of a configuration that `data` names sets."""
        config = _configuration(self.data)
        return (
            {}
            if config is None
            else {name: getattr(config.evaluate, name) for name in config.evaluate.model_fields_set}
        )

    def check(self) -> None:
        """Raise UserError where the options do not go together."""
        is_named, protocol = self.protocol is not None, "--protocol, which says what is measured"
        others = [override for override in self.overrides if not override.startswith("data.")]
        for is_wrong, message in (
            (
                is_named and self.data is not None,
                "--data and --protocol both say which images to take; give one of them",
            ),
            (self.split and is_named, f"--split {self.split} has no use with {protocol}"),
            (self.root and not is_named, f"--root {self.root} goes with --protocol, not with --data"),
            (others, f"{' '.join(others)}: only data.* can be changed for a model that is measured"),
        ):
            if is_wrong:
                raise UserError(message)

    def find_protocol(self) -> "Protocol | None":
        """Return the protocol named, or None; raise UserError where the options do not go together."""
        from aurank.embedding.protocols import find_protocol

        self.check()
        return None if self.protocol is None else find_protocol(self.protocol)


def _configuration(data: "str | Manifest | None") -> Config | None:
    shipped = shipped_configs()
    is_one = isinstance(data, str) and (data in shipped or data.endswith((".yaml", ".yml")))
    return load_config(shipped.get(str(data), str(data)), choices=DATA) if is_one else None


def located(data: "str | Manifest") -> dict[str, Any]:
    if not isinstance(data, str):
        return {"name": GIVEN, "params": {}, "root": None}
    if (config := _configuration(data)) is not None:
        return config.data.model_dump(include={"name", "params", "root"})
    name, _, path = data.partition(":")
    if name not in READERS:
        file = path or name
        likely = (*nearest(name, READERS), _READ_BY.get(Path(file).suffix.lower(), "folder"))[0]
        expected = f"READER:PATH, such as {likely}:{file}, or a configuration"
        raise UserError(f"--data {data}: expected {expected}; the readers are {', '.join(READERS)}")
    section: dict[str, Any] = {"name": name, "params": {}}
    if not path:
        return section
    target = Path(path)
    if "{" in path:  # a pattern of several files
        return {**section, "params": {"path": path}, "root": "."}
    if not (kind := folder_or_file(target)):
        start = "" if target.is_absolute() or address_of(target) else f" in {Path.cwd()}"
        raise UserError(f"--data {data}: there is no {address_of(target) or target}{start}; correct the path")
    if kind == "folder":
        return {**section, "root": str(target)}
    key = "file" if name in ("table", EMBEDDINGS) else "path"  # of an archive
    return {**section, "params": {key: target.name}, "root": str(target.parent)}


def data_folder(root: Path | str | None) -> Path:
    return Path(root or os.environ.get("AURANK_DATA") or "data").expanduser()


def read_whole(config: DataConfig) -> "Manifest":
    return READERS[config.name](data_folder(config.root), **config.params)


def require_data(name: str, root: Path, **params: Any) -> None:
    """Raise the UserError of a reader, which names what is missing, where there is nothing for it to read."""
    reader = READERS[name]
    known = signature(reader).parameters
    if "path" not in known and "file" not in known:  # it needs no file
        return
    path = params.get("path", known["path"].default if "path" in known else ".")
    if address_of(root) or "{" in str(path):  # its own words say as much
        return
    place = root / (path or "") / (str(params["file"]) if "file" in params and (root / path).is_dir() else "")
    if not place.exists() or (name in BENCHMARKS and locate(BENCHMARKS[name], root, path) is None):
        reader(root, **params)


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

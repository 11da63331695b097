"""Which images to embed: options and configurations that name data, looked at without torch."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aurank.config import Choices, DataConfig, load_config, shipped_configs
from aurank.config.schema import EMBEDDINGS, DataSection
from aurank.data.readers import READERS
from aurank.data.readers.given import GIVEN
from aurank.errors import OptionRule, UserError, check_options
from aurank.names import nearest, require_choice

if TYPE_CHECKING:
    from aurank.data import Manifest
    from aurank.embedding.protocols import Protocol

ALL = "all"  # all splits
DATA = {"data": Choices(READERS, frozenset({"root"}))}
_RULES = (
    OptionRule("--protocol", excludes=("--data", "--split"), why="it says which images are measured"),
    OptionRule("--root", needs=("--protocol",)),
)


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
        overrides: changes of the sections data and evaluate, such as data.workers=4.
        usual: the split where none is named: "test", or "train", without which all images are taken.

    Example:
        >>> ImageSelection("digits:", split="train").given
        ['--data digits:', '--split train']
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
        options = {name: getattr(self, name) for name in ("data", "split", "protocol", "root")}
        return [f"--{name} {value}" for name, value in options.items() if value is not None] + [*self.overrides]

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
        """What the section `evaluate` of a configuration that `data` names sets, and overrides."""
        config = _configuration(self.data)
        section = {} if config is None else config.evaluate.model_dump(exclude_unset=True)
        changes = [override for override in self.overrides if override.startswith("evaluate.")]
        content = {"data": {"name": GIVEN}, "evaluate": section}
        settings = load_config(content, changes, choices={}, schema=DataSection).evaluate
        return {name: getattr(settings, name) for name in settings.model_fields_set}

    def find_protocol(self) -> "Protocol | None":
        """Return the protocol named, or None; UserError where options do not go together, or name no reader."""
        from aurank.embedding.protocols import PROTOCOLS

        unknown = [override for override in self.overrides if not override.startswith(("data.", "evaluate."))]
        if unknown:
            raise UserError(
                f"{' '.join(unknown)}: only data.* and evaluate.* can be changed for a model that is measured"
            )
        check_options({f"--{name}": getattr(self, name) for name in ("data", "split", "protocol", "root")}, _RULES)
        if self.data is not None:
            located(self.data)
        return None if self.protocol is None else PROTOCOLS[require_choice("--protocol", self.protocol, PROTOCOLS)]


def _configuration(data: "str | Manifest | None") -> DataSection | None:
    shipped = shipped_configs()
    is_one = isinstance(data, str) and (data in shipped or data.endswith((".yaml", ".yml")))
    return load_config(shipped.get(str(data), str(data)), choices=DATA, schema=DataSection) if is_one else None


def located(data: "str | Manifest") -> dict[str, Any]:
    if not isinstance(data, str):
        return {"name": GIVEN, "params": {}, "root": None}
    if (config := _configuration(data)) is not None:
        return config.data.model_dump(include={"name", "params", "root"})
    name, _, path = data.partition(":")
    if name not in READERS:
        file = path or name
        likely = (*nearest(name, READERS), "folder")[0]
        expected = f"READER:PATH, such as {likely}:{file}, or a configuration"
        raise UserError(f"{data}: expected {expected}; the readers are {', '.join(READERS)}")
    section: dict[str, Any] = {"name": name, "params": {}}
    if not path:
        return section
    target = Path(path)
    if "{" in path:  # a pattern of several files
        return {**section, "params": {"path": path}, "root": "."}
    if target.is_dir() or not target.suffix:
        return {**section, "root": str(target)}
    key = "file" if name in ("table", EMBEDDINGS) else "path"  # otherwise an archive or folder
    return {**section, "params": {key: target.name}, "root": str(target.parent)}


def data_folder(root: Path | str | None) -> Path:
    return Path(root or os.environ.get("AURANK_DATA") or "data").expanduser()


def read_whole(config: DataConfig) -> "Manifest":
    return READERS[config.name](data_folder(config.root), **config.params)

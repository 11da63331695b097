"""What is published of each benchmark, as benchmarks.toml has it."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


class SplitSize(NamedTuple):
    """Images and classes of one list as published."""

    images: int
    classes: int

    def __str__(self) -> str:
        return f"{self.images:,} images of {self.classes:,} classes"


@dataclass(frozen=True)
class Benchmark:
    """The facts about one benchmark, which benchmarks.toml explains."""

    name: str
    title: str
    folders: tuple[str, ...]
    layout: str
    origin: str
    terms: str
    sizes: Mapping[str, SplitSize]
    files: Mapping[str, str] = field(default_factory=dict)
    either: Mapping[str, str] = field(default_factory=dict)
    archives: Mapping[str, str] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)
    unpack: str | None = None
    remark: str = ""


def _read(name: str, table: Mapping[str, Any]) -> Benchmark:
    sizes = {part: SplitSize(*size) for part, size in table.get("sizes", {}).items()}
    return Benchmark(name, **{**table, "folders": tuple(table["folders"]), "sizes": sizes})


_ALL = {
    name: _read(name, table)
    for name, table in tomllib.loads(Path(__file__).with_name("benchmarks.toml").read_text("utf-8")).items()
}
BENCHMARKS: Mapping[str, Benchmark] = {name: about for name, about in _ALL.items() if about.sizes}
FETCHED: Mapping[str, Benchmark] = {name: about for name, about in _ALL.items() if about.addresses}

"""Benchmarks as published: the form of the facts, where one lies on disk, and how what was read differs from them."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from aurank.data.manifest import Manifest
from aurank.data.readers._rows import Row, build_listed
from aurank.data.sources import ImageSource, holds_folder, open_source
from aurank.errors import UserError

_EXAMPLES = 3


class OfficialFile(NamedTuple):
    """One text file of a benchmark: its path, what it holds, and where to get it; `needed=False`: it is never read.

    A path that ends in "/" is a folder of images.
    """

    path: str
    holds: str
    origin: str
    needed: bool = True


class SplitSize(NamedTuple):
    """Images and classes of one list as published."""

    images: int
    classes: int

    def __str__(self) -> str:
        return f"{self.images:,} images of {self.classes:,} classes"


@dataclass(frozen=True)
class Benchmark:
    """The facts about one benchmark.

    Attributes:
        folders: places tried below the data folder, "." being the data folder itself, a name that ends in ".zip" an
            archive read as it is.
        terms: who may use it.
        sizes: the published ones, by the list file or the folder.
        lines: the published number of entries of other files.
        archives: the published md5 checksums of what is downloaded.
    """

    name: str
    title: str
    folders: tuple[str, ...]
    layout: str
    origin: str
    terms: str
    files: tuple[OfficialFile, ...]
    sizes: Mapping[str, SplitSize]
    lines: Mapping[str, int] = field(default_factory=dict)
    archives: Mapping[str, str] = field(default_factory=dict)
    remark: str = ""


@dataclass(frozen=True)
class Place:
    """The folder or zip archive that holds a benchmark; in an archive, below the folder `prefix`."""

    benchmark: Benchmark
    path: Path
    prefix: str = ""

    @functools.cached_property
    def source(self) -> ImageSource:
        """The files as their official paths name them."""
        return open_source(self.path, prefix=self.prefix)

    def holds(self, file: OfficialFile) -> bool:
        """Return whether a file, or folder, is there."""
        if file.path.endswith("/"):
            return holds_folder(self.source, file.path)
        return self.source.exists(file.path)

    def missing(self, files: Iterable[OfficialFile]) -> list[str]:
        """Return one line for each of the files that is not there: what it is and where to get it."""
        absent = [file for file in files if not self.holds(file)]
        return [f"{file.path}, {file.holds}, is missing: get it from {file.origin}" for file in absent]


class Part(NamedTuple):
    """The rows of one list or folder of a benchmark, and how many it has as published."""

    name: str
    rows: Sequence[Row]
    expected: SplitSize


class Reading(NamedTuple):
    """What was read of a benchmark (None where a list is missing), and all that differs from its published form."""

    manifest: Manifest | None
    problems: list[str]


def locate(benchmark: Benchmark, root: Path, path: str | None = None) -> Place | None:
    """Return where the benchmark lies below `root`: at `path`, else in the first usual place that holds a file of it.

    A usual folder that holds none of its files still counts where there is nothing better; None if there is no place.
    """
    prefixes = {folder: benchmark.folders[0] if folder.endswith(".zip") else "" for folder in benchmark.folders}
    places = [Place(benchmark, root / folder, prefix) for folder, prefix in prefixes.items()]
    if path is not None:
        places = [place for place in places if place.path == root / path] or [Place(benchmark, root / path)]
    there = [place for place in places if place.path.exists()]
    for place in there:
        if any(map(place.holds, benchmark.files)):
            return place
    return next((place for place in there if path is not None or place.path != root), None)


def describe_absence(benchmark: Benchmark, root: Path, path: str | None = None) -> str:
    """Return which places were tried, where `locate` found nothing."""
    tried = [root / folder for folder in benchmark.folders] if path is None else [root / path]
    return f"{benchmark.title} is not there: none of {', '.join(map(str, tried))} holds it"


def read_published(
    benchmark: Benchmark, root: Path, path: str | None, examine: Callable[[Place], Reading], *, complete: bool
) -> Manifest:
    """Return the manifest of a benchmark, wherever it lies below `root`, as `examine` reads it.

    Raises:
        UserError: names everything that is missing, or different where it shall be `complete`, and what to do.
    """
    place = locate(benchmark, root, path)
    if place is None:
        raise UserError(
            f"{describe_absence(benchmark, root, path)}; get it from {benchmark.origin}; expected layout: "
            f"{benchmark.layout}; terms: {benchmark.terms}; then set data.root (or AURANK_DATA) to the folder that "
            "holds it"
        )
    manifest, problems = examine(place)
    if manifest is not None and not (complete and problems):
        return manifest
    remedy = f"Get it from {benchmark.origin}"
    if manifest is not None:
        remark = f" ({benchmark.remark})" if benchmark.remark else ""
        remedy = f"Get the rest from {benchmark.origin}, or data.params.complete=false reads it as a part{remark}"
    raise UserError(
        f"{benchmark.title} in {place.source.where} is not as published: {'; '.join(problems)}. {remedy}; expected "
        f"layout: {benchmark.layout}; `aurank data check {benchmark.name} --root {root}` lists all that is missing; "
        "data.root (or AURANK_DATA) names the folder that holds it"
    )


def examine_lists(
    place: Place,
    files: Mapping[str, str],
    wanted: Iterable[OfficialFile],
    rows_of: Callable[[ImageSource, str, str], Iterable[Row]],
    *,
    images: str = "",
    sizes: Mapping[str, SplitSize] | None = None,
    compare: Callable[[Place, Sequence[Row]], list[str]] = lambda place, rows: [],
) -> Reading:
    """Return a benchmark as its lists have it, and all that differs from its published form.

    Args:
        files: the list file of each split.
        wanted: these files, and others that shall be there.
        rows_of: yields the rows of a split's file.
        images: the folder that the paths of the lists start from.
        sizes: the published size of each split; by default those of the files.
        compare: returns how other files contradict the rows.
    """
    problems = place.missing(wanted)
    if not all(map(place.source.exists, files.values())):
        return Reading(None, problems)
    parts = []
    for split, file in files.items():
        expected = place.benchmark.sizes[file] if sizes is None else sizes[split]
        parts.append(Part(file, list(rows_of(place.source, split, file)), expected))
    return examine_parts(place, parts, problems, images=images, compare=compare)


def examine_parts(
    place: Place,
    parts: Sequence[Part],
    problems: Sequence[str],
    *,
    images: str = "",
    compare: Callable[[Place, Sequence[Row]], list[str]] = lambda place, rows: [],
) -> Reading:
    """Return a benchmark as the rows of its parts have it, and all that differs, behind `problems` known before."""
    rows = [row for part in parts for row in part.rows]
    source = open_source(place.path, prefix=f"{place.prefix}/{images}".lstrip("/"))
    manifest = build_listed(place.benchmark.name, source, rows)
    found = list(problems)
    for part in parts:
        size = SplitSize(len(part.rows), len({row.label for row in part.rows}))
        found += [] if size == part.expected else [f"{part.name} has {size}, expected {part.expected}"]
    return Reading(manifest, found + compare(place, rows))


def wrong_lines(file: str, count: int, expected: int) -> list[str]:
    """Return one line if `file` has not the published number of entries."""
    return [] if count == expected else [f"{file} has {count:,} images, expected {expected:,}"]


def summarise(what: str, examples: Sequence[str]) -> list[str]:
    """Return one line that counts the examples and shows the first few, or nothing where there is none."""
    if not examples:
        return []
    more = f"; and {len(examples) - _EXAMPLES:,} more" if len(examples) > _EXAMPLES else ""
    return [f"{what}: {len(examples):,} ({'; '.join(examples[:_EXAMPLES])}{more})"]

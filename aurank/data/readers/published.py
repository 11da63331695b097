"""Where a benchmark lies on disk, and how what was read of it differs from its published form."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from aurank.data.manifest import Manifest
from aurank.data.readers.facts import Benchmark, SplitSize
from aurank.data.readers.lines import Row, build_listed
from aurank.data.sources import ImageSource, holds_folder, open_source
from aurank.errors import UserError

_EXAMPLES = 3


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

    def inside(self, folder: str) -> ImageSource:
        """Return the files below a folder."""
        return open_source(self.path, prefix=f"{self.prefix}/{folder}".lstrip("/"))

    def holds(self, file: str) -> bool:
        """Return whether a file, or a folder ("name/"), is there."""
        return holds_folder(self.source, file) if file.endswith("/") else self.source.exists(file)

    def missing(self, files: Iterable[str]) -> list[str]:
        """Return one line for each of the files that is not there: what it is and where to get it."""
        known = {**self.benchmark.never_read, **self.benchmark.files}
        return [
            f"{file}, {known.get(file, 'a list')}, is missing: get it from {self.benchmark.origin}"
            for file in files
            if not self.holds(file)
        ]


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
        if any(map(place.holds, (*benchmark.files, *benchmark.never_read))):
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


def compare_parts(place: Place, parts: Sequence[Part], problems: Sequence[str] = (), *, images: str = "") -> Reading:
    """Return a benchmark as its parts have it, and the sizes that differ, behind `problems` known before.

    Args:
        images: the folder that the paths start from.
    """
    rows = [row for part in parts for row in part.rows]
    manifest = build_listed(place.benchmark.name, place.inside(images), rows)
    sizes = [SplitSize(len(part.rows), len({row.label for row in part.rows})) for part in parts]
    wrong = [
        f"{part.name} has {size}, expected {part.expected}"
        for part, size in zip(parts, sizes, strict=True)
        if size != part.expected
    ]
    return Reading(manifest, [*problems, *wrong])


def compare_classes(
    benchmark: Benchmark, rows: Sequence[Row], files: Mapping[str, Mapping[str, str]], *, whole: bool
) -> list[str]:
    """Return how files that name the class of each image differ from their published length, and from the rows.

    Args:
        files: the class of each image by its path, by file.
        whole: whether these files together know every image.
    """
    problems = [
        f"{file} has {len(classes):,} images, expected {benchmark.lines[file]:,}"
        for file, classes in files.items()
        if len(classes) != benchmark.lines[file]
    ]
    if not whole:
        return problems
    class_of = {path: label for classes in files.values() for path, label in classes.items()}
    names = " and ".join(files)
    unknown = [row.path for row in rows if row.path not in class_of]
    others = [f"{row.path} is {class_of[row.path]}" for row in rows if class_of.get(row.path, row.label) != row.label]
    return [
        *problems,
        *summarise(f"images of the lists that are not in {names}", unknown),
        *summarise(f"images of another class in {names}", others),
    ]


def summarise(what: str, examples: Sequence[str]) -> list[str]:
    """Return one line that counts the examples and shows the first few, or nothing where there is none."""
    if not examples:
        return []
    more = f"; and {len(examples) - _EXAMPLES:,} more" if len(examples) > _EXAMPLES else ""
    return [f"{what}: {len(examples):,} ({'; '.join(examples[:_EXAMPLES])}{more})"]

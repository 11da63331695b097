"""Where a benchmark lies on disk, and what is said when something of it is not there."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aurank.data.manifest import Manifest
from aurank.data.readers.benchmarks.facts import Benchmark, OfficialFile, SplitSize
from aurank.data.sources import ImageSource, open_source
from aurank.errors import UserError

_EXAMPLES = 3


@dataclass(frozen=True)
class Place:
    """The folder or zip archive that holds a benchmark; in an archive, below the folder `prefix`."""

    benchmark: Benchmark
    root: Path
    path: Path
    prefix: str = ""

    @functools.cached_property
    def source(self) -> ImageSource:
        """The files as their official paths name them."""
        return open_source(self.path, prefix=self.prefix)

    def missing(self, files: Sequence[OfficialFile]) -> list[str]:
        """Returns one line for each of the files that is not there: what it is and where to get it."""
        return [
            f"{file.path}, {file.holds}, is missing: get it from {file.origin}"
            for file in files
            if not self.source.exists(file.path)
        ]

    def error(self, problems: Sequence[str], *, remedy: str) -> UserError:
        """Returns the error that names every problem at once, the layout, and what to do."""
        benchmark = self.benchmark
        return UserError(
            f"{benchmark.title} in {self.source.where} is not as published: {'; '.join(problems)}. {remedy}; "
            f"expected layout: {benchmark.layout}; `aurank data check {benchmark.name} --root {self.root}` "
            "lists all that is missing; data.root (or AURANK_DATA) names the folder that holds it"
        )


def locate(benchmark: Benchmark, root: Path, path: str | None = None) -> Place | None:
    """Returns where the benchmark lies below `root`: at `path`, else in the first usual place that holds a file of it.

    A usual folder that holds none of its files still counts where there is nothing better; None if there is no place.
    """
    places = [
        Place(benchmark, root, root / folder, prefix=benchmark.folders[0] if folder.endswith(".zip") else "")
        for folder in benchmark.folders
    ]
    if path is not None:
        usual = [place for place in places if place.path == root / path]
        places = usual or [Place(benchmark, root, root / path)]
    there = [place for place in places if place.path.exists()]
    for place in there:
        if any(place.source.exists(file.path) for file in benchmark.files):
            return place
    return next((place for place in there if path is not None or place.path != root), None)


def nowhere(benchmark: Benchmark, root: Path, path: str | None = None) -> str:
    """Returns which places were tried, where `locate` found nothing."""
    tried = [root / folder for folder in benchmark.folders] if path is None else [root / path]
    return f"{benchmark.title} is not there: none of {', '.join(map(str, tried))} holds it"


def found(benchmark: Benchmark, root: Path, path: str | None = None) -> Place:
    """Returns what `locate` does. Raises UserError where there is nothing."""
    place = locate(benchmark, root, path)
    if place is None:
        raise UserError(
            f"{nowhere(benchmark, root, path)}; get it from {benchmark.origin}; expected layout: {benchmark.layout}; "
            f"terms: {benchmark.terms}; then set data.root (or AURANK_DATA) to the folder that holds it"
        )
    return place


def wrong_size(file: str, manifest: Manifest, split: str, expected: SplitSize) -> list[str]:
    """Returns one line if the split read from `file` has not the published size."""
    rows = manifest.splits == split
    size = SplitSize(int(rows.sum()), len(set(manifest.labels[rows].tolist())))
    return [] if size == expected else [f"{file} has {size}, expected {expected}"]


def wrong_lines(file: str, count: int, benchmark: Benchmark) -> list[str]:
    """Returns one line if `file` has not the published number of entries."""
    expected = next(official.lines for official in benchmark.files if official.path == file)
    return [] if expected in (None, count) else [f"{file} has {count:,} images, expected {expected:,}"]


def disagreements(what: str, examples: Sequence[str]) -> list[str]:
    """Returns one line that counts the disagreements and shows the first few, or nothing."""
    if not examples:
        return []
    more = f"; and {len(examples) - _EXAMPLES:,} more" if len(examples) > _EXAMPLES else ""
    return [f"{what}: {len(examples):,} ({'; '.join(examples[:_EXAMPLES])}{more})"]

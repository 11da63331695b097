"""What is published of each benchmark, as benchmarks.toml has it; readers that insist on it, and what differs."""

import dataclasses
import functools
import hashlib
import inspect
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from aurank.data.manifest import Manifest, by_ending
from aurank.data.readers.listing import Row, build_listed
from aurank.data.sources import FolderSource, ImageSource, open_source
from aurank.errors import UserError


class SplitSize(NamedTuple):
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
    source: str = ""


_ALL = {
    name: Benchmark(
        name,
        **{
            **table,
            "folders": tuple(table["folders"]),
            "sizes": {part: SplitSize(*size) for part, size in table.get("sizes", {}).items()},
        },
    )
    for name, table in tomllib.loads(Path(__file__).with_name("benchmarks.toml").read_text("utf-8")).items()
}
BENCHMARKS: Mapping[str, Benchmark] = {name: about for name, about in _ALL.items() if about.sizes}
FETCHED: Mapping[str, Benchmark] = {name: about for name, about in _ALL.items() if about.addresses}

_EXAMPLES = 3
_CHUNK = 2**22


class Part(NamedTuple):
    name: str
    rows: Sequence[Row]
    expected: SplitSize


class _Missing(Exception):
    """Lists are missing without which nothing can be read; one text each."""


@dataclass(frozen=True)
class Location:
    """A folder or archive that may hold a benchmark."""

    benchmark: Benchmark
    path: Path
    prefix: str = ""

    @functools.cached_property
    def source(self) -> ImageSource:
        return self.inside("")

    def inside(self, folder: str) -> ImageSource:
        return open_source(self.path, prefix=f"{self.prefix}/{folder}".strip("/"))

    def holds(self, file: str) -> bool:
        if not file.endswith("/"):
            return self.source.exists(file)
        if isinstance(self.source, FolderSource):
            return (self.source.root / file).is_dir()
        return any(name.startswith(file) for name in self.source.names())

    def part(self, name: str, rows: Iterable[Row], size: str = "") -> Part:
        return Part(name, list(rows), self.benchmark.sizes[size or name])

    def missing(self, files: Iterable[str]) -> list[str]:
        contents = {**self.benchmark.either, **self.benchmark.files}
        return [
            f"{file}, {contents.get(file, 'a list')}, is missing: get it from {self.benchmark.origin}"
            for file in files
            if not self.holds(file)
        ]

    def require(self, files: Iterable[str], optional: Iterable[str] = ()) -> list[str]:
        """End the reading unless all of `files` are there; return a line for each of `optional` that is not."""
        required, further = self.missing(files), self.missing(optional)
        if required:
            raise _Missing(*required, *further)
        return further


@dataclass(frozen=True)
class Contents:
    """What a benchmark's reader returns.

    Attributes:
        images: the folder that paths start from.
        positives, ignored: pairs of a row of the first part and a row of the second.
        class_names: by label, where labels are ids.
    """

    parts: Sequence[Part]
    problems: Sequence[str] = ()
    images: str = ""
    positives: Sequence[tuple[int, int]] | None = None
    ignored: Sequence[tuple[int, int]] | None = None
    class_names: Mapping[str, str] | None = None


@dataclass(eq=False)
class PublishedReader:
    """The reader of a benchmark: finds it below the data folder, and insists on its published form.

    Its arguments are those of `read`, besides: `path`, the folder or archive below `root`, by default the usual ones;
    `complete`, False to read a part.
    """

    benchmark: Benchmark
    read: Callable[..., Contents]
    each: str = ""  # the argument whose every value `check_benchmark` examines

    def __post_init__(self) -> None:
        functools.update_wrapper(self, self.read)  # its name and docstring
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter("root", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Path),
            inspect.Parameter("path", kind, default=None, annotation=str | None),
            *[*inspect.signature(self.read).parameters.values()][1:],
            inspect.Parameter("complete", kind, default=True, annotation=bool),
        ]
        self.__signature__ = inspect.Signature(parameters, return_annotation=Manifest)

    def __call__(self, root: Path, *, path: str | None = None, complete: bool = True, **params: Any) -> Manifest:
        about = self.benchmark
        location = locate(about, root, path)
        manifest, problems = (None, []) if location is None else self.examine(location, **params)
        if manifest is not None and not (complete and problems):
            return manifest
        remedy = f"Get it from {about.origin} (terms: {about.terms})"
        if manifest is not None:
            remark = f" ({about.remark})" if about.remark else ""
            remedy = f"Get the rest from {about.origin}, or data.params.complete=false reads it as a part{remark}"
        problem = describe_absence(about, root, path)
        if location is not None:
            problem = f"{about.title} in {location.source.where} is not as published: {'; '.join(problems)}"
        raise UserError(
            f"{problem}. {remedy}; expected layout: {about.layout}; `aurank data check {about.name} --root {root}` "
            "lists all that is missing; data.root (or AURANK_DATA) names the folder that holds it"
        )

    def examine(self, location: Location, **params: Any) -> tuple[Manifest | None, list[str]]:
        """Return what was read, None where a list is missing, and all that differs from the published form."""
        try:
            contents = self.read(location, **params)
        except _Missing as error:
            return None, list(error.args)
        rows = [row for part in contents.parts for row in part.rows]
        source = location.inside(contents.images)
        manifest = build_listed(self.benchmark.name, source, rows, class_names=contents.class_names)
        shift = np.array([0, len(contents.parts[0].rows)])
        for name, pairs in (("positives", contents.positives), ("ignored", contents.ignored)):
            if pairs is not None:
                numbers = np.array(pairs, dtype=np.int64).reshape(-1, 2) + shift
                manifest = dataclasses.replace(manifest, **{name: numbers})
        sizes = [(part, SplitSize(len(part.rows), len({row.label for row in part.rows}))) for part in contents.parts]
        wrong = [f"{part.name} has {size}, expected {part.expected}" for part, size in sizes if size != part.expected]
        return manifest, [*contents.problems, *wrong]


PUBLISHED: dict[str, PublishedReader] = {}


def published(name: str, each: str = "") -> Callable[[Callable[..., Contents]], PublishedReader]:
    return lambda read: PUBLISHED.setdefault(name, PublishedReader(BENCHMARKS[name], read, each))


def locate(benchmark: Benchmark, root: Path, path: str | None = None) -> Location | None:
    locations = [
        Location(benchmark, root / folder, prefix)
        for folder in (benchmark.folders if path is None else [path])
        for prefix in ((benchmark.folders[0], "") if folder.endswith(".zip") else ("",))
        if (root / folder).exists()
    ]
    for location in locations:
        if any(map(location.holds, (*benchmark.files, *benchmark.either))):
            return location
    return next((location for location in locations if path is not None or location.path != root), None)


def describe_absence(benchmark: Benchmark, root: Path, path: str | None = None) -> str:
    tried = [root / folder for folder in benchmark.folders] if path is None else [root / path]
    return f"{benchmark.title} is not there: none of {', '.join(map(str, tried))} holds it"


def summarise(problem: str, examples: Sequence[str]) -> list[str]:
    if not examples:
        return []
    more = f"; and {len(examples) - _EXAMPLES:,} more" if len(examples) > _EXAMPLES else ""
    return [f"{problem}: {len(examples):,} ({'; '.join(examples[:_EXAMPLES])}{more})"]


@dataclass(frozen=True)
class Completeness:
    """What was found of a benchmark.

    Attributes:
        confirmed: what was found as published.
        problems: lines that each name one thing missing or different, and its remedy.
        unread: how many files among the images are in no list, by their endings; "" for none.

    Example:
        >>> from aurank.data import BENCHMARKS
        >>> print(Completeness(BENCHMARKS["sop"], "sop", ("the test list",), ()))
        Stanford Online Products in sop: complete
          found: the test list
    """

    benchmark: Benchmark
    where: str
    confirmed: tuple[str, ...]
    problems: tuple[str, ...]
    unread: str = ""

    @property
    def complete(self) -> bool:
        """Whether everything that aurank reads is there and as published."""
        return not self.problems

    def __str__(self) -> str:
        about = self.benchmark
        state = "complete" if self.complete else f"not complete, {len(self.problems)} to mend"
        lines = [f"{about.title} in {self.where}: {state}", *(f"  found: {text}" for text in self.confirmed)]
        lines += [f"  not read: {self.unread}"] if self.unread else []
        if not self.complete:
            lines += [f"  missing or different: {text}" for text in self.problems]
            lines += [f"  get it from: {about.origin}", f"  expected layout: {about.layout}", f"  terms: {about.terms}"]
            lines += [f"  remark: {about.remark}"] if about.remark else []
        return "\n".join(lines)


def file_md5(file: Path, on_bytes: Callable[[int], None] = lambda count: None) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            on_bytes(len(chunk))
    return digest.hexdigest()


def check_benchmark(
    name: str,
    root: Path,
    *,
    path: str | None = None,
    checksums: bool = True,
    on_bytes: Callable[[int, int], None] = lambda count, total: None,
) -> Completeness:
    """Return everything that a benchmark's folder lacks, or has otherwise than published.

    Every listed image is looked for, none is decoded: `examine` of the doctor does that.

    Args:
        name: a published set, such as sop or market1501.
        root: the data folder; the benchmark is looked for below it as its reader does.
        path: the folder, or zip archive, below it where it lies elsewhere.
        checksums: also compare the published md5 of the archives that lie in `root` or beside the images.
        on_bytes: called with the bytes just compared and their number in all.

    Raises:
        UserError: for another name.

    Example:
        >>> check_benchmark("sop", Path("nowhere")).complete
        False
    """
    if name not in PUBLISHED:
        raise UserError(f"no benchmark {name!r} to check; expected one of {', '.join(PUBLISHED)}")
    reader = PUBLISHED[name]
    benchmark = reader.benchmark
    location = locate(benchmark, root, path)
    confirmed: list[str] = []
    problems: list[str] = []
    unread: dict[str, set[str]] = {}
    if location is None:
        problems.append(describe_absence(benchmark, root, path))
    else:
        problems += location.missing(benchmark.files)
        values = get_args(inspect.signature(reader.read).parameters[reader.each].annotation) if reader.each else ()
        for params in [{reader.each: value} for value in values] or [{}]:
            try:
                manifest, wrong = reader.examine(location, **params)
            except UserError as error:
                problems.append(str(error))
                continue
            problems += wrong
            if manifest is not None:
                _compare(benchmark, manifest, confirmed, problems, unread)
    if checksums:
        folders = [root] if location is None else [root, location.path.parent, location.path]
        files = dict.fromkeys(folder / archive for archive in benchmark.archives for folder in folders)
        present = [file for file in files if file.is_file()]
        total = sum(file.stat().st_size for file in present)
        for file in present:
            md5, expected = file_md5(file, lambda count: on_bytes(count, total)), benchmark.archives[file.name]
            if md5 == expected:
                confirmed.append(f"{file} with the published md5")
            else:
                problems.append(f"{file} has md5 {md5}, expected {expected}: fetch it again")
    where = str(root) if location is None else location.source.where
    left = by_ending(sorted(set[str]().union(*unread.values())))
    return Completeness(benchmark, where, tuple(dict.fromkeys(confirmed)), tuple(dict.fromkeys(problems)), left)


def _compare(
    benchmark: Benchmark,
    manifest: Manifest,
    confirmed: list[str],
    problems: list[str],
    unread: dict[str, set[str]],  # of each folder of images, files that no reading lists
) -> None:
    source, lists = manifest.source, [*benchmark.files, *benchmark.either]
    missing = [image for image in dict.fromkeys(manifest.paths) if not source.exists(image)]
    problems += summarise(f"listed images that are not in {source.where}", missing)
    files = {name for name in source.names() if not any(file.endswith(name) for file in lists)}
    unread[source.where] = unread.get(source.where, files).intersection(files.difference(manifest.paths))
    for split in manifest.split_sizes:
        part = manifest.split(split)
        both = part.is_query & part.is_gallery
        sides = {"": both, " query": part.is_query & ~both, " gallery": part.is_gallery & ~both}
        for side, rows in sides.items():
            if rows.any():
                size = SplitSize(int(rows.sum()), len(np.unique(part.labels[rows])))
                confirmed.append(f"{split}{side} list of {size}")

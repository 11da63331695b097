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


def _read(name: str, table: Mapping[str, Any]) -> Benchmark:
    sizes = {part: SplitSize(*size) for part, size in table.get("sizes", {}).items()}
    return Benchmark(name, **{**table, "folders": tuple(table["folders"]), "sizes": sizes})


_ALL = {
    name: _read(name, table)
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
class Place:
    benchmark: Benchmark
    path: Path
    prefix: str = ""

    @functools.cached_property
    def source(self) -> ImageSource:
        return open_source(self.path, prefix=self.prefix)

    def inside(self, folder: str) -> ImageSource:
        return open_source(self.path, prefix=f"{self.prefix}/{folder}".lstrip("/"))

    def holds(self, file: str) -> bool:
        if not file.endswith("/"):
            return self.source.exists(file)
        if isinstance(self.source, FolderSource):
            return (self.source.root / file).is_dir()
        return any(name.startswith(file) for name in self.source.names())

    def part(self, name: str, rows: Iterable[Row], size: str = "") -> Part:
        return Part(name, list(rows), self.benchmark.sizes[size or name])

    def missing(self, files: Iterable[str]) -> list[str]:
        known = {**self.benchmark.either, **self.benchmark.files}
        return [
            f"{file}, {known.get(file, 'a list')}, is missing: get it from {self.benchmark.origin}"
            for file in files
            if not self.holds(file)
        ]

    def require(self, files: Iterable[str], further: Iterable[str] = ()) -> list[str]:
        """End the reading unless all of `files` are there; return the lines for those of `further` that are not."""
        needed, others = self.missing(files), self.missing(further)
        if needed:
            raise _Missing(*needed, *others)
        return others


@dataclass(frozen=True)
class Contents:
    parts: Sequence[Part]
    problems: Sequence[str] = ()
    images: str = ""
    positives: Sequence[tuple[int, int]] | None = None  # a row of the first part and a row of the second
    ignored: Sequence[tuple[int, int]] | None = None
    class_names: Mapping[str, str] | None = None  # where labels are ids


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
        own = list(inspect.signature(self.read).parameters.values())[1:]
        kind = inspect.Parameter.KEYWORD_ONLY
        given = [
            inspect.Parameter("root", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Path),
            inspect.Parameter("path", kind, default=None, annotation=str | None),
            *own,
            inspect.Parameter("complete", kind, default=True, annotation=bool),
        ]
        self.__signature__ = inspect.Signature(given, return_annotation=Manifest)

    def __call__(self, root: Path, *, path: str | None = None, complete: bool = True, **params: Any) -> Manifest:
        benchmark = self.benchmark
        place = locate(benchmark, root, path)
        manifest, problems = (None, []) if place is None else self.examine(place, **params)
        if manifest is not None and not (complete and problems):
            return manifest
        remedy = f"Get it from {benchmark.origin} (terms: {benchmark.terms})"
        if manifest is not None:
            remark = f" ({benchmark.remark})" if benchmark.remark else ""
            remedy = f"Get the rest from {benchmark.origin}, or data.params.complete=false reads it as a part{remark}"
        absence = describe_absence(benchmark, root, path)
        if place is not None:
            absence = f"{benchmark.title} in {place.source.where} is not as published: {'; '.join(problems)}"
        raise UserError(
            f"{absence}. {remedy}; expected layout: {benchmark.layout}; `aurank data check {benchmark.name} --root "
            f"{root}` lists all that is missing; data.root (or AURANK_DATA) names the folder that holds it"
        )

    def examine(self, place: Place, **params: Any) -> tuple[Manifest | None, list[str]]:
        """Return what was read, None where a list is missing, and all that differs from the published form."""
        try:
            found = self.read(place, **params)
        except _Missing as error:
            return None, list(error.args)
        rows = [row for part in found.parts for row in part.rows]
        manifest = build_listed(place.benchmark.name, place.inside(found.images), rows, class_names=found.class_names)
        shift = np.array([0, len(found.parts[0].rows)])
        pairs = {
            name: np.array(listed, dtype=np.int64).reshape(-1, 2) + shift
            for name in ("positives", "ignored")
            if (listed := getattr(found, name)) is not None
        }
        sizes = [SplitSize(len(part.rows), len({row.label for row in part.rows})) for part in found.parts]
        wrong = [
            f"{part.name} has {size}, expected {part.expected}"
            for part, size in zip(found.parts, sizes, strict=True)
            if size != part.expected
        ]
        return dataclasses.replace(manifest, **pairs), [*found.problems, *wrong]


PUBLISHED: dict[str, PublishedReader] = {}


def published(name: str, each: str = "") -> Callable[[Callable[..., Contents]], PublishedReader]:
    return lambda read: PUBLISHED.setdefault(name, PublishedReader(BENCHMARKS[name], read, each))


def locate(benchmark: Benchmark, root: Path, path: str | None = None) -> Place | None:
    paths = [root / folder for folder in benchmark.folders] if path is None else [root / path]
    places = [
        Place(benchmark, place, prefix)
        for place in paths
        for prefix in ((benchmark.folders[0], "") if place.suffix == ".zip" else ("",))
    ]
    there = [place for place in places if place.path.exists()]
    for place in there:
        if any(map(place.holds, (*benchmark.files, *benchmark.either))):
            return place
    return next((place for place in there if path is not None or place.path != root), None)


def describe_absence(benchmark: Benchmark, root: Path, path: str | None = None) -> str:
    tried = [root / folder for folder in benchmark.folders] if path is None else [root / path]
    return f"{benchmark.title} is not there: none of {', '.join(map(str, tried))} holds it"


def summarise(what: str, examples: Sequence[str]) -> list[str]:
    if not examples:
        return []
    more = f"; and {len(examples) - _EXAMPLES:,} more" if len(examples) > _EXAMPLES else ""
    return [f"{what}: {len(examples):,} ({'; '.join(examples[:_EXAMPLES])}{more})"]


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


def check_benchmark(
    name: str,
    root: Path,
    *,
    path: str | None = None,
    checksums: bool = True,
    on_bytes: Callable[[int, int], None] | None = None,
) -> Completeness:
    """Return everything that a benchmark's folder lacks, or has otherwise than published.

    Every listed image is looked for, none is decoded: `examine` of the doctor does that.

    Args:
        name: of `BENCHMARKS`, such as sop.
        root: the data folder; the benchmark is looked for below it as its reader does.
        path: the folder, or zip archive, below it where it lies elsewhere.
        checksums: compare the published md5 of the downloaded archives that lie in `root` or beside the images.
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
    place = locate(benchmark, root, path)
    confirmed: list[str] = []
    problems: list[str] = []
    lists, unread = [*benchmark.files, *benchmark.either], dict[str, set[str]]()
    if place is None:
        problems.append(describe_absence(benchmark, root, path))
    else:
        problems += place.missing(benchmark.files)
        values = get_args(inspect.signature(reader.read).parameters[reader.each].annotation) if reader.each else ()
        for params in [{reader.each: value} for value in values] or [{}]:
            try:
                manifest, wrong = reader.examine(place, **params)
            except UserError as error:
                problems.append(str(error))
                continue
            problems += wrong
            if manifest is None:
                continue
            missing = [image for image in dict.fromkeys(manifest.paths) if not manifest.source.exists(image)]
            folder = manifest.source.where
            there = {name for name in manifest.source.names() if not any(file.endswith(name) for file in lists)}
            unread[folder] = unread.get(folder, there).intersection(there.difference(manifest.paths))
            problems += summarise(f"listed images that are not in {manifest.source.where}", missing)
            for split in manifest.split_sizes:
                part = manifest.split(split)
                both = part.is_query & part.is_gallery
                sides = {"": both, " query": part.is_query & ~both, " gallery": part.is_gallery & ~both}
                for side, rows in sides.items():
                    if rows.any():
                        size = SplitSize(int(rows.sum()), len(np.unique(part.labels[rows])))
                        confirmed.append(f"{split}{side} list of {size}")
    if checksums:
        folders = [root] if place is None else [root, place.path.parent, place.path]
        files = [folder / archive for archive in benchmark.archives for folder in folders]
        present = [file for file in dict.fromkeys(files) if file.is_file()]
        total = sum(file.stat().st_size for file in present)
        for file in present:
            digest = hashlib.md5(usedforsecurity=False)
            with file.open("rb") as stream:
                while chunk := stream.read(_CHUNK):
                    digest.update(chunk)
                    if on_bytes is not None:
                        on_bytes(len(chunk), total)
            if (md5 := digest.hexdigest()) == (expected := benchmark.archives[file.name]):
                confirmed.append(f"{file} with the published md5")
            else:
                problems.append(f"{file} has md5 {md5}, expected {expected}: fetch it again")
    where = str(root) if place is None else place.source.where
    others = by_ending(sorted(set[str]().union(*unread.values())))
    return Completeness(benchmark, where, tuple(dict.fromkeys(confirmed)), tuple(dict.fromkeys(problems)), others)

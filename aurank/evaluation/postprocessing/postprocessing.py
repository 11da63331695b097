"""Post-processing of embeddings and of ranked lists as named steps, with a text form and a file."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float64

from aurank.errors import UserError
from aurank.evaluation.engine.nearest import NearestRows, nearest_rows
from aurank.evaluation.engine.problem import (
    Embeddings,
    ProgressCallback,
    RetrievalProblem,
    check_matrix,
    check_sides,
    device_of,
    importable,
    rows_without_junk,
)
from aurank.evaluation.engine.ranks import RankBlocks, Ranks
from aurank.evaluation.engine.scores import ELEMENTS, check_distance, read, row_lengths
from aurank.evaluation.postprocessing.neighbour_steps import (
    DatabaseAugmentation,
    KReciprocal,
    QueryExpansion,
    Rescore,
    reordered_ranks,
)
from aurank.evaluation.postprocessing.steps import (
    Binary,
    Centring,
    Float16,
    Int8,
    ListStep,
    Rows,
    RowStep,
    Sides,
    SideStep,
    Step,
    Truncate,
    Whiten,
)
from aurank.files import read_bundle, reading, write_bundle
from aurank.names import meant, nearest

_ALL: tuple[type[Step], ...] = (
    *(Centring, Whiten, Truncate, Float16, Int8, Binary),
    *(QueryExpansion, DatabaseAugmentation, KReciprocal, Rescore),
)
STEPS = {step.name: step for step in _ALL}
Source = TypeVar("Source", Ranks, RankBlocks)
_WHAT = "post-processing"


@dataclass
class _About:
    """What a file says of its steps, and what each has learnt."""

    __pydantic_config__ = {"arbitrary_types_allowed": True, "extra": "forbid"}  # noqa: RUF012

    steps: str
    distance: str
    fitted_rows: int
    states: list[dict[str, torch.Tensor]]


@dataclass(frozen=True, eq=False)
class PostProcessing:
    """Steps that are applied one after another to queries and gallery, and the last of them to the ranked lists.

    First steps that change each row by itself, then those that look at neighbours, then at most one that orders lists
    anew. Under cosine every step to which length matters gets rows of length 1.

    Args:
        distance: of the evaluation that they belong to.
        fitted_rows: how many training rows they have learnt from.

    Example:
        >>> rows = np.random.default_rng(0).normal(size=(90, 4)) * [9.0, 1.0, 1.0, 1.0]
        >>> processing = PostProcessing.parse("whiten:dim=3, query_expansion:k=2,alpha=1").fit(rows[:50])
        >>> print(processing)
        whiten:dim=3, query_expansion:k=2,alpha=1
        >>> processing.transductive
        ['query_expansion']
    """

    steps: tuple[Step, ...]
    distance: str = "cosine"
    fitted_rows: int = 0

    def __post_init__(self) -> None:
        check_distance(self.distance)
        kinds = [[isinstance(step, kind) for kind in (RowStep, SideStep, ListStep)].index(True) for step in self.steps]
        if kinds != sorted(kinds) or kinds.count(2) > 1:
            order = "steps that change single rows come first, then query_expansion and database_augmentation"
            last = "then at most one that orders lists anew (k_reciprocal, rescore)"
            raise UserError(f"post-processing {str(self)!r}: {order}, {last}")
        for step in self.steps:
            if self.distance != "cosine" and isinstance(step, SideStep | KReciprocal):
                raise UserError(f"{step.name} goes by cosines, and the distance is {self.distance}: leave one out")

    @classmethod
    def parse(cls, text: str, *, distance: str = "cosine") -> "PostProcessing":
        """Return the steps of a text such as "center, whiten:dim=128, k_reciprocal:k1=20,k2=6"."""
        steps: list[tuple[str, dict[str, str]]] = []
        for part in (part.strip() for part in text.split(",")):
            name, colon, first = (piece.strip() for piece in part.partition(":"))
            if "=" in name and steps:
                first = part
            else:
                steps.append((name, {}))
            if first or colon:
                key, _, value = (piece.strip() for piece in first.partition("="))
                if not key or not value or key in steps[-1][1]:
                    raise UserError(f"post-processing {text!r}: expected NAME=VALUE, each name once, got {first!r}")
                steps[-1][1][key] = value
        for name, _ in steps:
            if name not in STEPS:
                hint = meant(nearest(name, STEPS))
                raise UserError(f"no post-processing step {name!r}, expected some of {', '.join(STEPS)}{hint}")
        return cls(tuple(STEPS[name](**given) for name, given in steps), distance)

    def __str__(self) -> str:
        return ", ".join(map(str, self.steps))

    @property
    def transductive(self) -> list[str]:
        """The names of the steps after which a score depends on other rows of the test set than its own two."""
        return [step.name for step in self.steps if step.is_transductive]

    @property
    def is_fitted(self) -> bool:
        return all(bool(step.state) for step in self._row_steps if step.learns)

    @property
    def is_of_rows(self) -> bool:
        return len(self._row_steps) == len(self.steps)

    @property
    def orders_lists(self) -> bool:
        return isinstance(self.steps[-1], ListStep)

    def require_fitted(self) -> None:
        for step in self._row_steps:
            step.require_fitted()

    def require_distance(self, distance: str) -> None:
        if self.distance != distance:
            raise UserError(f"the post-processing is for the distance {self.distance}, not for {distance}")

    def require_scores_of_all_pairs(self) -> None:
        if self.orders_lists:
            raise UserError(f"{str(self)!r} orders lists by scores of their own, which no threshold fits")

    def fit(self, rows: Embeddings) -> "PostProcessing":
        """Return the steps with what they learn of training rows, each behind those before it."""
        check_matrix(rows, side="training")
        steps = list(self.steps)
        for place, step in enumerate(steps):
            if isinstance(step, RowStep) and step.learns:
                steps[place] = step.fit(self._changed(rows, steps[:place], side="training", final=False))
        return replace(self, steps=tuple(steps), fitted_rows=len(rows))

    def rows(self, embeddings: Embeddings, *, side: str = "query", uncoded: bool = False) -> Rows:
        """Return embeddings as they are behind the steps that change single rows, float32 unless float64 came.

        With `uncoded`, behind those before the first code.
        """
        check_matrix(embeddings, side=side)
        return self._changed(embeddings, self.before_codes if uncoded else self._row_steps, side=side)

    def apply(self, problem: RetrievalProblem, *, device: str = "cpu") -> "Processed":
        """Return the problem behind the steps; UserError where they do not fit it."""
        check_sides(problem)
        self.require_fitted()
        last = self.steps[-1]
        sides = self._sides(problem, self._row_steps)
        uncoded = self._sides(problem, self.before_codes) if self.has_codes and isinstance(last, Rescore) else sides
        for step in self.steps:
            if isinstance(step, SideStep):
                sides = step.sides(sides, device=device)
        changed = replace(problem, embeddings=sides.queries, gallery=sides.gallery)
        if problem.gallery is None and sides.gallery is not None:
            rows = np.arange(len(sides.queries))
            changed = replace(changed, gallery_labels=problem.labels, gallery_groups=problem.groups)
            changed = replace(changed, ids=rows, gallery_ids=rows)
        return Processed(changed, self, sides, uncoded, device)

    def save(self, path: Path | str) -> None:
        """Write what was learnt and the text form as one safetensors file."""
        states = [dict(step.state) if isinstance(step, RowStep) else {} for step in self.steps]
        about = {"steps": str(self), "distance": self.distance, "fitted_rows": self.fitted_rows}
        write_bundle(Path(path), {**about, "states": states}, _WHAT)

    @classmethod
    def load(cls, path: Path | str) -> "PostProcessing":
        """Return what `save` wrote, digit for digit; UserError for a file that is missing or something else."""
        path = Path(path)
        about = read_bundle(path, _About, _WHAT, remedy="save it anew")
        with reading(path, _WHAT, remedy="save it anew"):
            steps = cls.parse(about.steps, distance=about.distance)
            states = zip(steps.steps, about.states, strict=True)
            fitted = [
                step.with_state({name: state[name].numpy() for name in step.learns})
                if isinstance(step, RowStep) and step.learns
                else step
                for step, state in states
            ]
            return replace(steps, steps=tuple(fitted), fitted_rows=about.fitted_rows)

    @property
    def note(self) -> str:
        """What a reader of the numbers must know, in a line."""
        learnt = f", fitted on {self.fitted_rows:,} training rows" if self.fitted_rows else ""
        if not self.transductive:
            return f"post-processing: {self}{learnt}"
        names = " and ".join(self.transductive)
        verb = "is" if len(self.transductive) == 1 else "are"
        return f"post-processing: {self}{learnt}; {names} {verb} transductive: a score depends on other test rows"

    @property
    def has_codes(self) -> bool:
        return any(step.makes_code for step in self._row_steps)

    @property
    def before_codes(self) -> list[RowStep]:
        """The steps before the first that makes a code."""
        return list(takewhile(lambda step: not step.makes_code, self._row_steps))

    @property
    def _row_steps(self) -> list[RowStep]:
        return [step for step in self.steps if isinstance(step, RowStep)]

    def _sides(self, problem: RetrievalProblem, steps: Sequence[RowStep]) -> Sides:
        queries = self._changed(problem.embeddings, steps, side="query")
        gallery = None if problem.gallery is None else self._changed(problem.gallery, steps, side="gallery")
        own = problem.own_rows()
        return Sides(
            queries,
            gallery,
            np.full(len(queries), -1) if own is None else own,
            rows_without_junk(problem.junk, len(problem.target)),
        )

    def _changed(self, embeddings: Embeddings, steps: Sequence[Step], *, side: str, final: bool = True) -> Rows:
        row_lengths(embeddings, side=side, distance=self.distance, compiled=importable("numba"))
        index = torch.arange(len(embeddings), device=device_of(embeddings))
        kept = np.float64 if not final or str(embeddings.dtype).endswith("float64") else np.float32
        found, start = np.empty((0, 0), kept), 0
        for piece in torch.split(index, max(1, ELEMENTS // embeddings.shape[1])):
            rows = read(embeddings, piece).cpu().numpy()
            for step in steps:
                assert isinstance(step, RowStep)
                rows = step(rows if step.is_scale_free else self._scaled(rows))
            if not start:
                found = np.empty((len(embeddings), rows.shape[1]), kept)
            found[start : start + len(rows)] = rows if final else self._scaled(rows)
            start += len(rows)
        return found

    def _scaled(self, rows: Float64[np.ndarray, "row dim"]) -> Float64[np.ndarray, "row dim"]:
        if self.distance != "cosine":
            return rows
        length = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
        return np.asarray(rows / np.where(length > 0, length, 1))


@dataclass(frozen=True, eq=False)
class Processed:
    """A problem behind post-processing, and what is left to be done to its ranks.

    Example:
        >>> problem = RetrievalProblem(np.array([[3.0, 1.0], [3.0, -1.0], [1.0, 2.0]]), labels=[0, 0, 1])
        >>> PostProcessing.parse("binary").apply(problem).problem.embeddings.tolist()
        [[1.0, 1.0], [1.0, -1.0], [1.0, 1.0]]
    """

    problem: RetrievalProblem
    processing: PostProcessing
    sides: Sides
    uncoded: Sides
    device: str = "cpu"

    def finish(
        self, ranks: Source, *, max_memory: int | str = "1GiB", progress: ProgressCallback | None = None
    ) -> Source:
        """Return the ranks of `problem` behind the step that orders lists anew, if there is one."""
        last = self.processing.steps[-1]
        if not isinstance(last, ListStep) or not len(ranks.query):
            return ranks
        lists = self._before(last.depth, max_memory, progress)
        score = self._scores(last, lists)
        return ranks.changed(lambda some: reordered_ranks(some, lists, score))

    def nearest(
        self, k: int, *, max_memory: int | str = "1GiB", progress: ProgressCallback | None = None
    ) -> NearestRows:
        """Return the beginnings of the lists that `finish` counts; a row that got a new score has that one."""
        last = self.processing.steps[-1]
        if not isinstance(last, ListStep):
            return self._before(k, max_memory, progress)
        lists, depth = self._before(max(k, last.depth), max_memory, progress), last.depth
        head = NearestRows(lists.query, lists.row[:, :depth], lists.score[:, :depth], lists.is_positive[:, :depth])
        score = self._scores(last, head)
        order = np.lexsort((head.row, head.is_positive, -score), axis=1)
        joined = [
            np.concatenate([np.take_along_axis(new, order, axis=1), old[:, depth:]], axis=1)[:, :k]
            for new, old in ((head.row, lists.row), (score, lists.score), (head.is_positive, lists.is_positive))
        ]
        return NearestRows(lists.query, *joined)

    def _before(self, k: int, max_memory: int | str, progress: ProgressCallback | None) -> NearestRows:
        how: dict[str, Any] = {"device": self.device, "max_memory": max_memory, "progress": progress}
        return nearest_rows(self.problem, k, distance=self.processing.distance, **how)

    def _scores(self, step: ListStep, lists: NearestRows) -> Float64[np.ndarray, "query k"]:
        distance = self.processing.distance
        return step.scores(lists, self.sides, self.uncoded, distance=distance, device=self.device)


BITS = {"float32": 32, "float16": 16, "int8": 8, "binary": 1}


@dataclass(frozen=True)
class Codes:
    """Which widths and precisions of the embeddings to measure beside the embeddings as they are.

    Args:
        dims: how many numbers of each row, from the first, are kept; none: all.
        precisions: "float32", "float16", "int8" (scales from the gallery) or "binary".
        rescore: length of the lists that each code is measured with once more, scored again by the rows as they came.

    Example:
        >>> import aurank, numpy as np
        >>> rows = np.array([[1.0, 0.2], [0.9, 0.3], [-1.0, 0.2], [-0.9, 0.1]])
        >>> report = aurank.evaluate(rows, [0, 0, 1, 1], codes=Codes(dims=(1, 2), precisions=("float32", "binary")))
        >>> [(code["dim"], code["precision"], code["bytes"]) for code in report.codes]
        [(1, 'float32', 4), (1, 'binary', 1), (2, 'float32', 8), (2, 'binary', 1)]
    """

    dims: tuple[int, ...] = ()
    precisions: tuple[str, ...] = ("float32",)
    rescore: int | None = None

    def __post_init__(self) -> None:
        if min((*self.dims, 1 if self.rescore is None else self.rescore), default=1) < 1:
            raise UserError(f"dims and rescore must be 1 or more; got {self.dims} and {self.rescore}")
        for precision in self.precisions or ("",):
            if precision not in BITS:
                hint = meant(nearest(precision, BITS))
                raise UserError(f"no precision {precision!r}, expected some of {', '.join(BITS)}{hint}")

    def each(self, width: int) -> Iterator[dict[str, Any]]:
        """Yield "dim", "precision", "rescored" (a length or None) and "bytes" of each code of rows of that width."""
        wide = [dim for dim in self.dims if dim > width]
        if wide:
            raise UserError(f"dims asks for {wide[0]} numbers, and the embeddings have {width}: name smaller ones")
        for dim in sorted(set(self.dims)) or [width]:
            for precision in dict.fromkeys(self.precisions):
                code = {"dim": dim, "precision": precision, "bytes": -(-dim * BITS[precision] // 8)}
                is_whole = (dim, precision) == (width, "float32")
                for depth in [None] if self.rescore is None or is_whole else [None, self.rescore]:
                    yield {**code, "rescored": depth}


def code_table(
    problem: RetrievalProblem,
    codes: Codes,
    *,
    distance: str,
    device: str,
    measure: Callable[[Processed], dict[str, float]],
) -> list[dict[str, Any]]:
    """Return what `Codes.each` gives, with the "metrics" that `measure` returns for the problem in that code."""
    width, table = int(problem.target.shape[1]), []
    for code in codes.each(width):
        steps = [f"truncate:dim={code['dim']}"]
        steps += [code["precision"]] if code["precision"] != "float32" else []
        steps += [] if code["rescored"] is None else [f"rescore:depth={code['rescored']}"]
        processing = PostProcessing.parse(", ".join(steps), distance=distance)
        processing = processing.fit(problem.target) if not processing.is_fitted else processing
        table.append({**code, "metrics": measure(processing.apply(problem, device=device))})
    return table


def describe_codes(table: list[dict[str, Any]]) -> str:
    """Return the table as text: a line for each code.

    Example:
        >>> code = {"dim": 64, "precision": "int8", "bytes": 64, "rescored": 100, "metrics": {"mauprc": 0.5}}
        >>> print(describe_codes([code]))
        dim  precision  bytes an image  rescored  mauprc
         64  int8                   64       100  0.5000
    """
    names = list(table[0]["metrics"])
    lines = ["dim  precision  bytes an image  rescored  " + "  ".join(names)]
    for code in table:
        values = "  ".join(f"{code['metrics'][name]:<{len(name)}.4f}" for name in names)
        depth = "" if code["rescored"] is None else f"{code['rescored']:,}"
        lines.append(f"{code['dim']:>3}  {code['precision']:<9}  {code['bytes']:>14,}  {depth:>8}  {values.rstrip()}")
    return "\n".join(lines)

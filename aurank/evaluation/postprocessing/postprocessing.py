"""Post-processing of embeddings and ranked lists as named steps, with a text form and a file."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float64
from pydantic import ValidationError

from aurank.arrays import Arrays
from aurank.errors import UserError
from aurank.evaluation.engine.nearest import NearestRows, nearest_rows
from aurank.evaluation.engine.ranks import RankBlocks, Ranks
from aurank.evaluation.engine.scores import DISTANCES, pieces, row_lengths
from aurank.evaluation.inputs import (
    Embeddings,
    ProgressCallback,
    RetrievalProblem,
    as_matrix,
    check_sides,
    require_at_least,
    rows_without_junk,
)
from aurank.evaluation.postprocessing.neighbour_steps import (
    DatabaseAugmentation,
    KReciprocal,
    QueryExpansion,
    Rescore,
    SideStep,
    reordered_ranks,
)
from aurank.evaluation.postprocessing.steps import (
    Binary,
    Centring,
    Int8,
    ListStep,
    Rows,
    RowStep,
    Sides,
    State,
    Step,
    Truncate,
    Whiten,
    unit,
)
from aurank.files import read_bundle, reading, write_bundle
from aurank.names import require_choice

_ALL: tuple[type[Step], ...] = (
    *(Centring, Whiten, Truncate, Int8, Binary),
    *(QueryExpansion, DatabaseAugmentation, KReciprocal, Rescore),
)
STEPS = {step.name: step for step in _ALL}
Source = TypeVar("Source", Ranks, RankBlocks)
_WHAT = "post-processing"


@dataclass
class _About:
    __pydantic_config__ = {"arbitrary_types_allowed": True, "extra": "forbid"}  # noqa: RUF012

    steps: str
    distance: str
    fitted_rows: int
    states: list[dict[str, torch.Tensor]]


@dataclass(frozen=True, eq=False)
class PostProcessing:
    """Steps that are applied one after another to queries and gallery, and the last of them to the ranked lists.

    Steps that change each row by itself come first, then those that look at neighbours, then at most one that scores
    lists anew. Under cosine every step that depends on the lengths of rows gets rows of length 1.

    Args:
        distance: of the evaluation that uses them.
        fitted_rows: number of training rows.
        states: what each step has learnt, by its position.

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
    states: dict[int, State] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_choice("distance", self.distance, DISTANCES)
        kinds = [[isinstance(step, kind) for kind in (RowStep, SideStep, ListStep)].index(True) for step in self.steps]
        if kinds != sorted(kinds) or kinds.count(2) > 1:
            raise UserError(
                f"post-processing {str(self)!r}: steps that change single rows come first, then query_expansion and "
                "database_augmentation, then at most one of k_reciprocal and rescore"
            )
        for step in self.steps:
            if self.distance != "cosine" and isinstance(step, SideStep | KReciprocal):
                raise UserError(f"{step.name} uses cosines, and the distance is {self.distance}: leave one out")

    @classmethod
    def parse(cls, text: str, *, distance: str = "cosine") -> "PostProcessing":
        """Return the steps of a text such as "center, whiten:dim=128, k_reciprocal:k1=20,k2=6"."""
        named: list[tuple[str, dict[str, str]]] = []
        for part in (part.strip() for part in text.split(",")):
            name, colon, first = (piece.strip() for piece in part.partition(":"))
            if "=" in name and named:
                first = part
            else:
                named.append((name, {}))
            if first or colon:
                key, _, value = (piece.strip() for piece in first.partition("="))
                if not key or not value or key in named[-1][1]:
                    raise UserError(f"post-processing {text!r}: expected NAME=VALUE, each name once, got {first!r}")
                named[-1][1][key] = value
        steps = []
        for name, parameters in named:
            require_choice("post-processing step", name, STEPS)
            for key in parameters:
                require_choice(f"parameter of {name}", key, STEPS[name].model_fields)
            try:
                steps.append(STEPS[name](**parameters))
            except ValidationError as error:
                wrong = error.errors()[0]
                raise UserError(f"{name}: {wrong['loc'][0]}: {wrong['msg']}, got {wrong['input']!r}") from None
        return cls(tuple(steps), distance)

    def __str__(self) -> str:
        return ", ".join(map(str, self.steps))

    @property
    def transductive(self) -> list[str]:
        """The names of the steps that make a score depend on other test rows than its own two."""
        return [step.name for step in self.steps if step.is_transductive]

    @property
    def is_fitted(self) -> bool:
        return all(position in self.states for position, step in enumerate(self.steps) if step.learns)

    @property
    def is_of_rows(self) -> bool:
        return len(self._row_steps) == len(self.steps)

    @property
    def list_step(self) -> ListStep | None:
        """The step that scores lists anew."""
        return next((step for step in self.steps if isinstance(step, ListStep)), None)

    def check_ready(self, distance: str) -> None:
        """Raise UserError for steps that are not fitted, or are for another distance."""
        if not self.is_fitted:
            remedy = "PostProcessing.parse(…).fit(rows), or --fit-on FILE"
            raise UserError(f"the post-processing {str(self)!r} has to be fitted on training rows: {remedy}")
        if self.distance != distance:
            raise UserError(f"the post-processing is for the distance {self.distance}, not for {distance}")

    def fit(self, rows: Arrays) -> "PostProcessing":
        """Return the steps fitted on training rows, each on the rows after the steps before it."""
        rows = as_matrix(rows, side="training")
        fitted = replace(self, fitted_rows=len(rows), states={})
        for position, step in enumerate(self._row_steps):
            if step.learns:
                fitted.states[position] = step.learn(fitted._changed(rows, position, side="training", final=False))
        return fitted

    def rows(self, embeddings: Arrays, *, side: str = "query", uncoded: bool = False) -> Rows:
        """Return embeddings after the steps that change single rows, as float64 or else float32.

        With `uncoded`, after the steps before the first code.
        """
        embeddings = as_matrix(embeddings, side=side)
        self.check_ready(self.distance)
        codes = [position for position, step in enumerate(self._row_steps) if step.makes_code] if uncoded else []
        return self._changed(embeddings, min(codes, default=len(self._row_steps)), side=side)

    def apply(self, problem: RetrievalProblem, *, device: str = "cpu") -> "Processed":
        """Return the problem after the steps; UserError if they do not fit it."""
        check_sides(problem)
        sides = self._sides(problem)
        uncoded = self._sides(problem, uncoded=True) if isinstance(self.list_step, Rescore) else None
        for step in self.steps:
            if isinstance(step, SideStep):
                sides = step.sides(sides, device=device)
        changed = replace(problem, embeddings=sides.queries)
        if sides.gallery is not sides.queries:
            changed = replace(changed, gallery=sides.gallery)
            if problem.gallery is None:
                rows = np.arange(len(sides.queries))
                changed = replace(changed, gallery_labels=problem.labels, gallery_groups=problem.groups)
                changed = replace(changed, ids=rows, gallery_ids=rows)
        return Processed(changed, self, uncoded or sides, device)

    def save(self, path: Path | str) -> None:
        """Write the states and the text form as one safetensors file."""
        states = [dict(self.states.get(position, {})) for position in range(len(self.steps))]
        about = {"steps": str(self), "distance": self.distance, "fitted_rows": self.fitted_rows}
        write_bundle(Path(path), {**about, "states": states}, _WHAT)

    @classmethod
    def load(cls, path: Path | str) -> "PostProcessing":
        """Return what `save` wrote, digit for digit; UserError for a file that is missing or something else."""
        path = Path(path)
        about = read_bundle(path, _About, _WHAT, remedy="save it anew")
        with reading(path, _WHAT, remedy="save it anew"):
            steps = cls.parse(about.steps, distance=about.distance)
        states: dict[int, State] = {
            position: {name: values.numpy() for name, values in state.items()}
            for position, state in enumerate(about.states)
            if state
        }
        return replace(steps, fitted_rows=about.fitted_rows, states=states)

    @property
    def note(self) -> str:
        """One line for a reader of the numbers: steps, training rows, and which steps are transductive."""
        learnt = f", fitted on {self.fitted_rows:,} training rows" if self.fitted_rows else ""
        if not self.transductive:
            return f"post-processing: {self}{learnt}"
        names = " and ".join(self.transductive)
        verb = "is" if len(self.transductive) == 1 else "are"
        return f"post-processing: {self}{learnt}; {names} {verb} transductive: a score depends on other test rows"

    @property
    def _row_steps(self) -> list[RowStep]:
        return [step for step in self.steps if isinstance(step, RowStep)]

    def _sides(self, problem: RetrievalProblem, *, uncoded: bool = False) -> Sides:
        queries = gallery = self.rows(problem.embeddings, uncoded=uncoded)
        if problem.gallery is not None:
            gallery = self.rows(problem.gallery, side="gallery", uncoded=uncoded)
        own_row = problem.own_rows()
        own_row = np.full(len(queries), -1) if own_row is None else own_row
        return Sides(queries, gallery, own_row, rows_without_junk(problem.junk, len(gallery)))

    def _changed(self, embeddings: Embeddings, count: int, *, side: str, final: bool = True) -> Rows:
        row_lengths(embeddings, side=side, distance=self.distance)
        kind = np.float64 if not final or str(embeddings.dtype).endswith("float64") else np.float32
        changed, start = np.empty((0, 0), kind), 0
        for piece in pieces(embeddings):
            rows = piece.cpu().numpy()
            for position, step in enumerate(self._row_steps[:count]):
                state = self.states.get(position, {})
                width = next((values.shape[-1] for values in state.values()), rows.shape[1])
                if width != rows.shape[1]:
                    raise UserError(
                        f"{step.name} was fitted on rows of width {width}, and these have {rows.shape[1]}: fit and "
                        "apply it on embeddings of one model"
                    )
                rows = step.change(rows if step.is_scale_free else self._scaled(rows), state)
            if not start:
                changed = np.empty((len(embeddings), rows.shape[1]), kind)
            changed[start : start + len(rows)] = rows if final else self._scaled(rows)
            start += len(rows)
        return changed

    def _scaled(self, rows: Float64[np.ndarray, "row dim"]) -> Float64[np.ndarray, "row dim"]:
        return unit(rows) if self.distance == "cosine" else rows


@dataclass(frozen=True, eq=False)
class Processed:
    """A problem after post-processing, whose ranks the list step still changes."""

    problem: RetrievalProblem
    processing: PostProcessing
    sides: Sides  # for the list step
    device: str = "cpu"

    def finish(
        self, ranks: Source, *, max_memory: int | str = "1GiB", progress: ProgressCallback | None = None
    ) -> Source:
        last = self.processing.list_step
        if last is None or not len(ranks.query):
            return ranks
        lists = self._lists(last.depth, max_memory, progress)
        score = last.scores(lists, self.sides, distance=self.processing.distance, device=self.device)
        return ranks.changed(lambda block: reordered_ranks(block, lists, score))

    def nearest(
        self, k: int, *, max_memory: int | str = "1GiB", progress: ProgressCallback | None = None
    ) -> NearestRows:
        """Return the beginnings of the lists that `finish` counts, with the new scores."""
        last = self.processing.list_step
        if last is None:
            return self._lists(k, max_memory, progress)
        lists = self._lists(max(k, last.depth), max_memory, progress)
        return last.reordered(lists, self.sides, distance=self.processing.distance, device=self.device).first(k)

    def _lists(self, k: int, max_memory: int | str, progress: ProgressCallback | None) -> NearestRows:
        how: dict[str, Any] = {"device": self.device, "max_memory": max_memory, "progress": progress}
        return nearest_rows(self.problem, k, distance=self.processing.distance, **how)


BITS = {"float32": 32, "int8": 8, "binary": 1}


@dataclass(frozen=True)
class Codes:
    """The widths and precisions to measure beside the embeddings themselves.

    Args:
        dims: widths: the first numbers of each row; none: all.
        precisions: "float32", "int8" (scales from the gallery) or "binary".
        rescore: length of the lists that are scored by the embeddings once more.

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
        require_at_least(1, **{f"dims[{index}]": dim for index, dim in enumerate(self.dims)})
        require_at_least(1, rescore=1 if self.rescore is None else self.rescore)
        for precision in self.precisions or ("",):
            require_choice("precision", precision, BITS)

    def each(
        self, problem: RetrievalProblem, *, distance: str, device: str
    ) -> Iterator[tuple[dict[str, Any], "Processed"]]:
        """Yield the "dim", "precision", "bytes" and "rescored" (a length or None) of each code, and its problem."""
        width = int(problem.target.shape[1])
        for dim in sorted(set(self.dims)) or [width]:
            for precision in dict.fromkeys(self.precisions):
                is_whole = (dim, precision) == (width, "float32")
                for depth in [None] if self.rescore is None or is_whole else [None, self.rescore]:
                    steps = [f"truncate:dim={dim}"]
                    steps += [precision] if precision != "float32" else []
                    steps += [] if depth is None else [f"rescore:depth={depth}"]
                    processing = PostProcessing.parse(", ".join(steps), distance=distance)
                    processing = processing if processing.is_fitted else processing.fit(problem.target)
                    code = {"dim": dim, "precision": precision, "bytes": -(-dim * BITS[precision] // 8)}
                    yield {**code, "rescored": depth}, processing.apply(problem, device=device)


def describe_codes(table: list[dict[str, Any]]) -> str:
    names = list(table[0]["metrics"])
    lines = ["dim  precision  bytes an image  rescored  " + "  ".join(names)]
    for code in table:
        values = "  ".join(f"{code['metrics'][name]:<{len(name)}.4f}" for name in names)
        depth = "" if code["rescored"] is None else f"{code['rescored']:,}"
        lines.append(f"{code['dim']:>3}  {code['precision']:<9}  {code['bytes']:>14,}  {depth:>8}  {values.rstrip()}")
    return "\n".join(lines)

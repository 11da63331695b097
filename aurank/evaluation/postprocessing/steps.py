"""What every step of post-processing is, and the steps that change each row by itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Le
from jaxtyping import Float64, Int64
from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError

from aurank.errors import UserError
from aurank.evaluation.engine.nearest import NearestRows
from aurank.names import meant, nearest

Rows = np.ndarray[tuple[int, int], np.dtype[np.floating]]
Count = Annotated[int, Ge(1)]
Part = Annotated[float, Ge(0), Le(1)]


@dataclass(frozen=True, eq=False)
class Sides:
    """Queries and gallery between two steps; `gallery` is None where the queries are their own."""

    queries: Rows
    gallery: Rows | None
    own: Int64[np.ndarray, " query"]  # the gallery row that is the query's own item, -1 for none
    kept: Int64[np.ndarray, " kept"]  # gallery rows that are not junk

    @property
    def target(self) -> Rows:
        return self.queries if self.gallery is None else self.gallery

    @cached_property
    def searched(self) -> Rows:
        """The gallery without junk."""
        return self.target if len(self.kept) == len(self.target) else self.target[self.kept]

    @cached_property
    def own_kept(self) -> Int64[np.ndarray, " query"]:
        """Each query's own item among the rows of `searched`, -1 for none."""
        place = np.full(len(self.target) + 1, -1)
        place[self.kept] = np.arange(len(self.kept))
        return np.asarray(place[self.own])  # the last place is that of -1


class Step(BaseModel):
    """One step; its fields are the parameters of its text form."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    is_transductive: ClassVar[bool] = False  # whether a score depends on other test rows than the two that are scored

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            wrong, known = error.errors()[0], list(type(self).model_fields)
            parameter = str(wrong["loc"][0])
            if parameter not in known:
                has = f"its parameters are {', '.join(known)}" if known else "it has none"
                hint = meant(nearest(parameter, known))
                raise UserError(f"{self.name} has no parameter {parameter!r}; {has}{hint}") from None
            raise UserError(f"{self.name}: {parameter}: {wrong['msg']}, got {wrong['input']!r}") from None

    def __str__(self) -> str:
        """Return the text form, with the parameters that are not the usual ones."""
        values = {name: (getattr(self, name), field.default) for name, field in type(self).model_fields.items()}
        changed = {name: value for name, (value, usual) in values.items() if value != usual}
        shown = ",".join(f"{name}={str(value).removesuffix('.0')}" for name, value in changed.items())
        return f"{self.name}:{shown}" if shown else self.name


class RowStep(Step):
    """A step that changes each row by itself."""

    learns: ClassVar[tuple[str, ...]] = ()  # the arrays of its state; the last axis of each is the width of the rows
    is_scale_free: ClassVar[bool] = False  # whether it does the same to longer rows
    makes_code: ClassVar[bool] = False  # what `rescore` looks behind

    _state: Mapping[str, Float64[np.ndarray, "..."]] = PrivateAttr(default_factory=dict)

    @property
    def state(self) -> Mapping[str, Float64[np.ndarray, "..."]]:
        """What it has learnt of the training rows."""
        return self._state

    def with_state(self, state: Mapping[str, np.ndarray]) -> "RowStep":
        """Return this step as it is after learning."""
        step = self.model_copy()
        step._state = state
        return step

    def learnt(self, rows: Float64[np.ndarray, "row dim"]) -> Mapping[str, Float64[np.ndarray, "..."]]:
        """Return what has to be known of the training rows."""
        return {}

    def changed(self, rows: Float64[np.ndarray, "row dim"]) -> Float64[np.ndarray, "row width"]:
        """Return the rows as they are behind this step."""
        raise NotImplementedError

    def fit(self, rows: Float64[np.ndarray, "row dim"]) -> "RowStep":
        """Return this step with what it has learnt of the training rows."""
        return self.with_state(self.learnt(rows)) if self.learns else self

    def require_fitted(self) -> None:
        """Raise UserError where it has something to learn and has not."""
        if self.learns and not self.state:
            raise UserError(
                f"{self.name} has to be fitted on training rows: PostProcessing.parse(…).fit(rows), or --fit-on FILE"
            )

    def __call__(self, rows: Float64[np.ndarray, "row dim"]) -> Float64[np.ndarray, "row width"]:
        """Return the rows as they are behind this step; UserError where it does not fit them."""
        self.require_fitted()
        for values in self.state.values():
            if values.shape[-1] != rows.shape[1]:
                raise UserError(
                    f"{self.name} was fitted on rows of width {values.shape[-1]}, and these have {rows.shape[1]}: fit "
                    "and apply it on embeddings of one model"
                )
        return self.changed(rows)


class SideStep(Step):
    """A step that changes queries or gallery by looking at the gallery."""

    def sides(self, sides: Sides, *, device: str) -> Sides:
        """Return both sides as they are behind this step."""
        raise NotImplementedError


class ListStep(Step):
    """A step that orders the first `depth` of each list anew, and leaves what is behind as it was."""

    depth: Count = 100

    def scores(
        self, lists: NearestRows, sides: Sides, uncoded: Sides, *, distance: str, device: str
    ) -> Float64[np.ndarray, "query k"]:
        """Return new scores of the rows listed, larger being closer; NaN where there is no row.

        Args:
            lists: of the queries that have a positive.
            sides: behind all other steps.
            uncoded: before the first step that makes a code.
        """
        raise NotImplementedError


class Centring(RowStep):
    """Take the mean of the training rows off every row.

    Example:
        >>> center = Centring().fit(np.array([[1.0, 0.0], [3.0, 2.0]]))
        >>> center(np.array([[2.0, 2.0]])).tolist()
        [[0.0, 1.0]]
    """

    name: ClassVar[str] = "center"
    learns: ClassVar[tuple[str, ...]] = ("mean",)

    def learnt(self, rows: Float64[np.ndarray, "row dim"]) -> Mapping[str, Float64[np.ndarray, "..."]]:
        return {"mean": rows.mean(axis=0)}

    def changed(self, rows: Float64[np.ndarray, "row dim"]) -> Float64[np.ndarray, "row dim"]:
        return np.asarray(rows - self.state["mean"])


class Whiten(RowStep):
    """Centre the rows, turn them to the principal axes of the training rows, and give each axis variance 1.

    Args:
        dim: axes kept, those of the greatest variance; default: all in which the training rows vary.
        shrinkage: s moves every variance v to (1 - s) v + s times their mean; at 1 rows are only centred and turned.

    Source:
        Jégou and Chum (ECCV 2012), section 3.1, https://inria.hal.science/hal-00722622; shrinkage: Ledoit and Wolf.

    Example:
        >>> rows = np.random.default_rng(0).normal(size=(500, 3)) * [1.0, 5.0, 25.0]
        >>> white = Whiten(dim=2).fit(rows)(rows)
        >>> np.cov(white.T, bias=True).round(6).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """

    name: ClassVar[str] = "whiten"
    learns: ClassVar[tuple[str, ...]] = ("mean", "axes")

    dim: Count | None = None
    shrinkage: Part = 0.0

    def learnt(self, rows: Float64[np.ndarray, "row dim"]) -> Mapping[str, Float64[np.ndarray, "..."]]:
        mean = rows.mean(axis=0)
        centred = rows - mean
        variance, axes = np.linalg.eigh(centred.T @ centred / len(rows))
        variance, axes = variance[::-1].clip(0), axes.T[::-1]
        # Below this, what varies is the rounding of float32.
        rank = int((variance > variance[0] * len(variance) * np.finfo(np.float64).eps).sum())
        available = len(variance) if self.shrinkage > 0 and rank else rank
        if (self.dim or 1) > available:
            raise UserError(
                f"{self}: the {len(rows):,} training rows vary in {rank:,} of {len(variance):,} directions; choose a "
                "smaller dim, more training rows, or a shrinkage above 0"
            )
        kept = self.dim or available
        shrunk = (1 - self.shrinkage) * variance + self.shrinkage * variance.mean()
        # An axis may point either way: here its largest entry is positive, so that every machine finds the same.
        sign = np.sign(np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1))
        return {"mean": mean, "axes": (axes * sign / np.sqrt(np.where(shrunk > 0, shrunk, 1))[:, None])[:kept]}

    def changed(self, rows: Float64[np.ndarray, "row dim"]) -> Float64[np.ndarray, "row kept"]:
        return np.asarray((rows - self.state["mean"]) @ self.state["axes"].T)


class Truncate(RowStep):
    """Keep the first `dim` numbers of every row: the principal axes behind `whiten`, or what a model put first.

    Source:
        Kusupati et al., Matryoshka Representation Learning (NeurIPS 2022), https://arxiv.org/abs/2205.13147

    Example:
        >>> Truncate(dim=2)(np.array([[3.0, 2.0, 1.0]])).tolist()
        [[3.0, 2.0]]
    """

    name: ClassVar[str] = "truncate"
    is_scale_free: ClassVar[bool] = True
    makes_code: ClassVar[bool] = True

    dim: Count = 128

    def changed(self, rows: Float64[np.ndarray, "row dim"]) -> Float64[np.ndarray, "row kept"]:
        if self.dim > rows.shape[1]:
            raise UserError(f"truncate: dim must be at most the {rows.shape[1]} numbers of a row, got {self.dim}")
        return rows[:, : self.dim]


class Float16(RowStep):
    """Round every number to half precision, 2 bytes; infinite beyond 65,504.

    Example:
        >>> Float16()(np.array([[0.1]])).tolist()
        [[0.0999755859375]]
    """

    name: ClassVar[str] = "float16"
    makes_code: ClassVar[bool] = True

    def changed(self, rows: Float64[np.ndarray, "row dim"]) -> Float64[np.ndarray, "row dim"]:
        with np.errstate(over="ignore"):
            return rows.astype(np.float16).astype(np.float64)


class Int8(RowStep):
    """Round every number to one of 255 steps, 1 byte: symmetric around 0, with a scale for each dimension.

    The scale is the greatest absolute value among the training rows, divided by 127; what is beyond is cut off. Scores
    are those of the decoded rows.

    Source:
        equation 1 with Z = 0 of Jacob et al. (CVPR 2018), https://arxiv.org/abs/1712.05877, for each dimension

    Example:
        >>> code = Int8().fit(np.array([[127.0], [-64.0]]))
        >>> code(np.array([[1.4], [-500.0]])).tolist()
        [[1.0], [-127.0]]
    """

    name: ClassVar[str] = "int8"
    learns: ClassVar[tuple[str, ...]] = ("scale",)
    makes_code: ClassVar[bool] = True

    def learnt(self, rows: Float64[np.ndarray, "row dim"]) -> Mapping[str, Float64[np.ndarray, "..."]]:
        largest = np.abs(rows).max(axis=0)
        return {"scale": np.where(largest > 0, largest, 127) / 127}

    def changed(self, rows: Float64[np.ndarray, "row dim"]) -> Float64[np.ndarray, "row dim"]:
        scale = self.state["scale"]
        return np.asarray(np.rint(rows / scale).clip(-127, 127) * scale)


class Binary(RowStep):
    """Keep the sign of every number, 1 bit: 1 where it is above 0, else -1; every distance orders by Hamming's.

    Source:
        sentence-transformers' `quantize_embeddings(precision="binary")`,
        https://sbert.net/docs/package_reference/sentence_transformer/quantization.html

    Example:
        >>> Binary()(np.array([[0.3, -0.2, 0.0]])).tolist()
        [[1.0, -1.0, -1.0]]
    """

    name: ClassVar[str] = "binary"
    is_scale_free: ClassVar[bool] = True
    makes_code: ClassVar[bool] = True

    def changed(self, rows: Float64[np.ndarray, "row dim"]) -> Float64[np.ndarray, "row dim"]:
        return np.where(rows > 0, 1.0, -1.0)

"""The kinds of post-processing steps, and the steps that change each row by itself."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le
from jaxtyping import Float64, Int64
from pydantic import BaseModel, ConfigDict

from aurank.errors import UserError
from aurank.evaluation.engine.nearest import NearestRows

Rows = np.ndarray[tuple[int, int], np.dtype[np.floating]]
State = Mapping[str, Float64[np.ndarray, "..."]]  # that a step has learnt; the last axis is the width of the rows
Count = Annotated[int, Ge(1)]
Part = Annotated[float, Ge(0), Le(1)]


@dataclass(frozen=True, eq=False)
class Sides:
    """Queries and gallery between two steps; queries that are their own gallery are the same array."""

    queries: Rows
    gallery: Rows
    own_row: Int64[np.ndarray, " query"]  # the gallery row of the query's own item, -1 for none
    not_junk: Int64[np.ndarray, " searched"]  # gallery rows

    @cached_property
    def searched(self) -> Rows:
        return self.gallery if len(self.not_junk) == len(self.gallery) else self.gallery[self.not_junk]

    @cached_property
    def own_searched(self) -> Int64[np.ndarray, " query"]:
        position = np.full(len(self.gallery) + 1, -1)  # the last entry is of -1
        position[self.not_junk] = np.arange(len(self.not_junk))
        return np.asarray(position[self.own_row])


def unit(rows: npt.ArrayLike) -> Float64[np.ndarray, "*rows dim"]:
    values = np.asarray(rows, np.float64)
    length = np.sqrt((values * values).sum(axis=-1, keepdims=True))
    return np.asarray(values / np.where(length > 0, length, 1))


class Step(BaseModel):
    """One step; its fields are the parameters of its text form."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    learns: ClassVar[bool] = False  # of training rows
    is_transductive: ClassVar[bool] = False  # whether a score depends on other test rows than its own two

    def __str__(self) -> str:
        """Return the text form, with the parameters that differ from their defaults."""
        values = {name: (getattr(self, name), field.default) for name, field in type(self).model_fields.items()}
        changed = {name: value for name, (value, usual) in values.items() if value != usual}
        shown = ",".join(f"{name}={str(value).removesuffix('.0')}" for name, value in changed.items())
        return f"{self.name}:{shown}" if shown else self.name


class RowStep(Step):
    is_scale_free: ClassVar[bool] = False  # whether longer rows give the same result
    makes_code: ClassVar[bool] = False  # whether `rescore` takes the rows before it

    def learn(self, rows: Float64[np.ndarray, "row dim"]) -> State:
        """Return the state learnt from the training rows."""
        return {}

    @abstractmethod
    def change(self, rows: Float64[np.ndarray, "row dim"], state: State) -> Float64[np.ndarray, "row width"]:
        """Return the rows after this step."""


class ListStep(Step):
    """A step that scores the first `depth` rows of each list anew; later rows keep their order."""

    depth: Count = 100

    @abstractmethod
    def scores(self, lists: NearestRows, sides: Sides, *, distance: str, device: str) -> Float64[np.ndarray, "query k"]:
        """Return new scores of the rows listed, larger being closer; NaN after the list's end."""

    def reordered(self, lists: NearestRows, sides: Sides, *, distance: str, device: str) -> NearestRows:
        head = lists.first(self.depth)
        score = self.scores(head, sides, distance=distance, device=device)
        order = np.lexsort((head.row, head.is_positive, -score), axis=1)
        first = [np.take_along_axis(column, order, axis=1) for column in (head.row, score, head.is_positive)]
        pairs = zip(first, (lists.row, lists.score, lists.is_positive), strict=True)
        return NearestRows(lists.query, *(np.hstack([new, old[:, self.depth :]]) for new, old in pairs))


class Centring(RowStep):
    """Take the mean of the training rows off every row."""

    name: ClassVar[str] = "center"
    learns: ClassVar[bool] = True

    def learn(self, rows: Float64[np.ndarray, "row dim"]) -> State:
        return {"mean": rows.mean(axis=0)}

    def change(self, rows: Float64[np.ndarray, "row dim"], state: State) -> Float64[np.ndarray, "row dim"]:
        return np.asarray(rows - state["mean"])


class Whiten(RowStep):
    """Centre the rows, turn them to the principal axes of the training rows, and give each axis variance 1.

    Args:
        dim: axes kept, those of the greatest variance; default: all in which the training rows vary.
        shrinkage: s moves every variance v to (1 - s) v + s times their mean; at 1 rows are only centred and turned.

    Source:
        Jégou and Chum (ECCV 2012), section 3.1, https://inria.hal.science/hal-00722622; shrinkage: Ledoit and Wolf.
    """

    name: ClassVar[str] = "whiten"
    learns: ClassVar[bool] = True

    dim: Count | None = None
    shrinkage: Part = 0.0

    def learn(self, rows: Float64[np.ndarray, "row dim"]) -> State:
        mean = rows.mean(axis=0)
        centred = rows - mean
        variance, axes = np.linalg.eigh(centred.T @ centred / len(rows))
        variance, axes = variance[::-1].clip(0), axes.T[::-1]
        # Variances are squares, so float32's rounding is of the order of float64's eps.
        rank = int((variance > variance[0] * len(variance) * np.finfo(np.float64).eps).sum())
        available = len(variance) if self.shrinkage > 0 and rank else rank
        if (self.dim or 1) > available:
            raise UserError(
                f"{self}: the {len(rows):,} training rows vary in {rank:,} of {len(variance):,} directions; choose a "
                "smaller dim, more training rows, or a shrinkage above 0"
            )
        width = self.dim or available
        shrunk = (1 - self.shrinkage) * variance + self.shrinkage * variance.mean()
        # The largest entry of an axis is positive, so that every machine finds the same direction.
        sign = np.sign(np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1))
        return {"mean": mean, "axes": (axes * sign / np.sqrt(np.where(shrunk > 0, shrunk, 1))[:, None])[:width]}

    def change(self, rows: Float64[np.ndarray, "row dim"], state: State) -> Float64[np.ndarray, "row kept"]:
        return np.asarray((rows - state["mean"]) @ state["axes"].T)


class Truncate(RowStep):
    """Keep the first `dim` numbers of every row: the principal axes after `whiten`, or what a model put first.

    Source:
        Kusupati et al., Matryoshka Representation Learning (NeurIPS 2022), https://arxiv.org/abs/2205.13147
    """

    name: ClassVar[str] = "truncate"
    is_scale_free: ClassVar[bool] = True
    makes_code: ClassVar[bool] = True

    dim: Count = 128

    def change(self, rows: Float64[np.ndarray, "row dim"], state: State) -> Float64[np.ndarray, "row kept"]:
        if self.dim > rows.shape[1]:
            raise UserError(f"truncate: dim must be at most the {rows.shape[1]} numbers of a row, got {self.dim}")
        return rows[:, : self.dim]


class Int8(RowStep):
    """Round every number to one of 255 steps, 1 byte: symmetric around 0, with a scale for each dimension.

    The scale is the greatest absolute value among the training rows, divided by 127; larger values are clipped. Scores
    are those of the decoded rows.

    Source:
        equation 1 with Z = 0 of Jacob et al. (CVPR 2018), https://arxiv.org/abs/1712.05877, for each dimension
    """

    name: ClassVar[str] = "int8"
    learns: ClassVar[bool] = True
    makes_code: ClassVar[bool] = True

    def learn(self, rows: Float64[np.ndarray, "row dim"]) -> State:
        largest = np.abs(rows).max(axis=0)
        return {"scale": np.where(largest > 0, largest, 127) / 127}

    def change(self, rows: Float64[np.ndarray, "row dim"], state: State) -> Float64[np.ndarray, "row dim"]:
        return np.asarray(np.rint(rows / state["scale"]).clip(-127, 127) * state["scale"])


class Binary(RowStep):
    """Keep the sign of every number, 1 bit: 1 where it is above 0, else -1; every distance orders by Hamming's.

    Source:
        sentence-transformers' `quantize_embeddings(precision="binary")`,
        https://sbert.net/docs/package_reference/sentence_transformer/quantization.html
    """

    name: ClassVar[str] = "binary"
    is_scale_free: ClassVar[bool] = True
    makes_code: ClassVar[bool] = True

    def change(self, rows: Float64[np.ndarray, "row dim"], state: State) -> Float64[np.ndarray, "row dim"]:
        return np.where(rows > 0, 1.0, -1.0)

"""What every step of post-processing is: parameters with a text form, and one of three things that it may change."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from jaxtyping import Float64, Int64

from aurank.errors import UserError
from aurank.evaluation.engine.nearest import NearestRows

Rows = np.ndarray[tuple[int, int], np.dtype[np.floating]]


@dataclass(frozen=True, eq=False)
class Sides:
    """Queries and gallery between two steps; `gallery` is None where the queries are their own."""

    queries: Rows
    gallery: Rows | None
    own: Int64[np.ndarray, " query"]  # the gallery row that is the query's own item, -1 for none
    kept: Int64[np.ndarray, " kept"]  # gallery rows that are not junk

    @property
    def target(self) -> Rows:
        """The rows that are searched."""
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


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step; its fields, but for what it has learnt, are the parameters of its text form.

    It is *transductive* where a score depends on other rows of the test set than the two that are scored.
    """

    name: ClassVar[str]
    is_transductive: ClassVar[bool] = False

    def __str__(self) -> str:
        """Return the text form, with the parameters that are not the usual ones."""
        given = {one.name: getattr(self, one.name) for one in fields(self) if one.init and one.name != "state"}
        usual = {one.name: one.default for one in fields(self)}
        changed = {name: value for name, value in given.items() if value != usual[name]}
        shown = ",".join(f"{name}={str(value).removesuffix('.0')}" for name, value in changed.items())
        return f"{self.name}:{shown}" if shown else self.name

    def require(self, is_right: bool, parameter: str, expected: str) -> None:
        """Raise UserError unless a parameter `is_right`."""
        if not is_right:
            raise UserError(f"{self.name}: {parameter} must be {expected}, got {getattr(self, parameter)}")


@dataclass(frozen=True, kw_only=True)
class RowStep(Step):
    """A step that changes each row by itself."""

    learns: ClassVar[tuple[str, ...]] = ()  # the arrays of its state
    is_scale_free: ClassVar[bool] = False  # whether it does the same to longer rows
    makes_code: ClassVar[bool] = False  # what `rescore` looks behind

    state: Mapping[str, Float64[np.ndarray, "..."]] = field(default_factory=dict, repr=False, compare=False)

    def learnt(self, rows: Float64[np.ndarray, "row dim"]) -> Mapping[str, Float64[np.ndarray, "..."]]:
        """Return what has to be known of the training rows; the last axis of each array is the width of the rows."""
        return {}

    def changed(self, rows: Float64[np.ndarray, "row dim"]) -> Float64[np.ndarray, "row width"]:
        """Return the rows as they are behind this step."""
        raise NotImplementedError

    def fit(self, rows: Float64[np.ndarray, "row dim"]) -> "RowStep":
        """Return this step with what it has learnt of the training rows."""
        return replace(self, state=self.learnt(rows)) if self.learns else self

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


@dataclass(frozen=True, kw_only=True)
class SideStep(Step):
    """A step that changes queries or gallery by looking at the gallery."""

    def sides(self, sides: Sides, *, device: str) -> Sides:
        """Return both sides as they are behind this step."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class ListStep(Step):
    """A step that orders the first `depth` of each list anew, and leaves what is behind as it was."""

    depth: int = 100

    def __post_init__(self) -> None:
        self.require(self.depth >= 1, "depth", "1 or more")

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

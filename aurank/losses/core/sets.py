"""Sets of labels, and how positive references are of queries: by their sets, or by a function of both sides."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from aurank.errors import UserError
from aurank.losses.core.checks import Number, require_number
from aurank.names import require_choice

Labels = Tensor | np.ndarray | Sequence[Any]  # integers [row], or sets: bool [row, class], or a list of integers a row
Relation = Literal["any", "equal", "jaccard"] | Number | Callable[[Any, Any], Any]
Mask = Bool[Tensor, "query reference"]


def check_relation(positives: Relation) -> Relation:
    if isinstance(positives, str):
        require_choice("positives", positives, ("any", "equal", "jaccard"))
    elif not callable(positives):
        require_number("positives", positives, "(0, 1]")
    return positives


def read_labels(*sides: Labels | None) -> list[Any]:
    """Return both sides' labels as tensors, lists as bool [row, class] of as many classes as either side has."""
    tensors: list[Any] = [torch.from_numpy(each) if isinstance(each, np.ndarray) else each for each in sides]
    widths = [each.shape[1] for each in tensors if isinstance(each, Tensor) and each.ndim == 2]
    for row in (row for each in tensors if isinstance(each, Sequence) for row in each):
        if not isinstance(row, Collection) or isinstance(row, str) or min(row, default=0) < 0:
            raise UserError(f"labels that are no tensor must be a list of whole numbers >= 0 for each row, got {row!r}")
        widths.append(1 + max(row, default=-1))
    none = torch.zeros(max(widths, default=0), dtype=torch.bool)
    for side, rows in enumerate(tensors):
        if isinstance(rows, Sequence):
            tensors[side] = torch.stack([none.index_fill(0, torch.tensor([*row]).long(), True) for row in rows])
    return tensors


def relate(positives: Relation, query: Tensor, reference: Tensor, *, is_self_set: bool) -> Tensor:
    """Return how positive each reference is, from 0 to 1 in float64, or as bool if there is nothing between."""
    if callable(positives):
        weights = torch.as_tensor(positives(query, reference)).to("cpu", torch.float64, copy=True)
        shape = [len(query), len(reference)]
        if list(weights.shape) != shape or not ((weights >= 0) & (weights <= 1)).all():
            got = f"{list(weights.shape)} from {float(weights.min())} to {float(weights.max())}"
            raise UserError(f"the function positives must return bool or numbers in [0, 1] of shape {shape}, got {got}")
    else:
        common = (query[:, used := query.any(dim=0)].float() @ reference[:, used].float().T).double()
        weights = common / (query.sum(dim=1)[:, None] + reference.sum(dim=1) - common)
        if positives != "jaccard":
            least: Any = {"any": 1 / query.shape[1], "equal": 1.0}.get(str(positives), positives)
            weights = (weights >= least).double()
    if is_self_set:
        weights.fill_diagonal_(1)  # a query is never its own negative
    return weights if ((weights > 0) & (weights < 1)).any() else weights > 0


def positive_index(positive: Mask, *, without_self: bool) -> tuple[Tensor, Tensor]:
    """Return a mask's columns side by side and what of them counts, as `same_label_index` does by labels."""
    positive = positive.clone().fill_diagonal_(False) if without_self else positive
    count = positive.sum(dim=1)
    mask = torch.arange(max(int(count.max()), 1)) < count[:, None]
    return torch.zeros_like(mask, dtype=torch.int64).masked_scatter_(mask, positive.nonzero()[:, 1]), mask


class ComparedLabels:
    """Labels for PML that can be compared with those of the other side, `same` [row, other], and no more."""

    ndim, dtype = 1, torch.int64

    def __init__(self, same: Mask, axis: int | None = None) -> None:
        self.same, self.axis, self.shape, self.device = same, axis, same.shape[:1], same.device

    def unsqueeze(self, dim: int) -> "ComparedLabels":
        return ComparedLabels(self.same, dim)

    def __eq__(self, other: object) -> Any:
        is_matrix = isinstance(other, ComparedLabels) and (self.axis, other.axis) == (1, 0)
        return self.same if is_matrix else self.refuse()

    @classmethod
    def refuse(cls, *_: object, **__: object) -> Any:
        raise UserError("PML needs one label for each row here, no sets or function: take what only compares labels")

    __torch_function__ = __ne__ = __getitem__ = __getattr__ = refuse
    __hash__ = None  # type: ignore[assignment]

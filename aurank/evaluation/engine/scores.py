"""The score of two rows: exact in a stated sense, and products that come close to it with a rigorous bound.

The score that decides is taken in float64 from the rows as they came: `tree_sum(x * y) / (|x| * |y|)` for the cosine,
`tree_sum(x * y)` for the dot product, `-tree_sum((x - y)²)` for the Euclidean distance. Every step is a single rounded
operation on elements in a fixed order, so its value depends on the two rows and on nothing else: not on the tile they
fall in, the number of threads, the device, or which of the two is the query. Equal rows therefore tie exactly. Matrix
products are faster but none of that; they serve where the bound proves that the score must fall on the same side.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from aurank.errors import UserError

DISTANCES = ("cosine", "dot", "euclidean")


def tree_sum(terms: Float64[Tensor, "*shape dim"]) -> Float64[Tensor, "*shape"]:
    """Return the sum over the last dimension, by folding it in halves; `terms` is overwritten.

    Plain `sum` would not do: its order of addition changes with shape, device and number of threads.
    """
    size = terms.shape[-1]
    while size > 1:
        half = (size + 1) // 2
        terms[..., : size - half] += terms[..., half:size]
        size = half
    return terms[..., 0]


@dataclass(frozen=True)
class Distance:
    """How two rows are scored, larger being closer, and how a matrix product can stand for that score.

    Products are taken of *features*: rows scaled to a length of at most 1, of which the Euclidean distance needs two
    more, for |u - v|² = |u|² + |v|² - 2 u·v. A product times `factor` is the score, up to `error`.
    """

    name: str
    query_scale: float = 1.0
    gallery_scale: float = 1.0

    @property
    def squared(self) -> bool:
        """Whether the score is a squared difference; then a row's features differ between query and gallery."""
        return self.name == "euclidean"

    @property
    def factor(self) -> float:
        """What a product of features has to be multiplied with to be a score."""
        return (2.0 if self.squared else 1.0) * self.query_scale * self.gallery_scale

    def width(self, dim: int) -> int:
        """Return how many numbers a feature has."""
        return dim + 2 if self.squared else dim

    def units(self, lengths: Float64[Tensor, " row"]) -> Float64[Tensor, " row"]:
        """Return by what each row's exact sums are divided."""
        return lengths if self.name == "cosine" else torch.ones_like(lengths)

    def pairs(
        self,
        first: Float64[Tensor, "*pair dim"],
        second: Float64[Tensor, "*#pair dim"],
        units: Float64[Tensor, "*pair"],
    ) -> Float64[Tensor, "*pair"]:
        """Return exact scores of pairs of rows; `units` are the products of their units; `first` is overwritten."""
        if self.squared:
            first.sub_(second)
            return -tree_sum(first.mul_(first)) / units
        return tree_sum(first.mul_(second)) / units

    def features(
        self, rows: Float64[Tensor, "row dim"], lengths: Float64[Tensor, " row"], *, gallery: bool
    ) -> Float64[Tensor, "row width"]:
        """Return features of rows of one side; `rows` is overwritten."""
        if self.name == "cosine":
            return rows.div_(lengths[:, None])
        scale = self.gallery_scale if gallery else self.query_scale
        rows.div_(scale)
        if not self.squared:
            return rows
        square = -((lengths / scale) ** 2 / 2)[:, None]
        one = torch.ones_like(square)
        return torch.cat([rows, one, square] if gallery else [rows, square, one], dim=1)

    def error(self, dim: int, dtype: torch.dtype) -> float:
        """Return how far a product of two `dtype` features may be from score / factor, in any order of summation.

        A sum of n products errs by at most gamma(n) = n u / (1 - n u) times the sum of their sizes (Higham, Accuracy
        and Stability of Numerical Algorithms, section 3.1). That sum is at most 1 by Cauchy-Schwarz, and 2 for the
        Euclidean distance. float32: n products and two rounded inputs, and six roundings to spare, far more than the
        steps in float64 and the rounding of a threshold's edges take. float64: product, score, lengths and divisions
        each err by gamma(n) and a few u.
        """
        rounding = torch.finfo(dtype).eps / 2
        width = self.width(dim)
        count = width + 8 if dtype == torch.float32 else 4 * width + 32
        if count * rounding > 0.01:
            return float("inf")
        return (4.08 if self.squared else 1.02) * count * rounding

    def feature_error(self, dim: int) -> float:
        """Return how far a product of two float32 features, taken in float64, may be from score / factor.

        As `error` counts it: two rounded inputs and six roundings to spare, and what float64 takes.
        """
        rounding = torch.finfo(torch.float32).eps / 2
        return (4.08 if self.squared else 1.02) * 8 * rounding + self.error(dim, torch.float64)


def make_distance(name: str, longest_query: float, longest_gallery: float) -> Distance:
    """Return the Distance for rows of at most these lengths; UserError for an unknown name."""
    if name not in DISTANCES:
        raise UserError(f"distance must be one of {', '.join(DISTANCES)}; got {name!r}")
    if name == "cosine":
        return Distance(name)
    if name == "euclidean":
        longest_query = longest_gallery = max(longest_query, longest_gallery)
    return Distance(name, longest_query or 1.0, longest_gallery or 1.0)


@contextmanager
def full_precision() -> Iterator[None]:
    """Compute float32 products at full precision and no graph inside; restore the caller's settings afterwards."""
    with ExitStack() as restored, torch.no_grad():
        if hasattr(torch.backends.cuda.matmul, "fp32_precision"):  # torch 2.9 and later
            backends: Any = torch.backends
            for switch in (backends.cuda.matmul, backends.mkldnn.matmul):
                restored.callback(setattr, switch, "fp32_precision", switch.fp32_precision)
                switch.fp32_precision = "ieee"
        else:
            restored.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision("highest")
        yield


@contextmanager
def one_thread_each(wanted: bool) -> Iterator[None]:
    """Let every thread compute by itself inside, if wanted: tiles are shared out among threads, not what is in one.

    Threads that wait for each other within many small operations took ten times the work on a busy machine.
    """
    before = torch.get_num_threads()
    if wanted:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

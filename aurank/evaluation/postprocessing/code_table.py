"""One table of what shorter and coarser embeddings cost: quality beside bytes per image."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from aurank.errors import UserError
from aurank.evaluation.engine.problem import RetrievalProblem
from aurank.evaluation.postprocessing.postprocessing import PostProcessing, Processed
from aurank.names import meant, nearest

BITS = {"float32": 32, "float16": 16, "int8": 8, "binary": 1}


@dataclass(frozen=True)
class Codes:
    """Which widths and precisions of the embeddings to measure beside the embeddings as they are.

    Every precision is one of `aurank.evaluation.postprocessing`: "float16", "int8" (scales from the gallery), "binary"
    (by the Hamming distance), or "float32". Queries are coded as the gallery is.

    Args:
        dims: how many numbers of each row, from the first, are kept; none: all.
        precisions: of the numbers kept.
        rescore: length of the lists that each code is measured with once more, after they were scored again by the
            rows as they came; None: no second measurement.

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
                raise UserError(
                    f"no precision {precision!r}, expected some of {', '.join(BITS)}{meant(nearest(precision, BITS))}"
                )

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
    """Return the table as text for people: a line for each code.

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

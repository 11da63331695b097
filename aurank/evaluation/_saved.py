"""What a saved report holds: a file may be damaged, or somebody else's, so all is checked before a number is used."""

from typing import Annotated, Any, Literal, NotRequired

from annotated_types import Ge, Gt, Lt, MinLen
from typing_extensions import TypedDict

from aurank.files import checked

Count = Annotated[int, Ge(0), Lt(2**53)]  # what floats hold exactly
Number = Annotated[int | float, Gt(-1e300), Lt(1e300)]
Names = list[str] | list[Annotated[int, Ge(-(2**63)), Lt(2**63)]]
Metrics = Annotated[dict[str, Number], MinLen(1)]
_COLUMNS: dict[str, Any] = {
    **dict.fromkeys(("query", "num_positives", "num_negatives", "first_rank", "last_rank"), list[Count]),
    **dict.fromkeys(("label", "class", "path"), Names),
}
"""The columns of `per_query` and of the gallery that are no metrics."""


class _Intervals(TypedDict):
    bounds: dict[str, tuple[Number, Number]]
    unit: Literal["class", "query"]
    num_units: Count
    resamples: Count
    seed: int
    level: Number


class _Curve(TypedDict):
    recall: list[Number]
    precision: list[Number]


class _Code(TypedDict):
    dim: Count
    precision: str
    bytes: Count
    rescored: NotRequired[Count | None]
    metrics: Metrics


class _PostProcessing(TypedDict):
    steps: str
    transductive: list[str]
    fitted_rows: Count
    plain: NotRequired[dict[str, Number]]


class _Report(TypedDict):
    metrics: Metrics
    per_query: Annotated[dict[str, Any], MinLen(1)]
    num_queries: Count
    num_lone_queries: Count
    num_gallery: Count
    ties: Annotated[str, MinLen(1)]
    tie_bounds: tuple[Number, Number] | None
    protocol: NotRequired[dict[str, Any] | None]
    notes: NotRequired[list[str] | None]
    intervals: NotRequired[_Intervals | None]
    curve: NotRequired[_Curve | None]
    approximation: NotRequired[dict[str, Any] | None]
    postprocessing: NotRequired[_PostProcessing | None]
    codes: NotRequired[list[_Code] | None]
    neighbours: NotRequired[dict[str, list[Any]] | None]
    gallery: NotRequired[dict[str, list[Any]] | None]
    distance: NotRequired[str | None]
    versions: NotRequired[dict[str, str] | None]
    date: NotRequired[str | None]
    command: NotRequired[str | None]


def checked_report(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a report; raise ValueError, naming the entry that has not the type or length it needs."""
    report: Any = checked(content, _Report)
    rows = report["num_queries"] - report["num_lone_queries"]
    if rows < 1:
        raise ValueError(f"num_queries is {report['num_queries']}, expected more than num_lone_queries")
    for name in ("query", "num_positives", *(() if report["tie_bounds"] is None else ("ap",))):
        if name not in report["per_query"]:
            raise ValueError(f"per_query.{name} is missing")
    for name, values in report["per_query"].items():
        whole = f"per_query.{name}"
        kind: Any = dict[str, _COLUMNS.get(name, list[Number])]  # type: ignore[misc]  # it is known here alone
        report["per_query"][name] = checked({whole: values}, kind)[whole]
        if len(report["per_query"][name]) != rows:
            raise ValueError(f"{whole} has {len(values)} values, expected {rows}")
    if (curve := report.get("curve")) is not None and len(curve["recall"]) != len(curve["precision"]):
        raise ValueError(f"curve has {len(curve['recall'])} recalls and {len(curve['precision'])} precisions")
    codes = report.get("codes") or []
    if any(code["metrics"].keys() != codes[0]["metrics"].keys() for code in codes):
        raise ValueError("codes have other metrics in each row")
    return dict(report)

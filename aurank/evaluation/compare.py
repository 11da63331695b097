"""Is the second model better than the first? The paired answer, from reports on the same queries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float64

from aurank.errors import UserError
from aurank.evaluation.bootstrap import Resampling, drawn_units, resampled_means, unit_terms
from aurank.evaluation.inputs import ProgressCallback
from aurank.evaluation.metrics import MACRO, average
from aurank.evaluation.report import Column, Report

FACTS = ("query", "label", "path", "class")


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """The difference b − a of one metric over the same queries, and what chance could make of it.

    Example:
        >>> import aurank
        >>> rows = np.random.default_rng(0).normal(size=(40, 2))
        >>> reports = [aurank.evaluate(rows[:, :dim], np.arange(40) % 4) for dim in (1, 2)]
        >>> aurank.compare(*reports, resamples=200).num_queries
        40
    """

    metric: str
    a: float
    b: float
    difference: float
    interval: tuple[float, float]  # the percentile bootstrap interval of the difference
    p_value: float  # two-sided; at least 2 / (resamples + 1) and 2 / 2^(classes that changed)
    num_queries: int
    num_better: int  # queries for which b scores higher than a
    num_worse: int
    changed: dict[str, Column]  # queries won, then lost, the most first: facts where known, "a", "b", "difference"
    how: str  # the interval was made
    corrected_p_value: float | None = None  # of `compare_all`, for the number of its comparisons
    is_least: bool = False  # no resample has the other sign: the p-values are upper bounds

    def __str__(self) -> str:
        low, high = self.interval
        equal = self.num_queries - self.num_better - self.num_worse
        corrected = "" if self.corrected_p_value is None else f" ({self.p_text(corrected=True)} corrected)"
        lines = [
            f"{self.metric}  {self.a:.4f} → {self.b:.4f}  {self.difference:+.4f}  [{low:+.4f}, {high:+.4f}]  "
            f"p {'' if self.is_least else '= '}{self.p_text()}{corrected}",
            f"{self.num_queries:,} queries: {self.num_better:,} better, {self.num_worse:,} worse, {equal:,} equal",
            self.how,
        ]
        kind = next((name for name in ("class", "label") if name in self.changed), None)
        rows = [dict(zip(self.changed, values, strict=True)) for values in zip(*self.changed.values(), strict=True)]
        for title, sign in (("won most:", 1), ("lost most:", -1)):
            changed = [row for row in rows if sign * row["difference"] > 0]
            lines += [title] if changed else []
            for row in changed:
                named = (f" {row['path']}" if "path" in row else "") + (f" ({kind} {row[kind]})" if kind else "")
                values = f"{row['difference']:+.4f}  {row['a']:.4f} → {row['b']:.4f}"
                lines.append(f"  {values}  query {row['query']}{named}")
        return "\n".join(lines)

    __repr__ = __str__

    def p_text(self, *, corrected: bool = False) -> str:
        """Return the p-value in two digits, as "≤ 0.0002" if the resamples cannot give a smaller one."""
        value = self.corrected_p_value if corrected else self.p_value
        return f"{'≤ ' * self.is_least}{value:.2g}"


def compare(
    report_a: Report,
    report_b: Report,
    *,
    metric: str = "mauprc",
    resamples: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
    most: int = 5,
    force: bool = False,
    progress: ProgressCallback | None = None,
) -> Comparison:
    """Return the Comparison b − a of two reports over the same queries, in the same order.

    Paired bootstrap: both reports get the same draws, of whole classes where they have labels, else of single queries.

    Args:
        most: length of the list of queries won, and of that of queries lost.
        force: compare reports of different protocols or distances.
        progress: called as progress(done, total) from time to time.

    Raises:
        UserError: queries, positives, galleries or rules for ties differ; unless `force`, also protocols or distances.

    Example:
        >>> import aurank
        >>> report = aurank.evaluate(np.eye(4), [0, 0, 1, 1])
        >>> aurank.compare(report, report, resamples=100).p_value
        1.0
    """
    resampling = Resampling(resamples, seed, level)
    _check_pair(report_a, report_b, metric, force)
    a, b = report_a.values(metric), report_b.values(metric)
    units, unit = drawn_units(report_a.per_query)
    change = b - a
    changes = unit_terms(metric, change, units)
    (draws,) = resampled_means(changes[None], resamples=resamples, seed=seed, progress=progress)
    first, second = (average(metric, values, units) for values in (a, b))
    changed = np.count_nonzero(np.abs(changes[:, 0]) > 1e-12)  # classes, or queries; a sum may cancel
    beyond = 1 + min(int((draws <= 0).sum()), int((draws >= 0).sum()))
    # Among equal changes the first query comes first.
    won, lost = (np.argsort(-gain, kind="stable")[: max(0, min(most, (gain > 0).sum()))] for gain in (change, -change))
    order = np.concatenate([won, lost])
    facts = {name: report_a.per_query[name] for name in FACTS if name in report_a.per_query}
    bounds = 2 * beyond / (resamples + 1), 2 * 0.5 ** int(changed)
    is_at_floor = bounds[0] < bounds[1]
    floor = f"; p cannot be below {min(1, bounds[1]):.2g}, as only {changed:,} of them changed" * is_at_floor
    return Comparison(
        metric=metric,
        a=first,
        b=second,
        difference=second - first,
        interval=resampling.interval(draws),
        p_value=min(1.0, max(bounds)),
        num_queries=len(change),
        num_better=int((change > 0).sum()),
        num_worse=int((change < 0).sum()),
        changed={name: values[order] for name, values in {**facts, "a": a, "b": b, "difference": change}.items()},
        how=resampling.how(unit, len(units.label)) + floor,
        is_least=beyond == 1 and not is_at_floor,
    )


def compare_all(reports: Mapping[str, Report], **options: Any) -> dict[str, Comparison]:
    """Return the Comparison of each report with the first, by its name; of two or more, p-values are corrected too.

    Raises:
        UserError: as `compare`, naming the two reports; or there are fewer than two.

    Example:
        >>> import aurank
        >>> rows = np.random.default_rng(0).normal(size=(40, 3))
        >>> reports = {f"{dim} dims": aurank.evaluate(rows[:, :dim], np.arange(40) % 4) for dim in (1, 2, 3)}
        >>> list(compare_all(reports, resamples=200))
        ['2 dims', '3 dims']
    """
    if len(reports) < 2:
        raise UserError(f"a comparison needs two reports or more; got {len(reports)}")
    first, *names = reports
    comparisons = {}
    for name in names:
        try:
            comparisons[name] = compare(reports[first], reports[name], **options)
        except UserError as error:
            raise (UserError(f"{first} and {name}: {error}") if len(names) > 1 else error) from None
    if len(names) == 1:
        return comparisons
    corrected = holm([comparison.p_value for comparison in comparisons.values()]).tolist()
    return {
        name: replace(comparison, corrected_p_value=p_value)
        for (name, comparison), p_value in zip(comparisons.items(), corrected, strict=True)
    }


def holm(p_values: Sequence[float]) -> Float64[np.ndarray, " test"]:
    """Return p-values corrected for their number: the chance that any below α is a false alarm is at most α.

    Source: Holm, A simple sequentially rejective multiple test procedure (Scandinavian Journal of Statistics 1979),
        https://www.jstor.org/stable/4615733
    """
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    left = np.arange(len(values), 0, -1)  # tests that are not rejected yet
    corrected = np.empty_like(values)
    corrected[order] = np.minimum(1, np.maximum.accumulate(values[order] * left))
    return corrected


def _check_pair(a: Report, b: Report, metric: str, force: bool) -> None:
    """Raise UserError unless the two reports are about the same queries, gallery and rules."""
    protocols = [report.protocol or {} for report in (a, b)]
    named = " and ".join(f"{each.get('name', 'none')} ({each.get('checksum')})" for each in protocols)
    differences = {
        f"protocols {named}": protocols[0].get("checksum") != protocols[1].get("checksum") and not force,
        f"distances {a.distance} and {b.distance}": a.distance != b.distance and not force,
        f"galleries of {a.num_gallery:,} and {b.num_gallery:,} rows": a.num_gallery != b.num_gallery,
        f"rules for ties {a.ties} and {b.ties}": a.ties != b.ties and metric.removeprefix(MACRO) == "mauprc",
    }
    for difference, differ in differences.items():
        if differ:
            hint = "" if force else ", or, if only protocols or distances differ, add --force (force=True)"
            raise UserError(f"the reports have the {difference}: evaluate both under the same{hint}")
    remedy = "evaluate both models on the same lists, in the same order, such as by one --data CONFIGURATION"
    facts = {"query": "rows", "label": "labels", "path": "paths", "num_positives": "numbers of positives"}
    for name, plural in facts.items():
        left, right = a.per_query.get(name), b.per_query.get(name)
        if left is None or right is None:
            if left is right or name == "path":  # saved embeddings may have none
                continue
            wrong = f"only one of the reports has the queries' {plural}"
        elif len(left) != len(right):
            wrong = f"the reports are about {len(left):,} and {len(right):,} queries with a positive"
        elif not np.array_equal(left, right):
            at = int(np.argmax(left.astype(object) != right.astype(object)))  # one may be text
            wrong = f"the reports' queries differ in their {plural}: {left[at]} and {right[at]} at position {at}"
        else:
            continue
        raise UserError(f"{wrong}; {remedy}")

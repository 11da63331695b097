"""The Markdown tables, written between markers into docs/miniatures/tables.txt and, in short, into docs/results.md."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aurank.errors import UserError
from aurank.files import write_text
from miniatures.methods import BATCHES, TABLE_1, TABLE_2, Method, grid
from miniatures.results import Line, Mean, Results
from miniatures.rows import Claim, bias_claims, proposition_claims, stability_claims, start_claims, trained_claims

METRICS = {"mAUPRC": "mauprc", "Recall@1": "recall@1", "Recall@10": "recall@10"}
TO_RUN = "*not run yet*"


def write_tables(out: Path, *, page: Path, results_page: Path, seeds: Sequence[int], steps: int) -> None:
    """Nothing; the marked blocks of both files hold what the results in `out` say."""
    results = Results(out / "results.jsonl")
    bias, claims = read_json(out / "bias.json"), read_json(out / "claims.json")
    found = [*trained_claims(results, seeds=seeds, steps=steps)]
    if bias:
        found += bias_claims(bias)
    if claims:
        found += [*proposition_claims(claims), *start_claims(claims), *stability_claims(claims)]
    blocks = {
        "claims": claims_table(found),
        "table 1": methods_table(TABLE_1, results, seeds=seeds, steps=steps),
        "table 2": methods_table(TABLE_2, results, seeds=seeds, steps=steps),
        "batches": methods_table(BATCHES, results, seeds=seeds, steps=steps),
        "bias": bias_table(bias) if bias else TO_RUN,
        "interpolation": interpolation_table(bias) if bias else TO_RUN,
        "hardware": hardware_list({"bias": bias, "claims": claims}, results),
    }
    text = page.read_text(encoding="utf-8")
    for name, block in blocks.items():
        text = replaced(text, f"miniatures: {name}", block, page)
    write_text(page, text)
    short = short_table(results, seeds=seeds, steps=steps)
    write_text(results_page, replaced(results_page.read_text(encoding="utf-8"), "miniatures", short, results_page))


def read_json(path: Path) -> dict[str, Any] | None:
    """What a file holds, None where there is none."""
    found: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    return found


def replaced(text: str, name: str, block: str, path: Path) -> str:
    """The text with another block between its markers; UserError without them."""
    first, last = f"<!-- {name} -->", f"<!-- /{name} -->"
    if text.count(first) != 1 or text.count(last) != 1 or text.index(last) < text.index(first):
        raise UserError(f"{path} must hold the markers {first} and {last} once each, in this order; put them in")
    before, after = text.split(first)[0], text.split(last)[1]
    return f"{before}{first}\n{block}\n{last}{after}"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a bar within a cell would end it."""
    lines = [header, ["---"] * len(header), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def claims_table(found: Sequence[Claim]) -> str:
    """One row a claim."""
    header = ("where", "the paper says", "measured", "comes out")
    return markdown(header, [(claim.place, claim.said, claim.measured, f"**{claim.verdict}**") for claim in found])


def methods_table(methods: Mapping[str, Method], results: Results, *, seeds: Sequence[int], steps: int) -> str:
    """One row a method: test metrics with their intervals, at the learning rate that validation chose."""
    rows = []
    for name, method in methods.items():
        lines = results.chosen(name, seeds=seeds, steps=steps)
        rate = results.best_rate(name, seeds=seeds, steps=steps)
        cells = metric_cells(lines) if lines else [TO_RUN, "", ""]
        if not lines and rate is None and all(results.find(run) for run in grid(name, seeds=seeds, steps=steps)):
            cells = ["*diverged*", "", ""]
        chosen = "" if rate is None else f"{rate:g}"
        rows.append((method.title, *cells, chosen, f"{len(lines)}"))
    return markdown(("", *METRICS, "learning rate", "seeds"), rows)


def metric_cells(lines: Sequence[Line]) -> list[str]:
    """The means over seeds."""
    return [Mean.of(line[name] for line in lines).text() for name in METRICS.values()]


def short_table(results: Results, *, seeds: Sequence[int], steps: int) -> str:
    """Table 1 by falling mAUPRC, for the page of results."""
    found = {name: results.chosen(name, seeds=seeds, steps=steps) for name in TABLE_1}
    held = sorted(
        ((Mean.of(line["mauprc"] for line in lines), name) for name, lines in found.items() if lines),
        key=lambda each: -each[0].value,
    )
    rows = [
        (TABLE_1[name].title, mean.text(3), Mean.of(line["recall@1"] for line in found[name]).text(3), str(mean.count))
        for mean, name in held
    ]
    return markdown(("loss", "mAUPRC", "Recall@1", "seeds"), rows) if rows else TO_RUN


def bias_table(found: Mapping[str, Any]) -> str:
    """Estimates by distribution and sampling rate."""
    names = {"ap": "AP", "soprc": "SOPRC", "soprc_surrogate": "SOPRC with ℓ1"}
    rows = []
    for distribution, each in found["estimators"].items():
        truth = {"ap": "auprc_loss", "soprc": "auprc_loss", "soprc_surrogate": "surrogate"}
        for kind, title in names.items():
            cells = [f"{at[kind]['mean']:.3f} ({at[kind]['deviation']:.3f})" for at in each["rates"].values()]
            rows.append((distribution, title, f"{each['truth'][truth[kind]]:.3f}", *cells))
    rates = list(next(iter(found["estimators"].values()))["rates"])
    return markdown(("scores", "estimator", "truth", *(f"π0 = {rate}" for rate in rates)), rows)


def interpolation_table(found: Mapping[str, Any]) -> str:
    """Errors of the mean of interpolated scores, and of one batch's, by the number of scores."""
    rows = [
        (distribution, kind, *(f"{at['bias']:.3f} ({at['rms']:.3f})" for at in by_count.values()))
        for distribution, kinds in found["interpolation"].items()
        for kind, by_count in kinds.items()
    ]
    counts = next(iter(next(iter(found["interpolation"].values())).values()))
    return markdown(("scores", "interpolation", *(f"n = {count}" for count in counts)), rows)


def hardware_list(measured: Mapping[str, Mapping[str, Any] | None], results: Results) -> str:
    """Where each file was made, and how loaded the machine was."""
    lines = []
    for name, found in measured.items():
        if found is not None:
            place = found["surroundings"]
            lines.append(f"- `{name}`: {place['seconds']} s on {_place(place)}, commit {place['commit']}")
    by_place: dict[str, list[Line]] = {}
    for line in results.lines:
        by_place.setdefault(_place(line), []).append(line)
    for place_name, runs in by_place.items():
        seconds, load = [run["seconds"] for run in runs], [run["load_after"] for run in runs]
        commits = ", ".join(sorted({run["commit"] for run in runs}))
        lines.append(
            f"- `train`: {len(runs)} runs on {place_name}, {min(seconds):.0f} to {max(seconds):.0f} s each, load "
            f"average after a run {min(load):.1f} to {max(load):.1f}, commit {commits}"
        )
    return "\n".join(lines) or TO_RUN


def _place(line: Mapping[str, Any]) -> str:
    return f"{line['device']} ({line['cores']} cores, {line['threads']} threads, torch {line['torch']})"

"""The tables of the pages, and the figures and orders of their prose, follow from docs/benchmark/*.jsonl."""

import json
import re
import runpy
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from scipy.stats import kendalltau

from aurank.errors import UserError
from aurank.training import read_config

ROOT = Path(__file__).parents[1]
BENCHMARK = ROOT / "docs" / "benchmark"
RESULTS: dict[str, Any] = runpy.run_path(str(ROOT / "tools" / "results.py"))
PCA, IDENTITY, UNTRAINED = RESULTS["PCA"], RESULTS["IDENTITY"], RESULTS["UNTRAINED"]
SETTINGS = {"PCA": [PCA], "identity": [IDENTITY], "both": [PCA, IDENTITY]}
PAGES = ("README.md", "docs/results.md", "docs/orders.md", "docs/claims.md")
FIGURE = re.compile(r"[-+]?\d\.\d{3,}|\b\d+(?=(?:st|nd|rd|th)\b)")
WORD = re.compile(
    r"\b(first|second|third|above|below|before|lead|leads|leading|level|higher|lowers?|raises?|better|worse|gains?"
    r"|loses?|less|(?<!/)best)\b"
)
SAYS: dict[str, dict[str, Any]] = YAML(typ="safe").load((ROOT / "tests/figures.yaml").read_text(encoding="utf-8"))
EACH = [
    (page, words, source)
    for page, says in SAYS.items()
    for words, sources in says.items()
    for source in (sources if isinstance(sources, list) else [sources])
]


def flat(page: str) -> str:
    """Return a page on one line, without blocks of code, with ASCII's minus."""
    text = (ROOT / page).read_text(encoding="utf-8").replace("−", "-")
    return " ".join(re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE).split())


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (BENCHMARK / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def read(source: str | None) -> list[tuple[str, str, list[str], str]]:
    """Return file, setting, names with the signs between them, and column, for each file and setting of a source."""
    if not source or " / " not in source:
        return []
    name, setting, names, column = (part.strip() for part in source.split(" / "))
    files = [f"{data}{name}" for data in ("grocery", "omniglot")] if name.startswith("_") else [name]
    signs = re.split(r" (>>|>|~) ", names)
    return [(file, each, signs, column) for file in files for each in SETTINGS.get(setting, [setting])]


def sides(file: str, setting: str, names: list[str]) -> list[list[str]]:
    """Return the methods of each side of an order, `*` as all other trained ones."""
    named = [name.split(" & ") for name in names[::2]]
    others = trained(file, setting) - {name for side in named for name in side}
    return [sorted(others) if side == ["*"] else side for side in named]


def trained(file: str, setting: str) -> set[str]:
    return {row.name for row in RESULTS["tables"](file)[setting].rows if row.seeds}


def holds(file: str, setting: str, left: str, sign: str, right: str, column: str) -> bool:
    if sign != ">":
        turned = right not in trained(file, setting)  # what is not trained is no reference
        reference, name = (left, right) if turned else (right, left)
        rows = RESULTS["tables"](file, reference)[setting].rows
        ends = next(row.difference.interval for row in rows if row.name == name)
        low, high = sorted(-end for end in ends) if turned else ends
        return low > 0 if sign == ">>" else low <= 0 <= high
    rows = {row.name: row for row in RESULTS["tables"](file)[setting].rows}
    values = {
        "mAUPRC": lambda row: row.mauprc.mean,
        "Recall@1": lambda row: row.recall[0],
        "validation rank": lambda row: -row.ranks[1],
    }
    return values[column](rows[left]) > values[column](rows[right])


@pytest.mark.parametrize(("page", "words", "source"), EACH, ids=[f"{page}: {words}" for page, words, _ in EACH])
def test_what_prose_says_is_that_of_the_lines(page: str, words: str, source: str | None) -> None:
    words = words.replace("−", "-")
    assert words in flat(page)
    figures = FIGURE.findall(words)
    if source and " / " not in source:
        assert set(figures) <= set(FIGURE.findall((ROOT / source).read_text(encoding="utf-8")))
    for file, setting, names, column in read(source):
        if len(names) == 1:
            text = RESULTS["cell"](file, setting, names[0], column)
            first, *others = FIGURE.findall(text) or [text]
            assert first in figures
            assert not re.search(r"±|\[[-+]?\d", words) or set(figures) <= {first, *others}
        for sign, (above, below) in zip(names[1::2], pairwise(sides(file, setting, names)), strict=True):
            assert all(holds(file, setting, higher, sign, lower, column) for higher in above for lower in below)


@pytest.mark.parametrize("page", PAGES)
def test_every_figure_and_word_of_order_is_listed(page: str) -> None:
    prose = re.sub(r"<!-- table: .*?<!-- /table -->", "", flat(page))
    phrases = [re.finditer(re.escape(words.replace("−", "-")), prose) for words in SAYS[page]]
    listed = {index for matches in phrases for match in matches for index in range(*match.span())}
    matches = [match for pattern in (FIGURE, WORD) for match in pattern.finditer(prose)]
    unlisted = [
        prose[max(0, match.start() - 40) : match.end() + 40] for match in matches if match.start() not in listed
    ]
    assert not unlisted


def mentioned() -> set[tuple[str, str, str]]:
    """Return file, setting and method of what a short table shows or prose is about."""
    methods: set[tuple[str, str, str]] = set()
    for page in RESULTS["PAGES"]:
        for table in re.findall(r"<!-- table: (.+?) -->", page.read_text(encoding="utf-8")):
            (_, shown), *columns = RESULTS["TABLES"].get(table, [("", ())])
            for _, file, setting, *_ in columns:
                if file in RESULTS["FILES"]:
                    rows = RESULTS["tables"](file)[setting].rows
                    methods |= {(file, setting, name) for name in shown or [row.name for row in rows]}
    for _, words, source in EACH:
        for file, setting, names, column in read(source):
            if "*" not in names or str(len(trained(file, setting))) in words:
                methods |= {(file, setting, name) for side in sides(file, setting, names) for name in side}
            methods.add((file, setting, column.removeprefix("minus ")))
    return methods


def test_a_line_is_on_a_page_and_has_values_of_each_class_and_a_commit() -> None:
    methods = mentioned()
    for file in RESULTS["FILES"]:
        about, *others = lines(file)
        classes = {line["split"]: len(line["classes"]) for line in others if line["kind"] == "split"}
        units = [line for line in others if line["kind"] in ("choice", "run", "untrained")]
        tests = [line for line in units if line["kind"] != "choice" and "error" not in line]
        faults = [commit for line in units if not re.fullmatch(r"[0-9a-f]{7,40}", commit := str(line.get("commit")))]
        faults += [line["split"] for line in tests if not 1 < len(line["ap_by_class"]) == classes[line["split"]]]
        for line in units:
            settings = about["settings"] if line["kind"] == "untrained" else [line["setting"]]
            if not methods & {(file, setting, line["method"] or UNTRAINED) for setting in settings}:
                faults.append(f"no page mentions {line['method']}, {line['setting']}")
        assert not faults, file


def test_the_tables_are_those_of_the_lines() -> None:
    pages = {page: page.read_text(encoding="utf-8") for page in RESULTS["PAGES"]}
    assert {page: RESULTS["fill"](text) for page, text in pages.items()} == pages, (
        "write them anew: python tools/results.py"
    )
    page = pages[ROOT / "docs/results.md"]
    stale = re.sub(r"\| 0(\.\d{4} \()", r"| 1\1", page, count=1)
    assert stale != page == RESULTS["fill"](stale)
    tables = (BENCHMARK / "tables.txt").read_text(encoding="utf-8")
    assert tables == RESULTS["all_tables"](), "write them anew: python tools/results.py"
    with pytest.raises(UserError, match="'C'"):
        RESULTS["cell"]("grocery_recipe", "", "C", "mAUPRC")


def test_what_prose_says_of_several_tables_is_so() -> None:
    taus = {orders: float(tau) for orders, tau in re.findall(r"\| (.+?) \| (-?\d\.\d+) ", RESULTS["order_table"]())}
    for start in ("PCA", "identity"):
        by_validation = [taus[f"{data}, {start}: validation and test"] for data in ("groceries", "Omniglot")]
        assert by_validation == sorted(by_validation)
        assert taus[f"groceries, {start}; Omniglot, {start}"] < taus["Omniglot, PCA; Omniglot, identity"]
    emoji = [f"emoji, PCA, Lite{number}" for number in range(3)]
    assert max(taus[f"groceries, PCA; {name}"] for name in ("Omniglot, PCA", *emoji)) == 0.20
    assert all(taus[f"{name}: validation and test"] < taus["Omniglot, PCA: validation and test"] for name in emoji)
    groceries = [f"groceries, PCA{network}" for network in ("", ", Lite1", ", Lite2")]
    within = [[taus["; ".join(pair)] for pair in combinations(places, 2)] for places in (groceries, emoji)]
    assert [(min(each), max(each)) for each in within] == [(0.52, 0.73), (0.47, 0.49)]
    assert taus["Omniglot, PCA; Omniglot, PCA, Lite1"] == 0.92
    rows = [[row for row in RESULTS["tables"](file)[PCA].rows if row.seeds] for file in RESULTS["OMNIGLOT"]]
    first, second = ({row.name: row.mauprc.mean for row in each if row.ranks[0] <= 17} for each in rows)
    assert first.keys() == second.keys()
    assert f"{kendalltau(list(first.values()), [second[name] for name in first]).statistic:.2f}" == "0.79"
    pca, identity = (
        {row.name: row for row in RESULTS["tables"]("grocery_heads")[start].rows if row.seeds}
        for start in (PCA, IDENTITY)
    )
    higher = {name for name in pca if pca[name].mauprc.mean > identity[name].mauprc.mean}
    assert higher == {"SupRecall"}
    by_25, by_40 = (
        {(line["setting"], line["method"]): line["val_mauprc"] for line in lines(file) if line["kind"] == "choice"}
        for file in ("grocery_heads", "grocery_trials")
    )
    better = {key for key, value in by_40.items() if by_25[key] > value}
    assert (len(better), len(by_40)) == (5, 18)
    assert {(PCA, "SOPRC"), (IDENTITY, "SOPRC")} < better
    for file in ("grocery_heads", "omniglot_identity"):
        rows = [row for row in RESULTS["tables"](file)[IDENTITY].rows if row.name in RESULTS["HEADS"]]
        assert max(row.difference.half_width for row in rows if row.difference) < 0.0035
    plain = next(row.recall[0] for row in RESULTS["tables"]("grocery_heads")[PCA].rows if row.name == UNTRAINED)
    for block in RESULTS["tables"]("grocery_width").values():
        assert len(block.rows) == 4
        assert all(row.recall[0] > plain for row in block.rows)
        for row in block.rows:
            if row.name in ("SOPRC", "SmoothAP"):
                assert row.mauprc.mean < identity[row.name].mauprc.mean > pca[row.name].mauprc.mean
    recipe = {}
    for line in lines("grocery_recipe")[2:]:
        recipe.setdefault(line["method"], []).append(line["mauprc"])
    assert all(
        after > before for before, after in zip(recipe["SupCon"], recipe["SupCon, projection from PCA"], strict=True)
    )
    assert f"in place of {', '.join(f'{value:.4f}' for value in recipe['SupCon'])}" in flat("docs/results.md")


def test_the_tables_of_estimators_are_those_of_their_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    folder, program = ROOT / "docs" / "miniatures", runpy.run_path(str(ROOT / "tools" / "claims.py"))
    tried = [json.loads(line) for line in (folder / "claims.jsonl").read_text(encoding="utf-8").splitlines()]
    assert (folder / "claims.txt").read_text(encoding="utf-8") == program["tables_of"](tried)
    assert {line["claim"] for line in tried} == set(program["CLAIMS"])
    assert all(re.fullmatch(r"[0-9a-f]{7,40}", line["commit"]) for line in tried)


@pytest.mark.parametrize("data", ["grocery", "omniglot"])
def test_a_heads_configuration_has_the_rate_that_was_chosen(data: str) -> None:
    choices = [line for line in lines(f"{data}_parameters") if line["kind"] == "choice"]
    (chosen,) = (line["chosen"] for line in choices if line["method"] == "SOPRC, no semi-variance")
    rate = dict(override.split("=") for override in chosen)["optim.lr"]
    assert f"{read_config(f'{data}/head').optim.lr:.0e}" == f"{float(rate):.0e}"


def test_the_figures_of_one_shot_are_those_of_the_probes() -> None:
    table = (ROOT / "docs" / "fewshot.md").read_text(encoding="utf-8").split("<!-- figures -->")[1]
    rows = json.loads((BENCHMARK / "omniglot_oneshot.json").read_text(encoding="utf-8"))
    for row in rows:
        cells = ["{:.4f} [{:.4f}, {:.4f}]".format(*row[protocol]) for protocol in ("within", "unstructured")]
        assert f"| {row['model']} | {' | '.join(cells)} |" in table
    assert len(re.findall(r"\d\.\d{4}", table)) == 6 * len(rows)

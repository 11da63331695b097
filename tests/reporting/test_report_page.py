"""report.html: what it shows agrees with the numbers, and no text from outside becomes markup."""

import base64
import io
import re
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from matplotlib.axes import Axes
from PIL import Image
from testing.cases import Elements

import aurank
from aurank.data.checks.findings import Finding
from aurank.data.decode import decode
from aurank.data.sources import ArraySource, FolderSource
from aurank.errors import UserError
from aurank.evaluation.checks import confusions, hubs
from aurank.evaluation.index import overview
from aurank.evaluation.report import Report
from aurank.reporting import report_page as report_module
from aurank.reporting.charts import svg
from aurank.reporting.grids import make_grids
from aurank.reporting.pictures import Pictures, thumbnail
from aurank.reporting.report_page import report_page

EVIL = (
    "<img src=x onerror=alert(1)>.jpg",
    "\x1b[31mred\x1b[0m.png",
    'quote"\n.png',
    "</script><script>alert(2)</script>",
)


def measured(rows: int = 24, **options: Any) -> Report:
    rng = np.random.default_rng(3)
    labels = np.arange(rows) // 3
    report = aurank.evaluate(rng.standard_normal((rows, 5)), labels, neighbours=5, **options)
    names = np.array([f"class {label}" for label in labels])
    return report.named(np.array([f"{row}.png" for row in range(rows)]), names)


def test_a_grid_shows_the_lists_of_the_report():
    report = measured()
    worst, median, _random = make_grids(report, Pictures(None), queries=4)
    assert [row["ap"] for row in worst["rows"]] == sorted(report.per_query["ap"].tolist())[:4]
    assert median["rows"][0]["ap"] == sorted(report.per_query["ap"].tolist())[10]
    for row in worst["rows"]:
        index = report.per_query["query"].tolist().index(row["row"])
        *_, last = row["hits"]
        top = row["hits"][:5]
        assert [one["path"] for one in top] == [f"{found}.png" for found in report.neighbours.row[index]]
        right = [one["rank"] for one in top if one["is_right"]]
        assert last["is_apart"] == (not right)
        if last["is_apart"]:  # the first positive stands behind, as in a list of all
            assert (last["rank"], last["is_right"], last["label"]) == (row["first_rank"], True, row["query"]["label"])
            assert last["path"] == f"{report.per_query['first_positive'][index]}.png"
            assert last["score"] < top[-1]["score"]
        assert (right[0] if right else 6) == min(6, row["first_rank"])
        assert all(one["is_right"] == (one["label"] == row["query"]["label"]) for one in row["hits"])


def test_cameras_stand_beside_queries_and_hits_and_are_compared(tmp_path):
    groups = np.array(["west", "east", ""])[np.arange(24) % 3]
    pairs = [
        {"query": "west", "gallery": "east", "num_queries": 8, "metrics": {"mauprc": 0.25, "recall@1": 0.125}},
        {"query": "east", "gallery": "west", "num_queries": 7, "metrics": {"mauprc": 0.75, "recall@1": 0.875}},
    ]
    report = replace(measured().named(groups=groups), group_pairs=pairs)
    for row in make_grids(report, Pictures(None), queries=4)[0]["rows"]:
        for item in (row["query"], *row["hits"]):
            assert item["group"] == groups[int(item["path"].removesuffix(".png"))]
    text = re.sub("<[^>]+>", " ", report_page(report)).split("top alone.")[1].split()
    assert text[2:10] == ["west", "east", "west", "0.2500", "0.1250", "east", "0.7500", "0.8750"]
    report.save(tmp_path / "report.json")
    report.write_per_query(tmp_path / "rows.parquet")
    assert Report.load(tmp_path / "report.json").group_pairs == pairs
    table, lists = pyarrow.parquet.read_table(tmp_path / "rows.parquet"), report.neighbours
    assert table["group"].to_pylist() == groups.tolist()
    assert table["neighbour_groups"].to_pylist() == groups[lists.row].tolist()


def test_the_axes_of_a_row_of_charts_align():
    drawn: list[Axes] = []

    def draw(axes: Axes, **options: Any) -> None:
        axes.plot([0, 1], [0, 1])
        axes.set(**options)
        drawn.append(axes)

    short, labelled, wide = ({}, {"xlabel": "x", "ylabel": "precision"}, {"yticks": [0], "yticklabels": ["w" * 30]})
    for options in (short, labelled, wide):
        svg(partial(draw, **options), "a chart")
    first, second, last = (axes.get_position().extents for axes in drawn)
    np.testing.assert_allclose(first, second)
    np.testing.assert_allclose(first[1:], last[1:])
    assert last[0] > first[0]  # long names of ticks get the room that they need


def test_names_of_classes_break_at_their_underscores():
    report = measured()
    names = np.array([f"Oat_Milk_{label}" for label in report.per_query["label"]])
    page = report_page(report.named(None, names))
    assert "<tr><td>Oat_<wbr>Milk_<wbr>0</td>" in page.split('id="classes"')[1]
    heat = page.split('id="confusions"')[1]
    assert re.search(r'<span class="turned">Oat_<wbr>Milk_<wbr>\d</span>', heat)
    assert re.search(r"<tr><td>Oat_<wbr>Milk_<wbr>\d</td>", heat)


def test_a_grid_of_a_class_and_an_unknown_one():
    grid = make_grids(measured(), Pictures(None), classes=["class 2"])[-1]
    assert grid["title"] == "Class class 2"
    assert {row["query"]["label"] for row in grid["rows"]} == {"class 2"}
    with pytest.raises(UserError, match="no query of class 'clas 2' was measured; did you mean 'class 2'"):
        make_grids(measured(), Pictures(None), classes=["clas 2"])


def test_no_text_from_outside_becomes_markup():
    names = [*EVIL, "\u202eltr\u202c", "x" * 100_000]
    texts = np.array([names[row % len(names)] for row in range(24)])
    evil = measured().named(texts, texts).made_by(f"aurank evaluate {EVIL[0]}")
    finding = Finding(EVIL[0], 1, (EVIL[3],), True, EVIL[0], EVIL[3], rows=((0, 1),))
    examined = {"findings": [finding], "paths": np.array(EVIL), "classes": np.array(EVIL), "left_out": EVIL}
    rows = np.random.default_rng(3).standard_normal((24, 5))
    page = report_page(evil, title=EVIL[3], examined=examined, facts=[(EVIL[0], EVIL[3])], embeddings=rows)
    elements = Elements(page)
    assert not any("onerror" in attributes for _, attributes in elements.tags)
    assert [tag for tag, _ in elements.tags].count("script") == 1
    places = Elements(page[page.index('<section id="map">') :].partition("</section>")[0])
    assert places.text.count(EVIL[0]) == places.text.count("\u202eltr") == 8  # four points, each with class and path
    assert len(places.text) < 9000  # 100,000 characters of a name are not written out for each point


def test_findings_are_shown_with_what_was_not_looked_at():
    rows = {"paths": np.array(["a.png"]), "classes": np.array(["cat"])}
    clean = {"findings": [], **rows, "left_out": ["Pixels were not looked at."]}
    page = Elements(report_page(measured(), examined=clean))
    assert "Nothing wrong was found. Pixels were not looked at." in page.text
    assert "Findings" not in Elements(report_page(measured())).text
    hub = Finding("hubs", 1, ("a.png: in 90 lists",), False, "They take places.", "Whiten.", rows=((0,),))
    page = Elements(report_page(measured(), examined={**clean, "findings": [hub]}))
    for text in ("warning: hubs (1)", "a.png: in 90 lists", "They take places.", "Whiten."):
        assert text in page.text
    assert "Nothing wrong" not in page.text
    assert "Pictures" not in page.text


@pytest.mark.slow
def test_nothing_is_fetched_from_elsewhere():
    source = ArraySource({f"{row}.png": np.full((8, 8, 3), row, np.uint8) for row in range(24)})
    page = report_page(measured(), source=source)
    for tag, attributes in Elements(page).tags:
        for name in ("src", "href", "xlink:href"):
            value = attributes.get(name) or "#"
            assert value.startswith(("data:image/", "#")), f"{tag} {name} {value[:60]}"
    assert not re.search(r"url\((?!#)|@import", page)


def test_pictures_that_are_missing_or_too_many_are_told(monkeypatch):
    source = ArraySource({"0.png": np.zeros((200, 200, 3), np.uint8), "1.png": np.zeros((200, 200, 3), np.uint8)})
    pictures = Pictures(source, budget=900)
    shown = [pictures.of(f"{row}.png") for row in (0, 1, 2, 0)]
    assert sum(one is not None for one in shown) == 1
    assert pictures.left_out == 2
    assert list(pictures.missing) == ["2.png"]
    monkeypatch.setattr("aurank.reporting.pictures.thumbnail", lambda *_: ("image/png", bytes(8 * 2**20)))
    page = Elements(report_page(measured(), source=source))
    assert "Images that could not be read (22)" in page.text
    assert "Pictures left out to keep the page small" in page.text


def test_confusions_and_hubs_equal_loops():
    lists = measured(rows=60).neighbours
    labels = np.arange(60) // 3
    classes, taken_for, parts = confusions(lists, labels[lists.query], labels, most=4)
    listed, wrong = Counter[int](), Counter[tuple[int, int]]()
    for query, rows in zip(lists.query, lists.row, strict=True):
        for row in rows:
            listed[labels[query]] += 1
            wrong[labels[query], labels[row]] += labels[query] != labels[row]
    assert parts.tolist() == [[wrong[one, other] / listed[one] for other in taken_for] for one in classes]
    assert max(wrong.values()) == max(wrong[pair] for pair in product(classes, taken_for))
    counted = hubs(lists, 60, most=60, above=0.0)
    number = [(lists.row == row).sum() for row in range(60)]
    assert counted["lists"].tolist() == sorted((one for one in number if one), reverse=True)
    assert counted["right"].tolist() == [(lists.is_positive & (lists.row == row)).sum() for row in counted["row"]]
    assert counted["never"] == number.count(0)


def mapped(report: Report, rows: np.ndarray) -> list[dict[str, Any]]:
    """The points of the map of a page, by the numbers in their styles."""
    page = Elements(report_page(report, embeddings=rows))
    styles = [str(values.get("style")) for tag, values in page.tags if "--x" in str(values.get("style"))]
    return [{name: float(value) for name, value in re.findall(r"--(\w+):([\d.]+)", style)} for style in styles]


def test_a_map_shows_each_query_where_its_embedding_is_in_the_colour_of_its_class_or_ap(monkeypatch):
    monkeypatch.setattr(overview, "importable", lambda name: False)
    rows = np.concatenate([np.eye(3)[[0, 0, 1, 1, 2]], [[1, 1, 1]]])
    report = aurank.evaluate(rows, [4, 4, 7, 7, 7, 9])  # the last has no positive and is no point
    points = sorted(mapped(report, rows), key=lambda point: (point["x"], point["y"]))
    assert len(points) == 5
    assert {point["hue"] for point in points} == {0, 137}
    assert sorted(point["ap"] for point in points) == sorted(report.per_query["ap"].round(4).tolist())
    assert {min(point[axis] for point in points) for axis in "xy"} == {2}
    assert {max(point[axis] for point in points) for axis in "xy"} == {98}
    places = [(point["x"], point["y"]) for point in points]
    assert len(set(places)) == 3


def test_a_large_map_is_a_sample_and_says_so(monkeypatch):
    monkeypatch.setattr(report_module, "MOST_POINTS", 10)
    rows = np.random.default_rng(3).standard_normal((24, 5))
    assert len(mapped(measured(), rows)) == 10
    assert "10 of the 24 queries, drawn at random," in report_page(measured(), embeddings=rows)
    assert 'id="map"' not in report_page(measured())


def shown(content: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(content)) as image:
        assert image.mode in ("L", "RGB")  # nothing of it is transparent
        return np.asarray(image.convert("RGB")).astype(int)


@pytest.mark.parametrize("side", [20, 80])  # a PNG, and a JPEG
def test_what_is_transparent_lies_on_white_as_a_network_sees_it(side, tmp_path):
    pixels = np.zeros((side, side, 4), np.uint8)
    pixels[..., 0], pixels[: side // 2, :, 3] = 200, 255  # below its upper half, a red that nobody is meant to see
    pixels[:, : side // 4, 3] = 128
    Image.fromarray(pixels).save(tmp_path / "logo.png")
    source = FolderSource(tmp_path)
    seen = decode(source, "logo.png", 3)
    picture = Pictures(source).of("logo.png")
    alone = thumbnail(decode(source, "logo.png", None, on_white=True))[1]
    for content in (base64.b64decode(picture.partition(",")[2]), alone):
        found = shown(content)
        for part, other in product((0.1, 0.9), repeat=2):  # the four corners
            there = found[int(part * len(found)), int(other * len(found))]
            assert np.abs(there - seen[int(part * side), int(other * side)]).max() <= 12  # JPEG's quality

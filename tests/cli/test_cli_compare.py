"""`aurank compare` as typed: reports of the same queries, a page, pictures from the data, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from testing.shell import Shell

from aurank.commands.compare import short_names
from aurank.evaluation import evaluate

FEW = ("--resamples", "100")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with reports of three models on nine photos of three classes, where commands are given."""
    paths, labels = [], np.repeat([0, 1, 2], 3)
    for row, label in enumerate(labels.tolist()):
        path = tmp_path / "photos" / "abc"[label] / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((60, 60, 3), 20 * row, np.uint8)).save(path)
        paths.append(str(path.relative_to(tmp_path / "photos")))
    rows = np.random.default_rng(1).standard_normal((9, 6))
    for dim, name in ((2, "small"), (4, "middle"), (6, "large")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        report = evaluate(rows[:, :dim], labels, neighbours=3).named(np.array(paths))
        report.save(tmp_path / "runs" / name / "report.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_three_reports_and_their_pictures_become_a_page(place: Path, aurank: Shell) -> None:
    data = ("--data", "folder:photos", "data.odd_classes=keep")
    code, output, said = aurank("compare", "runs/small", "runs/middle", "runs/large/report.json", *FEW, *data)
    assert (code, said) == (0, "")
    assert output.count(" corrected)") == 2
    assert output.endswith("written to compare.html\n")
    page = (place / "compare.html").read_text(encoding="utf-8")
    assert page.count('src="data:image/') > 6
    assert all(f"<td>{name}</td>" in page for name in ("small", "middle", "large"))
    # Its own page is replaced; without data the paths stand in place of pictures.
    assert aurank("compare", "runs/small", "runs/large", *FEW)[0] == 0
    page = (place / "compare.html").read_text(encoding="utf-8")
    assert 'src="data:image/' not in page
    assert "a/0.png" in page


def test_a_file_of_something_else_is_not_replaced(place: Path, aurank: Shell) -> None:
    (place / "compare.html").write_text("<p>mine</p>", encoding="utf-8")
    code, _, complaint = aurank("compare", "runs/small", "runs/large", *FEW)
    assert code == 2
    assert "compare.html is there already and is no page of aurank; name another file" in complaint
    assert (place / "compare.html").read_text(encoding="utf-8") == "<p>mine</p>"
    assert "error: --out page.txt" in aurank("compare", "runs/small", "runs/large", "--out", "page.txt")[2]


def test_what_cannot_be_compared_is_refused_and_leaves_nothing(place: Path, aurank: Shell) -> None:
    assert "needs two reports or more; got runs/small" in aurank("compare", "runs/small")[2]
    assert "runs/none: cannot be read" in aurank("compare", "runs/small", "runs/none")[2]
    evaluate(np.eye(8), np.arange(8) // 2, neighbours=2).save(place / "other.json")
    code, _, complaint = aurank("compare", "runs/small", "other.json")
    assert code == 2
    assert "about 9 and 8 queries" in complaint
    Image.new("RGB", (8, 8)).save(place / "elsewhere.png")
    (place / "others" / "a").mkdir(parents=True)
    for name in ("x.png", "y.png"):
        Image.new("RGB", (8, 8)).save(place / "others" / "a" / name)
    data = ("--data", "folder:others", "data.odd_classes=keep")
    complaint = aurank("compare", "runs/small", "runs/large", *data)[2]
    assert "has none of the 9 images of the reports, such as 'a/0.png'; name the data and the split" in complaint
    assert not (place / "compare.html").exists()


def test_models_are_called_by_the_shortest_names_that_differ() -> None:
    assert short_names([Path("a/test/report.json"), Path("b/test")]) == ["a/test", "b/test"]
    assert short_names([Path("one.json"), Path("two.json")]) == ["one.json", "two.json"]
    assert short_names([Path("x/report.json"), Path("x")]) == ["x", "x (2)"]
    assert short_names([Path("x/a"), Path("y/a"), Path("y/b")]) == ["x/a", "y/a", "y/b"]

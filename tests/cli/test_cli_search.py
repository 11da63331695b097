"""`aurank index` and `aurank search` as typed."""

import io
import json
import os
from pathlib import Path

import pytest
from testing.galleries import MODEL, small_index, write_photo, write_photos

from aurank.commands import ImageIndex


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    small_index(write_photos(folder / "photos", classes=2, images=3), folder / "index")
    return folder


@pytest.fixture(autouse=True)
def inside(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)


def test_a_photo_finds_itself_first(aurank):
    code, out, err = aurank("search", "index", "photos/c1/2.png", "--k", "3")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "photos/c1/2.png"
    assert lines[1] == "rank      score  class  path"
    assert lines[2] == "   1     1.0000  c1     c1/2.png"
    assert lines[5] == f"searched 6 images, {MODEL}, cosine, index Flat"


def test_a_list_is_read_from_stdin_and_printed_as_json(aurank, made, tmp_path, monkeypatch):
    odd = tmp_path / os.fsdecode(b"a\n\x1b[31m\xff.png")
    write_photo(odd, 3)
    given = b"\0".join([os.fsencode(odd), b"photos/c0/1.png", b"gone.png"])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
    code, out, _ = aurank("search", "index", "-", "--k", "9", "--threshold", "0.99", "--json")
    content = json.loads(out)
    assert code == 2
    assert [one["photo"] for one in content["photos"]] == [str(odd), "photos/c0/1.png", "gone.png"]
    expected = {"rank": 1, "score": 1, "path": "c0/1.png", "class": "c0", "row": 1}
    assert content["photos"][1]["hits"][0] | {"score": 1} == expected
    assert all(hit["score"] >= 0.99 for one in content["photos"] for hit in one["hits"])
    assert "gone.png" in content["photos"][2]["error"]
    assert content["index"]["count"] == 6


def test_what_a_name_holds_stays_text(aurank, tmp_path):
    write_photo(tmp_path / "photos/a\n\x1b[31m<b>.png", 3)
    out, _ = aurank.done("search", "index", str(tmp_path / "photos"), "--k", "1")
    assert "\x1b" not in out
    assert out.splitlines()[0].endswith("a\\n\\x1b[31m<b>.png")


def test_more_than_the_index_holds_is_all_of_it(aurank):
    code, _, complaint = aurank("search", "index", "photos/c0/0.png", "--k", "7")
    assert (code, complaint) == (0, "--k 7 asks for more than the 6 images of the index: all are listed\n")


def test_words_and_photos_are_options_of_one_query(aurank):
    code, out, err = aurank("search", "index", "--photo", "photos/c1/2.png", "--not", "photos/c0/0.png", "--k", "3")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "photos/c1/2.png -1 × photos/c0/0.png"
    assert "c0/0.png" not in "".join(out.splitlines()[2:5])
    same, _ = aurank.done("search", "index", "--photo", "photos/c1/2.png", "--k", "3", "--weights", "2")
    assert same.splitlines()[1:] == aurank.done("search", "index", "photos/c1/2.png", "--k", "3")[0].splitlines()[1:]
    for given, message in (
        (["--text", "red mug"], f"{MODEL} has no text tower for words: open_clip, transformers and model.text have"),
        ([], "FOLDER needs PHOTOS or --photo or --text or --not: they say what is looked for"),
        (["photos", "--text", "red mug"], "PHOTOS does not go with --text: name photos of one query by --photo"),
        (["photos", "--weights", "2"], "PHOTOS does not go with --weights: name photos of one query by --photo"),
        (["--not", "photos/gone.png"], "photos/gone.png: there is no such file"),
        (["--photo", "photos/c1/2.png", "--weights", "1,2"], "2 weights for 1 photos and texts"),
    ):
        code, _, err = aurank("search", "index", *given)
        assert "--not" not in given or "leave out words by --text and a weight below 0" in err
        assert (code, err[: len(message) + 7]) == (2, f"error: {message}")
        assert err.count("\n") == 1


@pytest.mark.slow
def test_an_index_is_built_and_changed(aurank, made):
    command = ("index", "build", "--model", MODEL, "--data", "folder:photos", "--out", "near")
    out, _ = aurank.done(*command, "--index", "IVF2,Flat")
    assert "which finds" in out
    write_photo(made / "more/c9/new.png", 50)
    assert aurank.done("index", "add", "near", "--data", "folder:more")[0].startswith("1 added; the index holds 7\n")
    out, _ = aurank.done("index", "remove", "near", "c9/new.png", "--class", "c1")
    assert out.splitlines()[0] == "4 removed; the index holds 3"
    assert len(ImageIndex.open(made / "near")) == 3
    assert "'x.png' is not in the index" in aurank.refused("index", "remove", "near", "x.png")


def test_the_page_shows_why_images_are_alike_or_that_the_network_has_no_cells(aurank, tmp_path, monkeypatch):
    evil = write_photos(tmp_path / "photos", classes=1, images=2) / "c0/<script>alert(1).png"
    write_photo(evil, 7)
    monkeypatch.chdir(tmp_path)
    pooled = ("--model", "timm:test_resnet,pretrained=false,input_size=64", "--data", "folder:photos")
    aurank.done("index", "build", *pooled, "--out", "pooled")
    aurank.done("search", "pooled", str(evil), "--k", "2", "--html", "why.html", "--explain")
    page = Path("why.html").read_text(encoding="utf-8")
    assert page.count('<li class="alike"><img') == 2
    assert "<small>1 · cosine 1.000, explained in full</small>" in page
    assert "<script>alert" not in page
    small_index(tmp_path / "photos", tmp_path / "index")
    aurank.done("search", "index", str(evil), "--html", "why.html", "--explain")
    page = Path("why.html").read_text(encoding="utf-8")
    assert f"<li><small>{MODEL} has no cells" in page
    aurank.done("search", "index", str(evil), "--html", "why.html")
    assert "has no cells" not in Path("why.html").read_text(encoding="utf-8")
    assert "--explain needs --html" in aurank("search", "index", str(evil), "--explain")[2]

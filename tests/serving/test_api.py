"""The API answers as its OpenAPI text says, agrees with the index, and names nothing of the machine."""

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient
from testing.galleries import COLOURS, photo_of, words_index, write_coloured

from aurank.commands import ImageIndex, build_index, mixed_query
from aurank.embedding import ImageSelection
from aurank.models import explain
from aurank.reporting.pictures import heat_maps
from aurank.serving.app import make_app
from aurank.serving.gallery import Gallery, public_name
from aurank.serving.uploads import Window


def by_photo(client: TestClient, content: bytes, **fields: Any) -> dict[str, Any]:
    answer = client.post("/api/search", files={"photo": ("a.png", content)}, data=fields)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def by_row(client: TestClient, row: int, **fields: Any) -> dict[str, Any]:
    answer = client.post("/api/search", json={"row": row, **fields})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_info_counts_and_names_the_model_and_the_limits(client):
    info = client.get("/api/info").json()
    assert [info[name] for name in ("images", "classes", "score", "model")] == [30, 3, "cosine", "timm:test_vit"]
    assert info["max_upload_bytes"] == 20 * 2**20


def test_the_gallery_is_paged_through_whole_and_by_class(client, index):
    seen = []
    for offset in range(0, 40, 8):
        page = client.get("/api/images", params={"offset": offset, "limit": 8}).json()
        assert (page["offset"], page["total"]) == (offset, 30)
        seen += [(one["row"], one["name"], one["class"]) for one in page["images"]]
    assert seen == list(zip(range(30), index.images["path"].tolist(), index.images["class"].tolist(), strict=True))
    green = client.get("/api/images", params={"class": "green", "limit": 100}).json()
    assert green["total"] == 10
    assert [one["row"] for one in green["images"]] == np.flatnonzero(index.images["class"] == "green").tolist()
    assert client.get("/api/classes").json()["classes"] == [{"name": name, "images": 10} for name in sorted(COLOURS)]


def test_a_photo_finds_what_the_index_finds(client, index):
    (expected,) = index.search([photo_of()], k=30)
    answer = by_photo(client, photo_of(), limit=100)
    assert (answer["query"], answer["score"], answer["offset"], answer["total"]) == (None, "cosine", 0, 30)
    assert [one["row"] for one in answer["neighbours"]] == [hit.row for hit in expected]
    assert [one["score"] for one in answer["neighbours"]] == [hit.score for hit in expected]
    assert [one["rank"] for one in answer["neighbours"]] == list(range(1, 31))
    pages = [by_photo(client, photo_of(), limit=7, offset=offset)["neighbours"] for offset in (0, 7, 14, 21, 28, 35)]
    assert [one for page in pages for one in page] == answer["neighbours"]


def test_a_row_finds_the_others_and_not_itself(client, index):
    (expected,) = index.search_rows([4], k=29)
    answer = by_row(client, 4, limit=100)
    assert (answer["query"]["row"], answer["total"]) == (4, 29)
    assert [one["row"] for one in answer["neighbours"]] == [hit.row for hit in expected]
    assert by_row(client, 4, offset=29)["neighbours"] == []


@pytest.mark.parametrize(("wanted", "total"), [("green", 10), ("blue", 9)])
def test_a_class_is_searched_whole(client, index, wanted, total):
    row = int(np.flatnonzero(index.images["class"] == "blue")[3])
    everything = by_row(client, row, limit=100)["neighbours"]
    answer = by_row(client, row, **{"class": wanted}, limit=100)
    assert answer["total"] == total
    assert [one["row"] for one in answer["neighbours"]] == [o["row"] for o in everything if o["class"] == wanted]
    assert [one["rank"] for one in answer["neighbours"]] == list(range(1, total + 1))
    assert by_photo(client, photo_of(), **{"class": wanted}, limit=3)["total"] == 10


def test_a_photo_is_embedded_once_however_often_its_pages_are_asked_for(index, monkeypatch):
    calls = []
    embed = index.embed
    monkeypatch.setattr(index, "embed", lambda photos: calls.append(1) or embed(photos))
    client = TestClient(make_app(index))
    for offset in (0, 5, 10):
        by_photo(client, photo_of("red"), offset=offset, limit=5)
    assert len(calls) == 1
    monkeypatch.setattr("aurank.serving.gallery._QUERIES", 1)  # the one before is forgotten
    for colour in ("green", "red"):
        by_photo(client, photo_of(colour))
    assert len(calls) == 3


def test_thumbnails_are_pictures_of_their_rows(client, index):
    row = int(np.flatnonzero(index.images["class"] == "blue")[0])
    answer = client.get(f"/api/images/{row}/thumbnail")
    assert answer.headers["content-type"] == "image/jpeg"
    with Image.open(io.BytesIO(answer.content)) as image:
        assert image.size == (64, 48)
        assert np.abs(np.asarray(image).mean(axis=(0, 1)) - COLOURS["blue"]).max() < 12
    again = client.get(f"/api/images/{row}/thumbnail", headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_an_image_that_went_missing_is_said_without_its_folder(index, tmp_path):
    row = int(np.flatnonzero(index.images["path"] == "green/5.png")[0])
    place = Path(index.about["sources"][0]["place"], "green/5.png")
    kept = place.rename(tmp_path / "kept.png")
    try:
        answer = TestClient(make_app(index)).get(f"/api/images/{row}/thumbnail")
    finally:
        kept.rename(place)
    assert answer.status_code == 404
    assert answer.json() == {"error": f"image {row} (green/5.png) is gone or cannot be decoded"}


@pytest.mark.parametrize(
    ("path", "shown"),
    [("a/b.jpg", "a/b.jpg"), ("/home/me/b.jpg", "b.jpg"), (r"C:\me\b.jpg", "b.jpg"), ("~/b.jpg", "b.jpg"),
     ("a/../../b.jpg", "b.jpg"), ("x\udcff.jpg", "x?.jpg")],
)  # fmt: skip
def test_a_name_shows_no_folder_of_the_machine(path, shown):
    assert public_name(path) == shown


@pytest.mark.parametrize(
    ("model", "shown"),
    [("aurank:/home/me,you/runs/best", "aurank:best"), ("timm:a/b", "timm:a/b"),
     ("timm:net,file=/home/me/w.pt,input_size=128", "timm:net"), ("onnx:/home/a=b/net.onnx,size=8", "onnx:net.onnx"),
     ("python:my.models:make", "python:my.models:make")],
)  # fmt: skip
def test_a_model_shows_no_folder_of_the_machine(index, model, shown, monkeypatch):
    monkeypatch.setattr(index, "about", {**index.about, "model": {**index.about["model"], "name": model}})
    gallery = Gallery(index, 1000)
    assert (gallery.model, gallery.description) == (shown, f"30 images, {shown}, cosine, index Flat")


def test_classes_with_numbers_stand_in_their_order(index, monkeypatch):
    names = [f"shoe {number % 12}" if number < 29 else "" for number in range(30)]
    table = {**index.images, "class": np.array(names)}
    monkeypatch.setattr(index, "rows", dataclasses.replace(index.rows, images=table))
    gallery = Gallery(index, 1000)
    counts = [3] * 5 + [2] * 7
    assert gallery.classes == [{"name": f"shoe {number}", "images": count} for number, count in enumerate(counts)]
    assert [each["class"] for each in gallery.images(Window(limit=30))["images"]] == [*names[:29], None]


def test_a_photo_that_the_model_makes_nothing_of(index, monkeypatch):
    monkeypatch.setattr(index, "embed", lambda photos: np.full((1, index.rows.embeddings.shape[1]), np.nan))
    answer = TestClient(make_app(index)).post("/api/search", files={"photo": ("a.png", photo_of())})
    assert answer.status_code == 422
    assert answer.json() == {"error": "the model makes no embedding of this query that can be searched with"}


def test_no_answer_names_a_folder_of_the_machine(client, index):
    answers = [client.get(path) for path in ("/", "/openapi.json", "/api/info", "/api/classes", "/api/images")]
    answers += [client.post("/api/search", json={"row": 1}), client.get("/api/images/99/thumbnail")]
    answers += [client.post("/api/search", files={"photo": b"no photo"})]
    for answer in answers:
        said = answer.text + json.dumps(dict(answer.headers))
        for folder in (str(index.folder), index.about["sources"][0]["place"], str(Path.home()), str(Path.cwd())):
            assert folder == "/" or folder not in said


def test_openapi_describes_every_address(client):
    text = client.get("/openapi.json").json()
    schemas = text["components"]["schemas"]
    assert "HTTPValidationError" not in schemas  # errors are lines of their own
    bodies = text["paths"]["/api/search"]["post"]["requestBody"]["content"]
    assert bodies["application/json"]["schema"]["properties"]["row"]["anyOf"][0]["minimum"] == 0
    assert {body["schema"]["properties"]["text"]["maxLength"] for body in bodies.values()} == {1000}
    assert bodies["multipart/form-data"]["schema"]["properties"]["photo"]["format"] == "binary"
    assert {one["name"] for one in text["paths"]["/api/images"]["get"]["parameters"]} == {"offset", "limit", "class"}
    for path, methods in text["paths"].items():
        for method, operation in methods.items():
            if path.endswith("explain"):  # the network of this index has no cells
                schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
                assert schema["$ref"].endswith("/Reason")
                continue
            answer = client.request(method, path.replace("{row}", "3"), json={"row": 3} if method == "post" else None)
            content = operation["responses"]["200"]["content"]
            assert answer.headers["content-type"] in content
            if "thumbnail" not in path:
                schema = content["application/json"]["schema"]
                if "$ref" in schema:
                    name = schema["$ref"].rpartition("/")[2]
                    assert answer.json().keys() == schemas[name]["properties"].keys()
                else:
                    assert schema["additionalProperties"]["items"] == {"$ref": "#/components/schemas/ClassSize"}


def test_a_change_of_the_gallery_has_no_address(client):
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        for path in ("/api/images", "/api/images/1/thumbnail", "/api/classes", "/"):
            answer = client.request(method, path)
            assert (answer.status_code, answer.json()) == (405, {"error": f"this address does not take {method}"})


def test_an_image_is_explained_to_a_photo_and_to_an_image(tmp_path):
    name = "timm:test_resnet,pretrained=false,input_size=64"
    index = build_index(name, ImageSelection(f"folder:{write_coloured(tmp_path / 'p', each=2)}"), out=tmp_path / "i")
    client = TestClient(make_app(index))
    by_row = client.post("/api/images/1/explain", json={"row": 0}).json()
    why = explain(index.load_model(), index.read_image(0), [index.read_image(1)])[0]
    assert by_row == {"text": str(why), "pictures": heat_maps(why)}
    assert all(picture.startswith("data:image/") for picture in by_row["pictures"])
    by_photo = client.post("/api/images/1/explain", files={"photo": ("a.png", photo_of())})
    assert by_photo.json()["text"].endswith("explained in full")
    for one, other in ((99, 0), (0, 99)):
        answer = client.post(f"/api/images/{one}/explain", json={"row": other})
        assert (answer.status_code, answer.json()["error"]) == (404, "there is no image 99; the gallery has 0 to 5")


def test_a_network_without_cells_is_said_without_names_of_the_machine(client):
    answer = client.post("/api/images/1/explain", json={"row": 0})
    assert answer.status_code == 422
    assert answer.json()["error"] == "an image is gone, or the model has no cells to explain a cosine by"


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> ImageIndex:
    return words_index(tmp_path_factory.mktemp("words"))


def scores(answer: Any) -> list[tuple[int, float]]:
    assert answer.status_code == 200, answer.text
    return [(one["row"], one["score"]) for one in answer.json()["neighbours"]]


def expected(index: ImageIndex, *parts: np.ndarray, k: int = 30) -> list[tuple[int, float]]:
    return [(hit.row, hit.score) for hit in index.search(mixed_query(np.concatenate(parts)), k=k)[0]]


def test_words_find_what_the_index_finds_alone_and_beside_an_image_or_a_photo(words):
    client, text = TestClient(make_app(words)), words.embed_texts(["green mug"])
    assert "Search by photo or words" in client.get("/").text
    alone = client.post("/api/search", json={"text": "green mug", "limit": 100})
    assert scores(alone) == expected(words, text)
    assert [row for row, _ in scores(alone)] == [hit.row for hit in words.search(texts=["green mug"], k=30)[0]]
    assert (alone.json()["query"], alone.json()["total"]) == (None, 30)
    pages = [client.post("/api/search", json={"text": "green mug", "offset": at, "limit": 9}) for at in (0, 9, 18, 27)]
    assert [one for page in pages for one in scores(page)] == scores(alone)
    beside = client.post("/api/search", json={"row": 4, "text": "green mug", "limit": 100})
    assert scores(beside) == expected(words, np.asarray(words.rows.embeddings[[4]]), text)
    assert beside.json()["query"]["row"] == 4
    blue = {"photo": ("a.png", photo_of("blue"))}
    mixed = client.post("/api/search", files=blue, data={"text": "green mug", "limit": 100})
    assert scores(mixed) == expected(words, words.embed([photo_of("blue")]), text)
    assert scores(mixed) != scores(client.post("/api/search", files=blue, data={"limit": 100}))
    green = client.post("/api/search", json={"text": "green mug", "class": "green", "limit": 100})
    assert {one["class"] for one in green.json()["neighbours"]} == {"green"}


def test_strange_words_are_searched_with_or_refused_in_a_line(words):
    client = TestClient(make_app(words))
    for text in ("<img src=x onerror=alert(1)>", "כחול mug", "\x00\u202e", "mug " * 250, "😀" * 1000):
        assert len(scores(client.post("/api/search", json={"text": text, "limit": 100}))) == 30
    answer = client.post("/api/search", json={"text": "a" * 1001})
    assert (answer.status_code, answer.json()["error"]) == (422, "text: String should have at most 1000 characters")
    for body in (b'{"text": "\\ud800"}', b'{"text": "\xff"}'):
        answer = client.post("/api/search", content=body, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["error"][:23]) == (400, "the body cannot be read")


def test_a_model_without_a_text_tower_has_no_box_and_takes_no_words(client):
    assert '<form id="words" role="search" hidden>' in client.get("/").text
    assert "Search by photo or words" not in client.get("/").text
    answer = client.post("/api/search", json={"text": "red mug"})
    assert answer.status_code == 422
    assert answer.json() == {"error": "the model makes no embedding of this query that can be searched with"}

"""Words in the API: what the index finds by them, alone and beside an image or a photo."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient
from testing.galleries import COLOURS, words_index

from aurank.commands import ImageIndex, mixed_query
from aurank.serving.app import make_app


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> ImageIndex:
    return words_index(tmp_path_factory.mktemp("words"))


def scores(answer: Any) -> list[tuple[int, float]]:
    assert answer.status_code == 200, answer.text
    return [(one["row"], one["score"]) for one in answer.json()["neighbours"]]


def expected(index: ImageIndex, *parts: np.ndarray, k: int = 30) -> list[tuple[int, float]]:
    return [(hit.row, hit.score) for hit in index.search(mixed_query(np.concatenate(parts)), k=k)[0]]


def test_words_find_what_the_index_finds_alone_and_beside_an_image_or_a_photo(words: ImageIndex) -> None:
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
    file = io.BytesIO()
    Image.new("RGB", (50, 40), COLOURS["blue"]).save(file, "png")
    photo = {"photo": ("a.png", file.getvalue())}
    mixed = client.post("/api/search", files=photo, data={"text": "green mug", "limit": 100})
    assert scores(mixed) == expected(words, words.embed([file.getvalue()]), text)
    assert scores(mixed) != scores(client.post("/api/search", files=photo, data={"limit": 100}))
    green = client.post("/api/search", json={"text": "green mug", "class": "green", "limit": 100})
    assert {one["class"] for one in green.json()["neighbours"]} == {"green"}


def test_strange_words_are_searched_with_or_refused_in_a_line(words: ImageIndex) -> None:
    client = TestClient(make_app(words))
    for text in ("<img src=x onerror=alert(1)>", "כחול mug", "\x00\u202e", "mug " * 250, "😀" * 1000):
        assert len(scores(client.post("/api/search", json={"text": text, "limit": 100}))) == 30
    for body, message in (
        ({"text": "a" * 100_000}, "the upload may have 64.0 KiB at most; reduce it"),
        ({"text": "a" * 1001}, "text: String should have at most 1000 characters"),
        ({"text": 3}, "text: Input should be a valid string"),
        ({"text": ""}, "name the row of an image, or a text"),
        ({"row": 30, "text": "mug"}, "there is no image 30; the gallery has 0 to 29"),
    ):
        answer = client.post("/api/search", json=body)
        assert (answer.status_code >= 400, answer.json()) == (True, {"error": message})
    for body in (b'{"text": "\\ud800"}', b'{"text": "\xff"}'):
        answer = client.post("/api/search", content=body, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["error"][:23]) == (400, "the body cannot be read")


def test_a_model_without_a_text_tower_has_no_box_and_takes_no_words(client: TestClient) -> None:
    assert '<form id="words" role="search" hidden>' in client.get("/").text
    assert "Search by photo or words" not in client.get("/").text
    answer = client.post("/api/search", json={"text": "red mug"})
    assert answer.status_code == 422
    assert answer.json() == {"error": "the model makes no embedding of this query that can be searched with"}

"""What the server refuses: each with a status and one line that says what is wrong."""

import base64
import io
import struct
import zlib
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from aurank.serving.app import make_app
from aurank.serving.uploads import Limits

JSON = "application/json"


def refused(answer: Any, status: int) -> str:
    assert answer.status_code == status, answer.text
    (said,) = answer.json().values()
    assert answer.json() == {"error": said}
    assert "\n" not in said
    return str(said)


def sent(client: TestClient, content: bytes, kind: str) -> Any:
    return client.post("/api/search", content=content, headers={"content-type": kind})


def upload(client: TestClient, content: bytes, **fields: Any) -> Any:
    return client.post("/api/search", files={"photo": ("photo.jpg", content, "image/jpeg")}, data=fields)


def png(width: int, height: int) -> bytes:
    """A PNG that claims a size, and has no pixels worth speaking of."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


def test_a_body_that_is_too_large(index):
    client = TestClient(make_app(index, limits=Limits(upload_bytes=5000)))
    assert refused(upload(client, bytes(90_000)), 413) == "the upload may have 68.9 KiB at most; reduce it"
    assert refused(sent(client, b" " * 70_000, JSON), 413) == "the upload may have 64.0 KiB at most; reduce it"


@pytest.mark.parametrize(
    "content", [b"", b"no photo", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%!PS-Adobe-3.0 EPSF-3.0\n"]
)
def test_what_is_no_image(client, content):
    said = refused(upload(client, content), 415)
    assert said == "the photo is in none of the formats JPEG, PNG, WEBP, GIF, BMP, TIFF, PPM"


@pytest.mark.parametrize(("width", "height"), [(9000, 9000), (2**31 - 1, 2**31 - 1)])
def test_a_bomb_is_refused_by_its_header(client, width, height):
    assert "reduce it" in refused(upload(client, png(width, height)), 413)


def test_a_strip_that_would_be_enlarged_beyond_memory(client):
    assert refused(upload(client, png(50_000, 1)), 422).startswith("a strip of 50,000 × 1 pixels is no photo")


def test_a_broken_photo(client):
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (90, 90, 3), dtype=np.uint8)).save(file, "JPEG")
    said = refused(upload(client, file.getvalue()[:2000]), 422)
    assert said.startswith("the photo cannot be decoded (OSError: image file is truncated")


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 400, "the body cannot be read: Invalid JSON: EOF"),
        (b"[" * 60_000, 400, "the body cannot be read: Invalid JSON: recursion limit"),
        (b"{}", 422, "name the row of an image, or a text"),
        (b'{"row": -1}', 422, "row: Input should be greater than or equal to 0"),
        (b'{"row": 30}', 404, "there is no image 30; the gallery has 0 to 29"),
        (b'{"row": 1, "path": "/etc/passwd"}', 422, "path: Extra inputs are not permitted"),
        (b'{"row": 1, "class": "gren"}', 404, "there is no class 'gren'; did you mean 'green'?"),
    ],
)  # fmt: skip
def test_json_that_asks_for_what_is_not_possible(client, body, status, said):
    assert refused(sent(client, body, JSON), status).startswith(said)


@pytest.mark.parametrize(
    "path",
    ["/../../etc/passwd", "/api/images/..%2f..%2fetc%2fpasswd/thumbnail", "/api/images/1.5/thumbnail",
     f"/api/images/{'9' * 5000}/thumbnail", "/api/images/30/thumbnail", "/static/../serve.html"],
)  # fmt: skip
def test_paths_lead_nowhere_but_to_rows(client, path):
    assert len(refused(client.get(path), 404)) < 200


def test_forms_that_cannot_be_used(client):
    assert "boundary" in refused(sent(client, b"", "multipart/form-data"), 400)
    refused(sent(client, b"nonsense", "multipart/form-data; boundary=x"), 400)
    assert refused(client.post("/api/search", files={"other": b"1"}), 422) == "photo: Field required"
    assert refused(client.post("/api/search", data={"photo": "1"}), 415)
    many = [("photo", (f"{number}.png", b"1")) for number in range(3)]
    assert "Too many files" in refused(client.post("/api/search", files=many), 400)
    assert refused(upload(client, b"1", limit="many"), 422).startswith("limit: Input should be a valid integer")
    for kind in ("text/plain", "image/png", ""):
        assert refused(sent(client, b"1", kind), 415).startswith("send a photo as multipart/form-data")


def test_queries_of_the_gallery_that_cannot_be_met(client):
    for query, said in (("limit=0", "limit: "), ("offset=x", "offset: "), ("k=3", "k: Extra inputs")):
        assert refused(client.get(f"/api/images?{query}"), 422).startswith(said)
    assert refused(client.get("/api/images", params={"class": "Red"}), 404).endswith("did you mean 'red'?")


def test_requests_that_another_site_made_a_browser_send(index):
    client = TestClient(make_app(index, hosts=["localhost", "127.0.0.1", "::1"]))
    for host in ("localhost", "localhost:8000", "127.0.0.1:9", "[::1]:8000", "LOCALHOST"):
        assert client.get("/api/info", headers={"host": host}).status_code == 200
    for host in ("evil.example", "127.0.0.1.evil.example:8000", "", "[::1", "localhost@evil.example"):
        assert "another host" in refused(client.get("/api/info", headers={"host": host}), 403)
    answer = client.post("/api/search", json={"row": 1}, headers={"host": "localhost", "sec-fetch-site": "cross-site"})
    assert refused(answer, 403) == "the request comes from another site"


def test_a_token_is_asked_for_everywhere_as_a_bearer_or_a_password(index):
    client, token = TestClient(make_app(index, token="pass:wörd")), "pass:wörd"
    good = [f"Bearer {token}".encode(), b"basic " + base64.b64encode(f"anyone:{token}".encode())]
    bad = [b"", b"Bearer", b"Bearer pass", b"Basic x", b"Basic " + base64.b64encode(token.encode()), token.encode()]
    for path in ("/", "/api/info", "/openapi.json", "/api/images/0/thumbnail", "/nowhere"):
        for one in good:
            assert client.get(path, headers={"authorization": one}).status_code == (404 if path == "/nowhere" else 200)
        for one in bad:
            answer = client.get(path, headers={"authorization": one})
            assert refused(answer, 401).startswith("send the token of aurank serve")
            assert answer.headers["www-authenticate"].startswith("Basic ")


def test_every_answer_has_the_security_headers(client):
    for path in ("/", "/api/info", "/api/images/0/thumbnail", "/nothing"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in headers


def test_a_failure_of_the_program_says_nothing_of_the_machine(index, monkeypatch):
    monkeypatch.setattr(index, "search_rows", Mock(side_effect=RuntimeError(f"no such file: {index.folder}")))
    client = TestClient(make_app(index), raise_server_exceptions=False)
    answer = client.post("/api/search", json={"row": 1})
    assert refused(answer, 500) == "the server failed; its terminal says why"
    assert answer.headers["x-content-type-options"] == "nosniff"

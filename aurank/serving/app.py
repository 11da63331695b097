"""The application: a page, and a read-only API below /api, behind security headers and bounded threads."""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from typing import Annotated, Any
from urllib.parse import urlsplit

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import ValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import TypedDict

from aurank.commands import ImageIndex
from aurank.data.decode import quiet_decoding
from aurank.reporting.page import render
from aurank.serving.gallery import ClassSize, Gallery, ImagePage, Reason, SearchResult
from aurank.serving.uploads import DEEPEST, FORMATS, Limits, PhotoSearch, RowSearch, Window, read_search

_HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}
_SEARCHES: dict[str, type[Window]] = {"application/json": RowSearch, "multipart/form-data": PhotoSearch}
_BODY = {kind: {"schema": search.model_json_schema()} for kind, search in _SEARCHES.items()}


class Info(TypedDict):
    images: int
    classes: int
    score: str
    model: str
    index: str
    version: str
    most_neighbours: int
    max_upload_bytes: int
    max_pixels: int
    formats: list[str]


def make_app(
    index: ImageIndex,
    *,
    limits: Limits | None = None,
    hosts: Sequence[str] | None = None,
    token: str | None = None,
) -> ASGIApp:
    """Return the ASGI application that serves an index, for any ASGI server.

    Args:
        index: what is searched; nothing of it is changed.
        limits: of requests.
        hosts: the names that requests may call this server by, in lower case; None takes any.
        token: what every request has to bring, as a bearer token or as a password; None asks for none.
    """
    limits = limits or Limits()
    gallery = Gallery(index, limits.pixels)
    # Pictures have their own, so that a page of them keeps no search waiting.
    searching, drawing = CapacityLimiter(limits.threads), CapacityLimiter(limits.threads)
    searches = CapacityLimiter(limits.threads + limits.waiting)
    drawings = CapacityLimiter(limits.threads + 8 * limits.waiting)
    page = render("serve.html", title=f"Search by photo{' or words' * gallery.takes_texts}", texts=gallery.takes_texts)
    # The policy of the page names its script and its style by their digests.
    texts = re.findall(r"<(script|style)>(.*?)</\1>", page, flags=re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for _, text in texts]
    inline = " ".join(f"'sha256-{digest}'" for digest in digests)
    policy = (
        f"default-src 'none'; script-src {inline}; style-src {inline}; img-src 'self' blob: data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    info = Info(
        images=len(gallery.names),
        classes=len(gallery.classes),
        score=gallery.score,
        model=gallery.model,
        index=gallery.description,
        version=version("aurank"),
        most_neighbours=DEEPEST,
        max_upload_bytes=limits.upload_bytes,
        max_pixels=limits.pixels,
        formats=list(FORMATS),
    )
    app = FastAPI(
        title="aurank serve",
        description="Search an index of images. Read-only. Images go by their row; every error is one line of text.",
        version=version("aurank"),
        docs_url=None,
        redoc_url=None,
        lifespan=_quiet,
        exception_handlers=dict.fromkeys(
            (HTTPException, RequestValidationError, ValidationError, Exception), _answer_error
        ),
        responses={"default": {"model": dict[str, str], "description": "One line says what is wrong."}},
    )

    @app.get("/", include_in_schema=False)
    async def show_page() -> HTMLResponse:
        return HTMLResponse(page, headers={"content-security-policy": policy})

    @app.get("/api/info")
    async def describe() -> Info:
        return info

    @app.get("/api/classes")
    async def list_classes() -> dict[str, list[ClassSize]]:
        return {"classes": gallery.classes}

    @app.get("/api/images")
    async def list_images(window: Annotated[Window, Query()]) -> ImagePage:
        return gallery.images(window)

    @app.get("/api/images/{row}/thumbnail", responses={200: {"content": {"image/jpeg": {}, "image/png": {}}}})
    async def draw_thumbnail(request: Request, row: Annotated[int, Path(ge=0)]) -> Response:
        gallery.require(row)
        # A browser asks again, as another index may be served tomorrow, and learns in a few bytes that it has it.
        headers = {"etag": f'"{gallery.version}-{row}"', "cache-control": "private, no-cache"}
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        refuse_when_full(drawings)
        async with drawings:
            kind, content = await run_sync(gallery.picture, row, limiter=drawing)
        return Response(content, media_type=kind, headers=headers)

    @app.post("/api/search", openapi_extra={"requestBody": {"required": True, "content": _BODY}})
    async def search(request: Request) -> SearchResult:
        refuse_when_full(searches)
        async with searches:
            return await run_sync(gallery.search, await read_search(request, limits), limiter=searching)

    @app.post("/api/images/{row}/explain", openapi_extra={"requestBody": {"required": True, "content": _BODY}})
    async def explain(request: Request, row: Annotated[int, Path(ge=0)]) -> Reason:
        refuse_when_full(searches)
        async with searches:
            return await run_sync(gallery.explain, await read_search(request, limits), row, limiter=searching)

    return shield(app, hosts, token)


@asynccontextmanager
async def _quiet(app: FastAPI) -> AsyncIterator[None]:
    with quiet_decoding():  # around the threads that decode
        yield


def refuse_when_full(requests: CapacityLimiter) -> None:
    if not requests.available_tokens:
        refusal = "too many searches are waiting; try again in a moment"
        raise HTTPException(503, refusal, headers={"retry-after": "1"})


def shield(app: ASGIApp, hosts: Sequence[str] | None, token: str | None = None) -> ASGIApp:
    """Return an application behind security headers that answers only requests with the token and one of its hosts.

    A site elsewhere can give its own name the address of this machine, and have a browser here send requests: they then
    name that site as their host. One that posts a form to this server is known by `Sec-Fetch-Site`.
    """

    async def shielded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await app(scope, receive, send)

        headers, answer = Headers(scope=scope), app
        has_body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        host = None
        with suppress(ValueError):  # brackets that do not fit
            host = urlsplit(f"//{headers.get('host', '')}").hostname
        kind, _, credentials = headers.get("authorization", "").partition(" ")
        password = credentials.strip().encode("latin-1")
        if kind.lower() == "basic":  # what browsers ask for by themselves, and send with pictures too
            with suppress(binascii.Error):
                password = base64.b64decode(password).partition(b":")[2]

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                response = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    response.setdefault(name, value)
                # Only of a search that succeeds is the body surely read; else the server would read on, maybe for ever.
                if has_body and (scope["method"] != "POST" or message["status"] != 200):
                    response["connection"] = "close"
            await send(message)

        if hosts is not None and host not in hosts:
            error = "the request names another host; open the address that aurank serve printed"
            answer = JSONResponse({"error": error}, 403)
        elif scope["method"] not in ("GET", "HEAD") and headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            answer = JSONResponse({"error": "the request comes from another site"}, 403)
        elif token is not None and not (
            kind.lower() in ("basic", "bearer") and hmac.compare_digest(password, token.encode())
        ):
            error = "send the token of aurank serve: Authorization: Bearer TOKEN, or as the password of any name"
            answer = JSONResponse({"error": error}, 401, {"www-authenticate": 'Basic realm="aurank", charset="UTF-8"'})
        await answer(scope, receive, send_with_headers)

    return shielded


async def _answer_error(request: Request, error: Any) -> Response:
    headers = None
    if isinstance(error, HTTPException):
        texts = {"Not Found": "there is nothing at this address; /openapi.json lists what there is"}
        texts["Method Not Allowed"] = f"this address does not take {request.method}"
        status, text, headers = error.status_code, texts.get(error.detail, error.detail), error.headers
    elif isinstance(error, (RequestValidationError, ValidationError)):
        first = error.errors()[0]
        names = [str(name) for name in first["loc"]]
        source = names.pop(0) if isinstance(error, RequestValidationError) else "body"
        status, text = 422, ": ".join([*names, first["msg"]])
        if first["type"] == "json_invalid":
            status, text = 400, f"the body cannot be read: {first['msg']}"
        elif source == "path":
            status, text = 404, f"{str(first['input'])[:40]!r} is not the row of an image"
    else:  # its text may name files
        status, text = 500, "the server failed; its terminal says why"
    return JSONResponse({"error": text}, status, headers)

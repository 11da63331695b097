"""The application: a page, and a read-only API below /api, behind security headers and bounded threads."""

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from threading import BoundedSemaphore
from typing import TypeVar
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aurank.commands import ImageIndex
from aurank.data.decode import quiet_decoding
from aurank.reporting.page import render
from aurank.serving.gallery import Gallery
from aurank.serving.uploads import DEEPEST, FORMATS, Limits, Window, parsed, read_search

Value = TypeVar("Value")
_HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}


def make_app(
    index: ImageIndex,
    *,
    limits: Limits | None = None,
    hosts: Sequence[str] | None = None,
    token: str | None = None,
    mark: str | None = None,
) -> ASGIApp:
    """Return the ASGI application that serves an index, for any ASGI server.

    Args:
        index: what is searched; nothing of it is changed.
        limits: of requests.
        hosts: the names that requests may call this server by, in lower case; None takes any.
        token: what every request has to bring, as a bearer token or as a password; None asks for none.
        mark: of this start of the server, alike in all its workers; default: of this application.
    """
    limits = limits or Limits()
    gallery, mark = Gallery(index, limits.pixels), mark or secrets.token_hex(8)
    in_search = _workers("search", threads=limits.threads, waiting=limits.waiting)
    # Apart, so that a page of pictures keeps no search waiting.
    in_pictures = _workers("picture", threads=limits.threads, waiting=8 * limits.waiting)
    page = render("serve.html", title="Search by photo")
    openapi = json.loads(Path(__file__).with_name("openapi.json").read_text("utf-8"))
    openapi["info"]["version"] = version("aurank")
    about = {
        "images": len(gallery.names),
        "classes": len(gallery.classes),
        **gallery.about,
        "version": version("aurank"),
        "most_neighbours": DEEPEST,
        "max_upload_bytes": limits.upload_bytes,
        "max_pixels": limits.pixels,
        "formats": FORMATS,
    }

    async def images(request: Request) -> Response:
        return JSONResponse(gallery.images(parsed(Window, dict(request.query_params))))

    async def picture(request: Request) -> Response:
        text = request.path_params["row"]
        if not re.fullmatch("[0-9]{1,18}", text):
            raise HTTPException(404, f"{text[:40]!r} is not the number of an image")
        gallery.require(int(text))
        # A browser asks again, as another index may be served tomorrow, and is told in a few bytes that it has it.
        headers = {"etag": f'"{mark}-{text}"', "cache-control": "private, no-cache"}
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        kind, content = await in_pictures(partial(gallery.picture, int(text)))
        return Response(content, media_type=kind, headers=headers)

    async def search(request: Request) -> Response:
        asked = await read_search(request, limits)
        if isinstance(asked, tuple):
            return JSONResponse(await in_search(partial(gallery.near_photo, asked[1], asked[0])))
        return JSONResponse(await in_search(partial(gallery.near_row, asked.row, asked)))

    answers = {
        "/": HTMLResponse(page, headers={"content-security-policy": page_policy(page)}),
        "/openapi.json": JSONResponse(openapi),
        "/api/info": JSONResponse(about),
        "/api/classes": JSONResponse({"classes": gallery.classes}),
    }
    routes = [
        *(Route(path, answer, methods=["GET"]) for path, answer in answers.items()),
        Route("/api/images", images),
        Route("/api/images/{row}/thumbnail", picture),
        Route("/api/search", search, methods=["POST"]),
    ]
    handlers = {HTTPException: _refused, Exception: _failed}
    return shield(Starlette(routes=routes, exception_handlers=handlers, lifespan=_quiet), hosts, token)


@asynccontextmanager
async def _quiet(app: Starlette) -> AsyncIterator[None]:
    with quiet_decoding():  # around the threads that decode
        yield


def _workers(name: str, *, threads: int, waiting: int) -> Callable[[Callable[[], Value]], Awaitable[Value]]:
    """Return what calls a function in one of so many threads, and refuses with 503 where `waiting` wait already."""
    pool, places = ThreadPoolExecutor(threads, thread_name_prefix=name), BoundedSemaphore(threads + waiting)

    async def run(call: Callable[[], Value]) -> Value:
        if not places.acquire(blocking=False):
            said = "too many searches are waiting; try again in a moment"
            raise HTTPException(503, said, headers={"retry-after": "1"})
        future = pool.submit(call)
        future.add_done_callback(lambda _: places.release())
        return await asyncio.wrap_future(future)

    return run


def page_policy(page: str) -> str:
    def digests(tag: str) -> str:
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", page, flags=re.DOTALL)
        texts = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in found]
        return " ".join(f"'sha256-{text}'" for text in texts) or "'none'"

    own = (
        f"script-src {digests('script')}; style-src {digests('style')}; img-src 'self' blob: data:; connect-src 'self'"
    )
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def shield(app: ASGIApp, hosts: Sequence[str] | None, token: str | None = None) -> ASGIApp:
    """Return an application behind security headers that answers only requests with the token and one of its hosts.

    A site elsewhere can give its own name the address of this machine, and have a browser here send requests: they then
    name that site as their host. One that posts a form to this server is known by `Sec-Fetch-Site`. An answer given
    before the request's body has ended closes the connection, else uvicorn would read that body on, without end.
    """

    async def shielded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await app(scope, receive, send)

        headers, answer = Headers(scope=scope), app
        is_unread = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"

        async def receive_noted() -> Message:
            nonlocal is_unread
            message = await receive()
            is_unread = message.get("more_body", False)
            return message

        async def send_shielded(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent = MutableHeaders(scope=message)
                for name, value in {**_HEADERS, **({"connection": "close"} if is_unread else {})}.items():
                    sent.setdefault(name, value)
            await send(message)

        if hosts is not None and _host_name(headers.get("host", "")) not in hosts:
            said = "the request names another host; open the address that aurank serve printed"
            answer = JSONResponse({"error": said}, 403)
        elif scope["method"] not in ("GET", "HEAD") and headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            answer = JSONResponse({"error": "the request comes from another site"}, 403)
        elif token is not None and not _has_token(headers.get("authorization", ""), token):
            said = "send the token of aurank serve: Authorization: Bearer TOKEN, or as the password of any name"
            answer = JSONResponse({"error": said}, 401, {"www-authenticate": 'Basic realm="aurank", charset="UTF-8"'})
        await answer(scope, receive_noted, send_shielded)

    return shielded


def _has_token(authorization: str, token: str) -> bool:
    kind, _, given = authorization.partition(" ")
    said = given.strip().encode("latin-1")
    if kind.lower() == "basic":  # what browsers ask for by themselves, and send with pictures too
        with suppress(binascii.Error):
            said = base64.b64decode(said).partition(b":")[2]
    return kind.lower() in ("basic", "bearer") and hmac.compare_digest(said, token.encode())


def _host_name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:  # brackets that do not fit
        return None


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = {"Not Found": "there is nothing at this address; /openapi.json lists what there is"}
    said["Method Not Allowed"] = f"this address does not take {request.method}"
    return JSONResponse({"error": said.get(error.detail, error.detail)}, error.status_code, error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    """Answer for a mistake of this program, whose text may name files; the server's terminal has it."""
    return JSONResponse({"error": "the server failed; its terminal says why"}, 500)

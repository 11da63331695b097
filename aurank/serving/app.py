"""The application: a page, and a read-only API below /api, behind security headers and bounded threads."""

import asyncio
import base64
import hashlib
import re
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from threading import BoundedSemaphore
from typing import TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aurank.commands import ImageIndex
from aurank.reporting.page import render
from aurank.serving.gallery import Gallery
from aurank.serving.openapi import openapi
from aurank.serving.schema import DEEPEST, ClassesAnswer, InfoAnswer, Window
from aurank.serving.uploads import FORMATS, Limits, Refused, parsed, read_search

Value = TypeVar("Value")


class Workers:
    """A bounded pool of threads with a bounded queue.

    Args:
        name: of its threads.
        threads: calls at once.
        waiting: calls that may wait besides; the next is refused with 503.
    """

    def __init__(self, name: str, *, threads: int, waiting: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._places = BoundedSemaphore(threads + waiting)

    async def run(self, call: Callable[[], Value]) -> Value:
        """Return what the call returns, or raise what it raises."""
        if not self._places.acquire(blocking=False):
            raise Refused(503, "too many searches are waiting; try again in a moment")
        future = self._pool.submit(call)
        future.add_done_callback(lambda _: self._places.release())
        return await asyncio.wrap_future(future)


def page_policy(page: str) -> str:
    """Return the Content-Security-Policy of a page: its own style and script by digests, nothing from elsewhere."""

    def digests(tag: str) -> str:
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", page, flags=re.DOTALL)
        texts = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in found]
        return " ".join(f"'sha256-{text}'" for text in texts) or "'none'"

    own = (
        f"script-src {digests('script')}; style-src {digests('style')}; img-src 'self' blob: data:; connect-src 'self'"
    )
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


class Shield:
    """An application behind security headers; it answers only requests that name one of its hosts.

    A site elsewhere can give its own name the address of this machine, and have a browser here send requests: they then
    name that site as their host. One that posts a form to this server is known by `Sec-Fetch-Site`.

    Args:
        hosts: names of this server, in lower case; None takes any.
    """

    def __init__(self, app: ASGIApp, *, hosts: Sequence[str] | None) -> None:
        self.app, self.hosts = app, None if hosts is None else frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def send_shielded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope)
        answer = self.app if refusal is None else JSONResponse({"error": refusal[1]}, refusal[0])
        await answer(scope, receive, send_shielded)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        if self.hosts is not None and _host_name(headers.get("host", "")) not in self.hosts:
            return 403, "the request names another host; open the address that aurank serve printed"
        if scope["method"] not in ("GET", "HEAD") and headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            return 403, "the request comes from another site"
        return None


def _host_name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:  # brackets that do not fit
        return None


_HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}


_LONGEST_NUMBER = 18  # digits; Python refuses to read numbers of more than 4,300


def make_app(index: ImageIndex, *, limits: Limits | None = None, hosts: Sequence[str] | None = None) -> ASGIApp:
    """Return the ASGI application that serves an index, for any ASGI server.

    Args:
        index: what is searched; nothing of it is changed.
        limits: of requests.
        hosts: the names that requests may call this server by; None takes any.
    """
    limits = limits or Limits()
    gallery = Gallery(index, limits)
    site = _Site(gallery, limits, secrets.token_hex(8))
    page = render("serve.html", title="Search by photo")
    described = openapi(version("aurank"))

    async def show_page(request: Request) -> Response:
        return HTMLResponse(page, headers={"content-security-policy": page_policy(page)})

    async def describe(request: Request) -> Response:
        return JSONResponse(described)

    routes = [
        Route("/", show_page),
        Route("/openapi.json", describe),
        Route("/api/info", site.info),
        Route("/api/classes", site.classes),
        Route("/api/images", site.images),
        Route("/api/images/{row}/thumbnail", site.thumbnail),
        Route("/api/search", site.search, methods=["POST"]),
    ]
    handlers = {Refused: _refused, HTTPException: _refused_by_starlette, Exception: _failed}
    return Shield(Starlette(routes=routes, exception_handlers=handlers), hosts=hosts)


class _Site:
    """The answers below /api, each a method that reads the request and asks the gallery in a thread."""

    def __init__(self, gallery: Gallery, limits: Limits, token: str) -> None:
        self.gallery, self.limits, self.token = gallery, limits, token
        self.searches = Workers("search", threads=limits.threads, waiting=limits.waiting)
        # Apart, so that a page of pictures keeps no search waiting.
        self.pictures = Workers("picture", threads=limits.threads, waiting=8 * limits.waiting)

    async def info(self, request: Request) -> Response:
        limits = self.limits
        counts = {"images": len(self.gallery), "classes": len(self.gallery.classes)}
        about: dict[str, str | int] = {
            "score": self.gallery.score,
            "model": self.gallery.model,
            "index": self.gallery.about,
            "version": version("aurank"),
        }
        about["most_neighbours"] = DEEPEST
        most = {"max_upload_bytes": limits.upload_bytes, "max_pixels": limits.pixels, "formats": FORMATS}
        return _answer(InfoAnswer.model_validate(counts | about | most))

    async def classes(self, request: Request) -> Response:
        return _answer(ClassesAnswer(classes=self.gallery.classes))

    async def images(self, request: Request) -> Response:
        return _answer(self.gallery.images(parsed(Window, dict(request.query_params))))

    async def thumbnail(self, request: Request) -> Response:
        text = request.path_params["row"]
        if not (text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER):
            raise Refused(404, f"{text[:40]!r} is not the number of an image")
        row, tag = int(text), f'"{self.token}-{text}"'
        self.gallery.require(row)
        # A browser asks again, as another index may be served tomorrow, and is told in a few bytes that it has it.
        headers = {"etag": tag, "cache-control": "private, no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        kind, content = await self.pictures.run(lambda: self.gallery.picture(row))
        return Response(content, media_type=kind, headers=headers)

    async def search(self, request: Request) -> Response:
        asked = await read_search(request, self.limits)
        if isinstance(asked, tuple):
            window, content = asked
            return _answer(await self.searches.run(lambda: self.gallery.near_photo(content, window)))
        return _answer(await self.searches.run(lambda: self.gallery.near_row(asked.row, asked)))


def _answer(content: BaseModel) -> Response:
    return Response(content.model_dump_json(by_alias=True), media_type="application/json")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    headers = {"retry-after": "1"} if error.status == 503 else None
    return JSONResponse({"error": str(error)}, error.status, headers)


async def _refused_by_starlette(request: Request, error: Exception) -> Response:
    """Answer for an unknown path, another method, or a form that cannot be taken apart."""
    assert isinstance(error, HTTPException)
    said = {404: "there is nothing at this address; /openapi.json lists what there is"}
    said[405] = f"this address does not take {request.method}"
    return JSONResponse({"error": said.get(error.status_code, error.detail)}, error.status_code, error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    """Answer for a mistake of this program, whose text may name files; the server's terminal has it."""
    return JSONResponse({"error": "the server failed; its terminal says why"}, 500)

"""The application: a page, and a read-only API below /api. Each function here reads, asks the gallery, and answers."""

import secrets
from collections.abc import Sequence
from importlib.metadata import version

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from aurank.commands import ImageIndex
from aurank.reporting.page import render
from aurank.serving.gallery import Gallery
from aurank.serving.openapi import openapi
from aurank.serving.schema import DEEPEST, ClassesAnswer, InfoAnswer, Window
from aurank.serving.shield import Shield, page_policy
from aurank.serving.uploads import FORMATS, Limits, Refused, parsed, read_search
from aurank.serving.workers import Workers

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

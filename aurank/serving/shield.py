"""What every answer carries, and which requests are refused unread: those that another site made a browser send."""

import base64
import hashlib
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send


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

"""The server of a page and an API: what ``aurank serve`` calls."""

import errno
import ipaddress
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from aurank.data.decode import quiet_decoding
from aurank.errors import UserError

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

    from aurank.serving.uploads import Limits

_PACKAGES = {"starlette": "starlette", "uvicorn": "uvicorn", "python_multipart": "python-multipart"}
_CONNECTIONS = 256  # open at once; the next is told to come again


@dataclass(frozen=True)
class Served:
    """What is served, and where: said once, when the first request can come.

    Attributes:
        is_local: whether only this machine reaches it.

    Example:
        >>> Served("http://127.0.0.1:8000/", images=30, is_local=True).address
        'http://127.0.0.1:8000/'
    """

    address: str
    images: int
    is_local: bool


def serve(
    folder: Path,
    *,
    roots: Sequence[Path] = (),
    host: str = "127.0.0.1",
    port: int = 8000,
    device: str | None = None,
    allow_code: bool = False,
    limits: "Limits | None" = None,
    started: Callable[[Served], None] | None = None,
) -> None:
    """Serve a page and a read-only API that search an index of images, until the process is interrupted.

    Args:
        folder: an index, as `build_index` makes it.
        roots: as for `ImageIndex.open`.
        host: an address or name of this machine; 0.0.0.0 is every address it has.
        port: 0 takes a free one.
        device: where the model runs and faiss searches; default: the CPU.
        allow_code: whether a ``python:`` model may run.
        limits: of requests.
        started: told when the first request can come.

    Raises:
        UserError: a missing library, an address that cannot be had, or an index or a model that cannot be read.

    Example:
        >>> try:
        ...     serve(Path("no such folder"), port=0)
        ... except UserError as error:
        ...     print(str(error)[:26])
        no index at no such folder
    """
    require_server()
    listening = listen(host, port)  # before the model is loaded
    with listening:
        from aurank.commands import ImageIndex
        from aurank.serving.app import make_app
        from aurank.serving.uploads import Limits

        index = ImageIndex.open(folder, roots=roots, device=device or "cpu", allow_code=allow_code)
        index.load_model()
        # Of a GPU one thread at a time asks faiss.
        limits = limits or Limits(threads=2 if device in (None, "cpu") else 1)
        is_local = _is_local(listening)
        app = make_app(index, limits=limits, hosts=_names(host) if is_local else None)
        server = make_server(app)
        shown = f"[{host}]" if ":" in host else host
        if started is not None:
            started(Served(f"http://{shown}:{listening.getsockname()[1]}/", len(index), is_local))
        with quiet_decoding():  # around the threads that decode
            server.run(sockets=[listening])


def make_server(app: "ASGIApp") -> "uvicorn.Server":
    """Return the server of an application, which bounds connections and how long they may say nothing."""
    import uvicorn

    from aurank.serving.connections import PromptProtocol

    config = uvicorn.Config(
        app,
        http=PromptProtocol,
        lifespan="off",
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=5,
    )
    return uvicorn.Server(config)


def require_server() -> None:
    """Raise UserError unless the libraries of the server are there."""
    missing = [name for module, name in _PACKAGES.items() if find_spec(module) is None]
    if missing:
        raise UserError(f"aurank serve needs {', '.join(missing)}: pip install 'aurank[serve]'")


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on this machine; UserError where it cannot, with the reason and the remedy."""
    if not 0 <= port <= 65535:
        raise UserError(f"--port {port} must be 0 (any free one) to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise UserError(f"--host {host}: no address of this machine; use 127.0.0.1, or 0.0.0.0 for all") from None
    made = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # elsewhere it lets two programs listen on one port
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(_CONNECTIONS)
    except OSError as error:
        made.close()
        raise UserError(_why_not(host, port, error)) from None
    made.setblocking(False)
    return made


def _why_not(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use; name another with --port, or --port 0 for any free one"
    if error.errno == errno.EACCES:
        return f"port {port} of {host} is for administrators; name one from 1024 with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host} is no address of this machine; use 127.0.0.1, or 0.0.0.0 for all"
    return f"cannot listen on port {port} of {host}: {error.strerror}"


def _is_local(listening: socket.socket) -> bool:
    return ipaddress.ip_address(listening.getsockname()[0].partition("%")[0]).is_loopback


def _names(host: str) -> list[str]:
    """Return what a browser of this machine calls the server."""
    return ["localhost", "127.0.0.1", "::1", host.lower()]

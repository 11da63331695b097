"""The server of a page and an API: what ``aurank serve`` calls."""

import errno
import gc
import hashlib
import ipaddress
import json
import multiprocessing
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import PositiveInt

from aurank.allocator import keep_memory
from aurank.errors import AurankError, UserError
from aurank.extras import require_libraries

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

    from aurank.serving.uploads import Limits

_CONNECTIONS = 256  # open at once in a worker; the next is told to come again
_GRACE = 5  # seconds for requests that are being answered when the server ends


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
    folder: str | Path,
    *,
    model: str | None = None,
    roots: Sequence[Path] = (),
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: PositiveInt = 1,
    token: str | None = None,
    no_token: bool = False,
    device: str | None = None,
    allow_code: bool = False,
    limits: "Limits | None" = None,
    started: Callable[[Served], None] | None = None,
) -> None:
    """Serve a page and a read-only API that search an index of images, until the process is interrupted.

    Args:
        folder, model, roots: as for `ImageIndex.open`.
        host: an address or name of this machine; 0.0.0.0 is all of them.
        port: port of the page's address; 0 takes a free one.
        workers: processes; each has the model, and all share the index.
        token: what browsers ask for as a password, and programs send as a bearer token.
        no_token: let in whoever reaches `host`.
        device: where the model runs, such as cuda; default: cpu.
        allow_code: trust the model of the index: let its code run.
        limits: of requests.
        started: told when the first request can come.

    Raises:
        UserError: a missing library, an address that cannot be had or wants a token, or an index or a model that cannot
            be read.

    Example:
        >>> try:
        ...     serve(Path("no such folder"), port=0)
        ... except UserError as error:
        ...     print(str(error)[:26])
        no index at no such folder
    """
    require_libraries("aurank serve", "starlette", "uvicorn", "python_multipart")
    with listen(host, port) as listening:  # before the model is loaded
        from aurank.embedding.collection import is_collection
        from aurank.serving.uploads import Limits

        address, bound = listening.getsockname()[:2]
        is_local = ipaddress.ip_address(address.partition("%")[0]).is_loopback
        if token == "" or not (is_local or token or no_token):
            said = f"other machines reach --host {host}" if token is None else "the token is empty"
            raise UserError(f"{said}: name one with --token TOKEN or $AURANK_TOKEN, or let everybody in by --no-token")
        # Of a GPU one thread at a time asks faiss.
        limits = limits or Limits(threads=2 if device in (None, "cpu") else 1)
        if workers > 1 and is_collection(folder) and "://" not in str(folder):
            raise UserError(f"--workers {workers}: milvus-lite lets one process into {folder}; leave it out")
        names = ["localhost", "127.0.0.1", "::1", host.lower()]  # what a browser of this machine calls it
        settings: dict[str, Any] = {"folder": str(folder), "model": model, "roots": [*map(str, roots)]}
        settings |= {"device": device, "allow_code": allow_code}
        settings |= {"limits": asdict(limits), "hosts": names if is_local else None}
        settings |= {"token": token, "workers": workers, "mark": secrets.token_hex(8)}
        app, images = _app_of(settings)  # with several workers too: what cannot be read is told here
        if started is not None:
            shown = f"[{host}]" if ":" in host else host
            started(Served(f"http://{shown}:{bound}/", images, is_local))
        if workers == 1:
            make_server(app).run(sockets=[listening])
            return
        del app
        gc.collect()  # the index and the model are in the workers
        _supervise(listening, settings)


def _supervise(listening: socket.socket, settings: dict[str, Any]) -> None:
    """Keep the workers running until SIGINT or SIGTERM: one that a signal has ended is replaced."""

    def started() -> SpawnProcess:
        process = context.Process(target=serve_worker, args=(listening, settings, refusals))
        process.start()
        return process

    context = multiprocessing.get_context("spawn")
    refusals = context.SimpleQueue()
    asked = threading.Event()
    handlers = {number: signal.signal(number, lambda *_: asked.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    workers: list[SpawnProcess] = []
    try:
        while not asked.is_set():
            workers += [started() for _ in range(settings["workers"] - len(workers))]
            wait([process.sentinel for process in workers], timeout=0.5)
            ended = [process for process in workers if process.exitcode is not None]
            workers = [process for process in workers if process not in ended]
            if ended and not asked.is_set():
                if not refusals.empty():
                    raise UserError(refusals.get())
                if (code := max(process.exitcode or 0 for process in ended)) > 0:  # it would fail again
                    raise AurankError(f"a worker has ended with code {code}; look at what it says above")
    finally:
        for process in workers:
            process.terminate()
        deadline = time.monotonic() + 2 * _GRACE
        for process in workers:
            process.join(max(0.0, deadline - time.monotonic()))
            process.kill()  # one that hangs, or was stopped
        for number, handler in handlers.items():
            signal.signal(number, handler)


def serve_worker(listening: socket.socket, settings: dict[str, Any], refusals: "SimpleQueue[str]") -> None:
    """Serve in one of several processes; put why it cannot into `refusals`."""
    import torch

    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    keep_memory()  # which the command did in its own process
    torch.set_num_threads(max(1, torch.get_num_threads() // settings["workers"]))
    try:
        make_server(_app_of(settings)[0]).run(sockets=[listening])
    except UserError as error:
        refusals.put(str(error))
    except KeyboardInterrupt:  # which the parent handles
        pass


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _app_of(settings: dict[str, Any]) -> "tuple[ASGIApp, int]":
    from aurank.commands import ImageIndex
    from aurank.serving.app import make_app
    from aurank.serving.uploads import Limits

    how = {name: settings[name] for name in ("model", "allow_code")}
    roots, device = [*map(Path, settings["roots"])], settings["device"] or "cpu"
    index = ImageIndex.open(settings["folder"], roots=roots, device=device, memory_map=True, **how)
    about = hashlib.sha256(json.dumps(index.about, sort_keys=True).encode()).hexdigest()
    if settings.setdefault("about", about) != about:  # a worker started later would number other images
        raise UserError(f"{settings['folder']} has changed: start aurank serve again")
    index.load_model()
    how = {name: settings[name] for name in ("hosts", "token", "mark")}
    return make_app(index, limits=Limits(**settings["limits"]), **how), len(index)


def make_server(app: "ASGIApp") -> "uvicorn.Server":
    import uvicorn

    return uvicorn.Server(uvicorn.Config(app, **_how()))


def _how() -> dict[str, Any]:
    from aurank.serving.connections import PromptProtocol

    return {
        "http": PromptProtocol,
        "ws": "none",
        "log_level": "warning",
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "limit_concurrency": _CONNECTIONS,
        "timeout_graceful_shutdown": _GRACE,
    }


def listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise UserError(f"--port {port} must be 0 (any free one) to 65535")
    elsewhere = f"--host {host} is no address of this machine; use 127.0.0.1, or 0.0.0.0 for all"
    reasons = {
        errno.EADDRINUSE: f"port {port} of {host} is in use; name another with --port, or --port 0 for any free one",
        errno.EACCES: f"port {port} of {host} is for administrators; name one from 1024 with --port",
        errno.EADDRNOTAVAIL: elsewhere,
    }
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        place: Any = address
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(place, family=family, backlog=_CONNECTIONS, dualstack_ipv6=both)
    except (socket.gaierror, UnicodeError):
        reason = elsewhere
    except OSError as error:
        reason = reasons.get(error.errno or 0, f"cannot listen on port {port} of {host}: {error.strerror}")
    raise UserError(reason)

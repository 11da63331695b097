"""The server of a page and an API: what ``aurank serve`` calls."""

import asyncio
import gc
import ipaddress
import multiprocessing
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import PositiveInt

from aurank.errors import AurankError, UserError
from aurank.lazy import require_libraries
from aurank.sizes import keep_memory

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from aurank.serving.uploads import Limits

Load: TypeAlias = "Callable[[], tuple[ASGIApp, int]]"  # an application, and how many images it serves
_PATIENCE = 10  # seconds in which the head of a request must arrive, after which its connection is closed
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
        AurankError: a worker has ended by itself.

    Example:
        >>> try:
        ...     serve(Path("no such folder"), port=0)
        ... except UserError as error:
        ...     print(str(error)[:26])
        no index at no such folder
    """
    require_libraries("aurank serve", "fastapi", "hypercorn", "python_multipart")
    with listen(host, port) as listening:  # before the model is loaded
        from aurank.embedding.collection import is_collection
        from aurank.serving.uploads import Limits

        address, bound = listening.getsockname()[:2]
        is_local = ipaddress.ip_address(address.partition("%")[0]).is_loopback
        if token == "" or not (is_local or token or no_token):
            reason = f"other machines reach --host {host}" if token is None else "the token is empty"
            raise UserError(
                f"{reason}: name one with --token TOKEN or $AURANK_TOKEN, or let everybody in by --no-token"
            )
        if workers > 1 and is_collection(folder) and "://" not in str(folder):
            raise UserError(f"--workers {workers}: milvus-lite lets one process into {folder}; leave it out")
        # Of a GPU one thread at a time asks faiss.
        limits = limits or Limits(threads=2 if device in (None, "cpu") else 1)
        # What a browser of this machine calls it.
        hosts = ["localhost", "127.0.0.1", "::1", host.lower()] if is_local else None
        settings = {"model": model, "roots": list(roots), "device": device or "cpu", "allow_code": allow_code}
        load = partial(_load_app, folder, settings, {"limits": limits, "hosts": hosts, "token": token})
        app, images = load()  # with several workers too: it tells what cannot be read
        if started is not None:
            shown = f"[{host}]" if ":" in host else host
            started(Served(f"http://{shown}:{bound}/", images, is_local))
        if workers == 1:
            run_app(app, listening)
            return
        del app
        gc.collect()  # the index and the model are in the workers
        _serve_in_processes(workers, listening, load)


def _serve_in_processes(count: int, listening: socket.socket, load: Load) -> None:
    """Serve until SIGINT or SIGTERM; a worker that ends by itself ends the others."""
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_serve_beside, args=(count, listening, load), daemon=True) for _ in range(count)]
    handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for worker in workers:
            worker.start()
        wait([worker.sentinel for worker in workers])
        raise AurankError("a worker has ended; look at what it says above, and start aurank serve again")
    except KeyboardInterrupt:
        pass
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join(2 * _GRACE)
            worker.kill()  # one that hangs
        signal.signal(signal.SIGTERM, handler)


def _serve_beside(count: int, listening: socket.socket, load: Load) -> None:
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    keep_memory()  # which the command did in its own process
    torch.set_num_threads(max(1, torch.get_num_threads() // count))
    run_app(load()[0], listening)


def _load_app(folder: Path | str, settings: dict[str, Any], options: dict[str, Any]) -> "tuple[ASGIApp, int]":
    from aurank.commands import ImageIndex
    from aurank.serving.app import make_app

    index = ImageIndex.open(folder, memory_map=True, **settings)
    index.load_model()
    return make_app(index, **options), len(index)


def run_app(app: "ASGIApp", listening: socket.socket, ended: "Callable[[], Awaitable[Any]] | None" = None) -> None:
    """Serve an application on a socket, which is taken over, until a signal, or until what `ended` returns is done."""
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    config = Config()
    config.bind = [f"fd://{listening.detach()}"]
    config.keep_alive_timeout = _PATIENCE
    config.graceful_timeout = _GRACE
    config.include_server_header = False
    config.loglevel = "WARNING"
    application: Any = app  # starlette and hypercorn have types of their own for ASGI
    asyncio.run(serve(application, config, shutdown_trigger=ended))


def listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise UserError(f"--port {port} must be 0 (any free one) to 65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        has_both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        listening = socket.create_server(address, family=family, backlog=256, dualstack_ipv6=has_both)
    except UnicodeError:
        reason = "no such host"
    except OSError as error:
        reason = error.strerror or str(error)
    else:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections take it over
        return listening
    raise UserError(
        f"cannot listen on port {port} of {host}: {reason}; name another --port (0: any free one) or --host"
    )

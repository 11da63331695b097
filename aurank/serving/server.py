"""The server of a page and an API: what ``aurank serve`` calls."""

import gc
import ipaddress
import logging
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import PositiveInt

from aurank.errors import AurankError, UserError
from aurank.lazy import require_libraries
from aurank.sizes import keep_memory

if TYPE_CHECKING:
    from starlette.types import ASGIApp
    from uvicorn import Server

    from aurank.commands import ImageIndex
    from aurank.serving.uploads import Limits


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
    started: Callable[[str, int, bool], None] | None = None,
) -> None:
    """Serve a page and a read-only API that search an index of images, until the process is interrupted.

    Args:
        folder, model, roots: as for `ImageIndex.open`.
        host: an address or name of this machine; 0.0.0.0 is all of them.
        port: port of the page's address; 0 takes a free one.
        workers: processes; each has the model, and all share the index. One that ends by itself is replaced.
        token: what browsers ask for as a password, and programs send as a bearer token.
        no_token: let in whoever reaches `host`.
        device: where the model runs, such as cuda; default: cpu.
        allow_code: trust the model of the index: let its code run.
        limits: of requests.
        started: called with the address, how many images it has, and whether this machine alone reaches it, when the
            first request can come.

    Raises:
        UserError: a missing library, an address that cannot be had or wants a token, or an index or a model that cannot
            be read.
        AurankError: a worker cannot be replaced, as the index has changed or cannot be read any more.

    Example:
        >>> try:
        ...     serve(Path("no such folder"), port=0)
        ... except UserError as error:
        ...     print(str(error)[:26])
        no index at no such folder
    """
    require_libraries("aurank serve", "fastapi", "uvicorn", "python_multipart")
    with listen(host, port) as listening:  # before the model is loaded
        from uvicorn.config import STARTUP_FAILURE
        from uvicorn.supervisors import Multiprocess

        from aurank.embedding.collection import is_collection
        from aurank.serving.app import make_app
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
        opening = {"model": model, "roots": list(roots), "device": device or "cpu", "allow_code": allow_code}
        serving: dict[str, Any] = {"limits": limits, "hosts": hosts, "token": token}
        index = _load_index(folder, opening)  # with several workers too: it tells what cannot be read
        if started is not None:
            shown = f"[{host}]" if ":" in host else host
            started(f"http://{shown}:{bound}/", len(index), is_local)
        if workers == 1:
            with suppress(KeyboardInterrupt):  # the usual end
                server_of(make_app(index, **serving)).run([listening])
            return
        about = index.about
        del index
        gc.collect()  # the index and the model are in the workers
        make = partial(_make_in_worker, workers, about, folder, opening, serving)
        worker = server_of(make, factory=True, workers=workers)
        log = logging.getLogger("uvicorn.error")
        log.setLevel(logging.INFO)  # here, not in the workers
        log.addFilter(lambda record: record.levelno > logging.INFO or "died" in record.msg)
        supervisor = Multiprocess(worker.config, [listening])
        supervisor.run()
        if any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes):
            raise AurankError("a worker cannot start; look at what it says above, and start aurank serve again")


def server_of(app: Any, **options: Any) -> "Server":
    """Return a server of an ASGI application, or with `factory` of what makes one."""
    from uvicorn import Config, Server

    options |= {"timeout_keep_alive": 10, "timeout_graceful_shutdown": 5, "ws": "none", "server_header": False}
    options |= {"timeout_worker_healthcheck": 10}  # a worker that imports its libraries answers nothing for seconds
    return Server(Config(app, log_level="warning", access_log=False, **options))


def _make_in_worker(
    count: int, about: dict[str, Any], folder: str | Path, opening: dict[str, Any], serving: dict[str, Any]
) -> "ASGIApp":
    import torch
    from uvicorn.config import STARTUP_FAILURE

    from aurank.serving.app import make_app

    threading.Thread(target=_end_with_parent, daemon=True).start()
    keep_memory()  # which the command did in its own process
    torch.set_num_threads(max(1, torch.get_num_threads() // count))
    try:
        index = _load_index(folder, opening)
        if index.about != about:  # its rows would not be those that the other workers count
            raise UserError("the index has changed")
    except UserError as error:
        logging.getLogger("uvicorn.error").error("%s", error)
        os._exit(STARTUP_FAILURE)  # at once: the parent starts a worker anew that it finds ending
    return make_app(index, **serving)


def _end_with_parent() -> None:
    """End this worker when its parent was killed: it would keep the port."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _load_index(folder: str | Path, opening: dict[str, Any]) -> "ImageIndex":
    from aurank.commands import ImageIndex

    index = ImageIndex.open(folder, memory_map=True, **opening)
    index.load_model()
    return index


def listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:  # getaddrinfo would take its last 16 bits
        raise UserError(f"--port {port} must be 0 (any free one) to 65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        has_both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        listening = socket.create_server(address, family=family, backlog=256, dualstack_ipv6=has_both)
    except (OSError, UnicodeError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise UserError(
            f"cannot listen on port {port} of {host}: {reason}; name another --port (0: any free one) or --host"
        ) from None
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections take it over
    return listening

"""A server in a thread of the test, on a free port of this machine."""

import contextlib
import threading
import time
from collections.abc import Iterator

from aurank.commands import ImageIndex
from aurank.serving.app import make_app
from aurank.serving.server import listen, make_server
from aurank.serving.uploads import Limits


@contextlib.contextmanager
def running_server(index: ImageIndex, limits: Limits | None = None) -> Iterator[int]:
    """Serve an index while the context lasts; gives the port."""
    with listen("127.0.0.1", 0) as listening:
        app = make_app(index, limits=limits, hosts=["127.0.0.1"])
        server = make_server(app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield int(listening.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join()

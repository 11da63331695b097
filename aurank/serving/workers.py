"""Slow calls in a few threads, so that ten clients take turns and the machine is not asked for more than it has."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import BoundedSemaphore
from typing import TypeVar

from aurank.serving.uploads import Refused

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

"""Connections that ask for nothing are closed, so that they keep nobody else out."""

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class PromptProtocol(H11Protocol):
    """HTTP on a connection that is closed when a request has not begun and arrived up to its body in time.

    uvicorn itself waits without end for the rest of a first line. `patience`: seconds between two looks; at the second
    that finds nothing new the connection is closed.
    """

    patience = 10.0
    _last: Any = None  # the request that had been answered when it was last looked at

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # asyncio leaves that out where a socket names no protocol, and an answer waits 40 ms for an ACK.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.loop.call_later(self.patience, self._look)

    def _look(self) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            if self.cycle is self._last:
                self.transport.close()
                return
            self._last = self.cycle
        self.loop.call_later(self.patience, self._look)

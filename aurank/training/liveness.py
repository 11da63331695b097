"""Signs of life of the processes of a run: one that is gone is named by all others, which end within a minute.

A collective tells that another process is gone where its connection closes; not which one, and not where a machine lost
its power, where NCCL waits, or while a process works by itself. So every process keeps a connection to rank 0, over
which both beat once a second. Rank 0 sees whose connection closes or falls silent, and tells all others. A checkpoint
that is being written is written to its end first, however long that takes.
"""

import contextlib
import ctypes
import itertools
import json
import os
import secrets
import selectors
import socket
import threading
import time
from dataclasses import asdict
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch

from aurank.errors import AurankError, first_line
from aurank.launched import Peer, launched, wait_for, waiting_told
from aurank.sizes import seconds

_stores: Any = torch.distributed

BEAT = 1.0  # seconds from one sign of life to the next
SILENT = 40.0  # seconds without one after which a process is gone; a call that lets no thread run may take some of them
ENDING = 5.0  # seconds that a process gets to end by itself, before it is ended or counts as gone

REMEDY = "see what it says, then go on from the last checkpoint with --resume in every process"
# What gloo says of a connection, which it raises as a RuntimeError as torch does for anything else.
_CUT = (
    "pair closure",
    "Connection closed by peer",
    "Connection reset",
    "Broken pipe",
    "No route to host",
    "unreachable",
)


_joins = itertools.count()  # of this process; each has keys of its own
_open: set[socket.socket] = set()


def _close_open() -> None:
    """Close the connections in a forked worker: one that outlives its process would keep them up."""
    for connection in _open:
        connection.close()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_open)


class Lost(BaseException):
    """Raised in the thread that trains when another process is gone; `except Exception` must not catch it."""


uninterrupted = threading.Lock()
"""While the thread that trains holds it, the end of another process lets it go on: what it writes is written whole."""


class _Line:
    """A connection to another process, and what is known of it by that."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(ENDING)
        self.connection = connection
        self.rank: int | None = None  # until it has said which it is
        self.heard = time.monotonic()
        self.leaves: str | None = None  # "done" or "failed"
        self._begun = b""
        _open.add(connection)

    def send(self, **message: object) -> None:
        with contextlib.suppress(OSError):  # that it is closed is seen where it is read
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]] | None:
        """Return what has come, None where the other side has closed."""
        try:
            data = self.connection.recv(65536)
        except OSError:
            data = b""
        self.heard = time.monotonic()
        *lines, self._begun = (self._begun + data).split(b"\n")
        try:
            messages = [dict(json.loads(line)) for line in lines]
        except (ValueError, TypeError, RecursionError):  # nobody of this run
            return None
        return messages if data else None

    def close(self) -> None:
        _open.discard(self.connection)
        self.connection.close()


class Liveness:
    """While entered, the processes that were launched watch each other; entering waits until all of them have come.

    When one is gone the thread that trains is interrupted. Where it does not end within `ENDING` seconds, as in a
    collective that never returns, the process says the line itself and ends.

    Args:
        timeout: until all have come, as "30min".
        remedy: what to do when one is gone.
        key: what stands before the timeout in messages.

    Attributes:
        store: in which a process group may meet.
        verdict: who is gone, once that is known.
    """

    def __init__(self, timeout: str, remedy: str = REMEDY, *, key: str = "train.timeout=") -> None:
        self.timeout, self.remedy, self.within = timeout, remedy, f"{key}{timeout}"
        self.rank, self.size = int(os.environ.get("RANK", "0")), launched()
        self.own = Peer.own(self.rank)
        self.peers: dict[int, Peer] = {}
        self.verdict: str | None = None
        self._lines: list[_Line] = []
        self._met = threading.Event()
        self._done = threading.Event()  # the watching, since somebody is gone
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._trains: int | None = threading.get_ident()  # the thread to interrupt, None where it needs not be

    def __enter__(self) -> "Liveness":
        with waiting_told(self.timeout):
            return self._join()

    def _join(self) -> "Liveness":
        self.store = self._connect()
        self._selector = selectors.DefaultSelector()
        if self.rank == 0:
            self._token = secrets.token_hex()
            both = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if both else socket.AF_INET
            self._door = socket.create_server(("", 0), family=family, dualstack_ipv6=both, backlog=self.size)
            _open.add(self._door)
            self._selector.register(self._door, selectors.EVENT_READ)
            self.store.set("aurank", json.dumps([self._door.getsockname()[1], self._token]))
        else:
            port, token = self._door_of_first()
            try:
                line = _Line(socket.create_connection((_master()[0], port), timeout=ENDING))
            except OSError as error:
                raise AurankError(
                    f"rank {self.rank} on {self.own.host} cannot reach rank 0 at {_master()[0]}:{port}: {error}; let "
                    "the machines of a run reach each other's ports, and look at what rank 0 says"
                ) from error
            line.rank = 0
            self._add(line)
            line.send(token=token, here=asdict(self.own))
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        try:
            self._meet()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def _connect(self) -> Any:
        """The store of torch at MASTER_ADDR, which torchrun keeps, or rank 0."""
        keeps = self.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        host, port = _master()
        try:
            if not keeps:
                wait_for(host, port, seconds(self.timeout))  # torch would print a page where nobody comes
            store = _stores.TCPStore(
                host,
                port,
                is_master=keeps,
                timeout=timedelta(seconds=seconds(self.timeout)),
                wait_for_workers=False,
                multi_tenant=True,
            )
        except (RuntimeError, OSError) as error:
            what = "cannot keep the store" if keeps else "cannot reach rank 0, or torchrun,"
            raise AurankError(
                f"rank {self.rank} on {self.own.host} {what} at {host}:{port} ({self.within}): "
                f"{first_line(error)}; look at MASTER_ADDR and MASTER_PORT, and at what rank 0 says"
            ) from error
        return _stores.PrefixStore(f"aurank/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{next(_joins)}", store)

    def _door_of_first(self) -> tuple[int, str]:
        """Return the port that rank 0 listens at, and the word that it asks for."""
        try:
            port, token = json.loads(self.store.get("aurank"))
        except RuntimeError as error:
            text = first_line(error)
            what = f"did not come within {self.within}" if "timeout" in text else f"cannot be asked for: {text}"
            raise AurankError(
                f"rank {self.rank} on {self.own.host} has reached {':'.join(map(str, _master()))}, but rank 0 {what}; "
                "see what rank 0 says, or its launcher"
            ) from error
        return port, token

    def _meet(self) -> None:
        deadline = time.monotonic() + seconds(self.timeout) + (0 if self.rank == 0 else ENDING)  # rank 0 knows more
        while not self._met.wait(0.05):
            if time.monotonic() > deadline:
                missing = ", ".join(str(rank) for rank in range(1, self.size) if rank not in self.peers)
                which = f"rank {missing}" if self.rank == 0 else f"one of {self.size} processes"
                self.verdict = f"{which} did not come within {self.within}"
                raise AurankError(f"{self.verdict}; see what it says, and whether it reaches MASTER_ADDR")

    # -- the thread -------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        try:
            self._attend()
        except Exception as error:
            self.verdict = f"rank {self.rank} cannot watch the others any more: {type(error).__name__}: {error}"
        self._done.set()
        if self.verdict is not None:
            for line in self._lines if self.rank == 0 else []:
                line.send(gone=self.verdict, remedy=self.remedy)
            self._end_training()

    def _attend(self) -> None:
        beaten = time.monotonic()
        while not self._ended.is_set() and self.verdict is None:
            for key, _ in self._selector.select(timeout=0.1):
                if key.data is None:
                    with contextlib.suppress(OSError):
                        self._add(_Line(self._door.accept()[0]))
                else:
                    self._read(key.data)
            now = time.monotonic()
            if now - beaten >= BEAT:
                if now - beaten > SILENT / 2:  # this process was stopped itself, and others only seem silent
                    for line in self._lines:
                        line.heard = now
                beaten = now
                self._beat(now)

    def _add(self, line: _Line) -> None:
        self._lines.append(line)
        self._selector.register(line.connection, selectors.EVENT_READ, line)

    def _beat(self, now: float) -> None:
        for line in self._lines:
            line.send(beat=1)
        silent = [
            self.peers[line.rank] for line in self._lines if line.rank in self.peers and now - line.heard > SILENT
        ]
        if silent:
            self._lose(dict.fromkeys(silent, f"has shown no sign of life for {SILENT:.0f} seconds"))

    def _read(self, line: _Line) -> None:
        messages = line.receive()
        try:
            for message in messages or []:
                self._take(line, message)
        except (KeyError, TypeError, ValueError):  # nobody of this run, or another version of aurank
            messages = None
        if messages is None:
            self._closed(line)

    def _take(self, line: _Line, message: dict[str, Any]) -> None:
        if line.rank is None and message["token"] != self._token:
            raise ValueError("of another run")
        if "here" in message:
            self._welcome(line, Peer(**message["here"]))
        elif "peers" in message:
            self.peers = {peer["rank"]: Peer(**peer) for peer in message["peers"] if peer["rank"] != self.rank}
            self._met.set()
        elif "gone" in message:
            self.verdict, self.remedy = message["gone"], message["remedy"]
        line.leaves = message.get("leaves", line.leaves)

    def _welcome(self, line: _Line, peer: Peer) -> None:
        """Note that a process has come, and tell everyone once all have; before that, one too many ends the run."""
        there = {0: self.own, **self.peers}
        if peer.rank in there or not 0 < peer.rank < self.size:
            known = f" and {there[peer.rank]} have the same RANK" if peer.rank in there else ""
            verdict = f"{peer}{known or f' is beyond WORLD_SIZE={self.size}'}"
            remedy = f"give every process a RANK of its own, from 0 to {self.size - 1}, and WORLD_SIZE={self.size}"
            if self._met.is_set():
                line.send(gone=verdict, remedy=remedy)
                raise ValueError(verdict)
            self.verdict, self.remedy = verdict, remedy
            return
        line.rank, self.peers[peer.rank] = peer.rank, peer
        if len(self.peers) == self.size - 1:
            everyone = [asdict(peer) for peer in (self.own, *self.peers.values())]
            for other in self._lines:
                other.send(peers=everyone)
            self._met.set()

    def _closed(self, line: _Line) -> None:
        """Drop a line whose other side has closed; that process is gone, unless it has said that it leaves."""
        self._selector.unregister(line.connection)
        self._lines.remove(line)
        line.close()
        if line.rank is None or line.leaves == "done" or self.verdict is not None:
            return
        if line.leaves == "failed":  # another process may fail for the same reason, and says so itself
            self._ended.wait(ENDING)
        if not self._ended.is_set():
            peer = self.peers.get(line.rank)
            self._lose({peer or f"rank {line.rank} at MASTER_ADDR={_master()[0]}": "has ended"})

    def _lose(self, gone: dict[Peer, str] | dict[Peer | str, str]) -> None:
        self.verdict = "; ".join(f"{peer} {self._trouble(peer) or what}" for peer, what in gone.items())

    def _trouble(self, peer: Peer | str) -> str:
        return peer.trouble if isinstance(peer, Peer) and peer.machine == self.own.machine else ""

    def _end_training(self) -> None:
        # A collective mostly fails at once: an exception on top of that one might miss who waits for it here.
        self._ended.wait(2 * BEAT)
        with uninterrupted, self._lock:
            if self._trains is None:
                return
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._trains), ctypes.py_object(Lost))
        if not self._ended.wait(ENDING):
            os.write(2, f"error: {self.verdict}; {self.remedy}\n".encode())
            os._exit(1)  # no exception reaches a thread that waits inside of a library

    # -- the end ----------------------------------------------------------------------------------------------------

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._take_over()
        except Lost as late:
            error = late
            self._take_over()
        text = self._explained(error)
        self._ended.set()
        self._thread.join()
        for line in self._lines:
            line.send(leaves="done" if error is None else "failed")
            line.close()
        if self.rank == 0:
            _open.discard(self._door)
            self._door.close()
        self._selector.close()
        if text is not None:
            raise AurankError(f"{text}; {self.remedy}") from error

    def _take_over(self) -> None:
        """Let nothing interrupt the thread that trains any more."""
        with self._lock:
            if self._trains is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._trains), None)
            self._trains = None

    def _explained(self, error: BaseException | None) -> str | None:
        """Who is gone where an error, or what it came of, says that somebody is; None for other errors."""
        lost = error
        while lost is not None and not (isinstance(lost, Lost) or _is_loss(lost)):
            lost = lost.__cause__
        if lost is None:
            is_odd = isinstance(error, Exception) and not isinstance(error, AurankError)
            # It may be what comes of a process that is gone.
            return self.verdict if is_odd and self._done.wait(BEAT) else None
        waited, is_cut = (any(text in str(lost) for text in texts) for texts in (("imed out", "timeout"), _CUT))
        deadline = time.monotonic() + ENDING
        away = [peer for peer in self.peers.values() if peer.machine != self.own.machine]
        if away and not waited:  # one that has lost its power is known by its silence only
            deadline += SILENT
        while self.verdict is None and time.monotonic() < deadline:
            time.sleep(0.02)
            if stopped := {peer: what for peer in self.peers.values() if (what := self._trouble(peer))}:
                self._lose(stopped)
        if self.verdict is None and (waited or is_cut):  # otherwise all are there, and the error is of this process
            who = " or ".join(map(str, away or self.peers.values()))
            what = f"did not come within {self.within}" if waited else "has ended or cannot be reached"
            self.verdict = f"{who} {what}"
        return self.verdict


def _master() -> tuple[str, int]:
    return os.environ.get("MASTER_ADDR", "localhost"), int(os.environ.get("MASTER_PORT", "29500"))


def _is_loss(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and (
        isinstance(error, torch.distributed.DistError) or any(text in str(error) for text in ("gloo", *_CUT))
    )

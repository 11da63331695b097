"""Who is said to be gone, and when: processes of a run as threads, and as sockets that say what a test lets them."""

import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch

from aurank.errors import AurankError
from aurank.launched import Peer
from aurank.training import liveness
from aurank.training.liveness import Liveness, uninterrupted

TOKEN = "of this run"
GIVEN_UP = 60.0


class Board:
    """The store in which processes meet."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._changed = threading.Event()

    def set(self, name: str, value: str) -> None:
        self._values[name] = value
        self._changed.set()

    def get(self, name: str) -> str:
        assert self._changed.wait(GIVEN_UP)
        return self._values[name]


class Member(threading.Thread):
    """A process that trains, as a thread."""

    def __init__(self, rank: int, size: int, work: Callable[[Liveness], None], timeout: str = "60s") -> None:
        super().__init__(daemon=True)
        self.error: BaseException | None = None
        self._work, self._timeout, self._made = work, timeout, threading.Event()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RANK", str(rank))
            patch.setenv("WORLD_SIZE", str(size))
            patch.setenv("MASTER_ADDR", "127.0.0.1")
            self.start()
            assert self._made.wait(GIVEN_UP)

    def run(self) -> None:
        self.life = Liveness(self._timeout)
        self._made.set()
        try:
            with self.life:
                self._work(self.life)
        except BaseException as error:
            self.error = error

    def ends_with(self) -> str | None:
        self.join(GIVEN_UP)
        assert not self.is_alive()
        assert self.error is None or isinstance(self.error, AurankError), self.error
        return None if self.error is None else str(self.error)


class Wire:
    """The other end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("rb")

    def say(self, **message: object) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def hear(self, name: str) -> Any:
        """Return what the next message of that name says."""
        for line in self._lines:
            if name in (message := json.loads(line)):
                return message[name]
        raise AssertionError(f"nothing was said of {name}")

    def close(self) -> None:
        self._lines.close()
        self._connection.close()


def here(rank: int) -> dict[str, Any]:
    return {"rank": rank, "host": f"far-{rank}", "pid": 7, "machine": "another"}


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    """A store, and short times; nobody falls silent by itself."""
    found = Board()
    monkeypatch.setattr(Liveness, "_connect", lambda life: found)
    monkeypatch.setattr(liveness.secrets, "token_hex", lambda: TOKEN)
    for name, value in {"BEAT": 0.02, "SILENT": GIVEN_UP, "ENDING": 0.2}.items():
        monkeypatch.setattr(liveness, name, value)
    return found


@pytest.fixture
def call(board: Board) -> Iterator[Callable[[], Wire]]:
    """Connects to rank 0."""
    wires: list[Wire] = []

    def connect() -> Wire:
        port = json.loads(board.get("aurank"))[0]
        wires.append(Wire(socket.create_connection(("127.0.0.1", port), timeout=GIVEN_UP)))
        return wires[-1]

    yield connect
    for wire in wires:
        wire.close()


def for_ever(life: Liveness) -> None:
    while True:
        time.sleep(0.005)


def test_one_that_falls_silent_is_named_to_all_others(call: Callable[[], Wire]) -> None:
    first = Member(0, 3, for_ever)
    silent, other = call(), call()
    silent.say(token=TOKEN, here=here(1))
    other.say(token=TOKEN, here=here(2))
    assert [peer["rank"] for peer in other.hear("peers")] == [0, 1, 2]
    other.hear("beat")
    (line,) = (line for line in first.life._lines if line.rank == 1)
    line.heard -= 2 * liveness.SILENT
    told = other.hear("gone")
    assert told == "rank 1 (process 7 on far-1) has shown no sign of life for 60 seconds"
    assert first.ends_with() == f"{told}; {liveness.REMEDY}"


def test_one_that_was_stopped_itself_takes_nobody_for_silent(
    call: Callable[[], Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "SILENT", 0.1)
    monkeypatch.setattr(liveness, "BEAT", 0.06)  # every beat comes as late as after a stop
    ended = threading.Event()
    first = Member(0, 2, lambda life: (ended.wait(GIVEN_UP), None)[1])
    wire = call()
    wire.say(token=TOKEN, here=here(1))
    for _ in range(5):
        wire.hear("beat")
    ended.set()
    assert first.ends_with() is None


def test_rank_0_that_closes_its_connection_has_ended(board: Board) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        board.set("aurank", json.dumps([door.getsockname()[1], TOKEN]))
        second = Member(1, 2, for_ever)
        wire = Wire(door.accept()[0])
        assert wire.hear("here")["rank"] == 1
        wire.say(peers=[here(0), here(1)])
        wire.close()
        assert second.ends_with() == f"rank 0 (process 7 on far-0) has ended; {liveness.REMEDY}"


@pytest.mark.parametrize(("leaves", "named"), [("done", False), ("failed", True), (None, True)])
def test_one_that_leaves_is_gone_unless_it_is_done(call: Callable[[], Wire], leaves: str | None, named: bool) -> None:
    left = threading.Event()

    def work(life: Liveness) -> None:
        left.wait(GIVEN_UP)
        deadline = time.monotonic() + (GIVEN_UP if named else 2 * liveness.ENDING)
        while time.monotonic() < deadline:
            time.sleep(0.005)

    first = Member(0, 2, work)
    wire = call()
    wire.say(token=TOKEN, here=here(1))
    wire.hear("peers")
    if leaves is not None:
        wire.say(leaves=leaves)
    wire.close()
    left.set()
    said = first.ends_with()
    assert said == (f"rank 1 (process 7 on far-1) has ended; {liveness.REMEDY}" if named else None)


def test_what_fails_everywhere_is_told_by_each_itself(
    call: Callable[[], Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "ENDING", GIVEN_UP)

    def work(life: Liveness) -> None:
        while life._lines:
            time.sleep(0.005)
        raise AurankError("the same in every process")

    first = Member(0, 2, work)
    wire = call()
    wire.say(token=TOKEN, here=here(1))
    wire.hear("peers")
    wire.say(leaves="failed")
    wire.close()
    assert first.ends_with() == "the same in every process"


def test_where_no_exception_reaches_the_process_ends_itself(
    call: Callable[[], Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    exits: list[int] = []
    said: list[bytes] = []
    reached = threading.Event()
    monkeypatch.setattr(os, "write", lambda descriptor, text: said.append(text))
    monkeypatch.setattr(os, "_exit", lambda code: (exits.append(code), reached.set()))
    first = Member(0, 2, lambda life: (reached.wait(), None)[1])  # without a timeout nothing interrupts it
    wire = call()
    wire.say(token=TOKEN, here=here(1))
    wire.hear("peers")
    wire.close()
    line = f"rank 1 (process 7 on far-1) has ended; {liveness.REMEDY}"
    assert first.ends_with() == line
    assert (exits, said) == ([1], [f"error: {line}\n".encode()])


def test_one_that_ends_before_all_have_come_is_named(call: Callable[[], Wire]) -> None:
    first = Member(0, 3, for_ever)
    wire = call()
    wire.say(token=TOKEN, here=here(2))
    wire.close()
    assert first.ends_with() == f"rank 2 (process 7 on far-2) has ended; {liveness.REMEDY}"


def test_one_that_does_not_come_is_named_and_strangers_do_not_count(call: Callable[[], Wire]) -> None:
    first = Member(0, 3, for_ever, timeout="0.2s")
    stranger, second = call(), call()
    stranger.say(token="of another run", here=here(1))
    second.say(token=TOKEN, here=here(2))
    said = first.ends_with()
    assert said is not None
    assert said.startswith("rank 1 did not come within train.timeout=0.2s; ")


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ((1, 1), "rank 1 (process 7 on far-1) and rank 1 (process 7 on far-1) have the same RANK"),
        ((0,), f"rank 0 (process 7 on far-0) and {Peer.own(0)} have the same RANK"),
        ((3,), "rank 3 (process 7 on far-3) is beyond WORLD_SIZE=3"),
    ],
    ids=["twice", "that of rank 0", "beyond"],
)
def test_a_rank_that_is_there_already_or_that_nobody_has_ends_all_at_once(
    call: Callable[[], Wire], ranks: tuple[int, ...], said: str
) -> None:
    first = Member(0, 3, for_ever)
    wires = [call() for _ in ranks]
    for rank, wire in zip(ranks, wires, strict=True):
        wire.say(token=TOKEN, here=here(rank))
    assert wires[-1].hear("gone") == said
    assert first.ends_with() == f"{said}; give every process a RANK of its own, from 0 to 2, and WORLD_SIZE=3"


def test_one_too_many_is_sent_away_from_a_run_that_goes_on(call: Callable[[], Wire]) -> None:
    ended = threading.Event()
    first = Member(0, 2, lambda life: (ended.wait(GIVEN_UP), None)[1])
    second, late = call(), call()
    second.say(token=TOKEN, here=here(1))
    second.hear("peers")
    late.say(token=TOKEN, here=here(1))
    assert late.hear("gone").endswith(" have the same RANK")
    second.hear("beat")
    ended.set()
    assert first.ends_with() is None


def test_what_nobody_of_this_run_says_ends_no_watching(call: Callable[[], Wire]) -> None:
    first = Member(0, 2, for_ever)
    another_version = json.dumps({"token": TOKEN, "here": {"rank": 1}}).encode()
    for said in (b"[" * 50_000, b"[]", b"3", another_version):
        stranger = call()
        stranger._connection.sendall(said + b"\n")
        for _ in stranger._lines:  # until it is closed
            pass
    second = call()
    second.say(token=TOKEN, here=here(1))
    second.hear("peers")
    second.close()
    assert first.ends_with() == f"rank 1 (process 7 on far-1) has ended; {liveness.REMEDY}"


def test_a_watching_that_fails_is_told(call: Callable[[], Wire], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(life: Liveness, now: float) -> None:
        raise ZeroDivisionError("a mistake")

    first = Member(0, 2, for_ever)
    wire = call()
    wire.say(token=TOKEN, here=here(1))
    wire.hear("peers")
    monkeypatch.setattr(Liveness, "_beat", fail)
    assert wire.hear("gone") == "rank 0 cannot watch the others any more: ZeroDivisionError: a mistake"
    assert (first.ends_with() or "").startswith("rank 0 cannot watch the others any more: ")


def test_a_file_that_is_being_written_is_written_whole(call: Callable[[], Wire]) -> None:
    written: list[bool] = []

    def work(life: Liveness) -> None:
        with uninterrupted:
            life._done.wait(GIVEN_UP)
            time.sleep(2 * liveness.BEAT + 2 * liveness.ENDING)
            written.append(True)
        for_ever(life)

    first = Member(0, 2, work)
    wire = call()
    wire.say(token=TOKEN, here=here(1))
    wire.hear("peers")
    wire.close()
    assert first.ends_with() == f"rank 1 (process 7 on far-1) has ended; {liveness.REMEDY}"
    assert written == [True]


def test_a_store_without_rank_0_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    stores: Any = torch.distributed
    store = stores.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    setting = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    expected = rf"127.0.0.1:{store.port}, but rank 0 did not come within train.timeout=0.5s; see what rank 0 says"
    with pytest.raises(AurankError, match=expected), Liveness("0.5s"):
        pass


CUT = "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:3741"
LATE = "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 60000ms for recv operation"
BUG = "[enforce fail at ../third_party/gloo/gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 64 vs 4"


@pytest.mark.parametrize(
    ("text", "said"),
    [(CUT, "has ended or cannot be reached"), (LATE, "did not come within train.timeout=60s"), (BUG, None)],
)
@pytest.mark.usefixtures("board")
def test_an_error_is_blamed_on_nobody_that_lives_unless_it_is_of_a_connection(text: str, said: str | None) -> None:
    failed = threading.Event()

    def fail(life: Liveness) -> None:
        raise RuntimeError(text)

    first = Member(0, 2, fail)
    second = Member(1, 2, lambda life: (failed.wait(GIVEN_UP), None)[1])
    first.join(GIVEN_UP)
    failed.set()
    second.join(GIVEN_UP)
    if said is None:
        assert isinstance(first.error, RuntimeError)
        assert str(first.error) == text
    else:
        assert re.fullmatch(rf"{re.escape(str(Peer.own(1)))} {said}; .*", str(first.error))


@pytest.mark.usefixtures("board")
def test_processes_that_are_done_say_nothing_of_each_other() -> None:
    members = [Member(rank, 3, lambda life: None) for rank in range(3)]
    assert [member.ends_with() for member in members] == [None] * 3

"""The process: its address, what it prints, what it refuses before it loads anything, and ten clients at once."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from testing.galleries import running_server, small_index, write_photos
from testing.processes import Shell

from aurank.errors import UserError
from aurank.serving import server
from aurank.serving.server import listen, serve
from aurank.serving.uploads import Limits

FORM = {"content-type": "multipart/form-data; boundary=x"}
HEAD = b'--x\r\ncontent-disposition: form-data; name="photo"; filename="a"\r\n\r\n'


def asked(port: int, method: str, path: str, body: Any = None, headers: Any = None) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request(method, path, body, headers or {})
    answer = connection.getresponse()
    content = json.loads(answer.read())
    connection.close()
    return answer.status, content


def test_a_port_in_use_is_told_before_the_index_is_looked_for(tmp_path):
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"port {port} of 127\.0\.0\.1: Address already in use"):
            serve(tmp_path / "no index", port=port)


@pytest.mark.parametrize(
    ("host", "port", "named"),
    [("127.0.0.1", 70000, "--port 70000"), ("192.0.2.1", 0, "port 0 of 192.0.2.1"),
     ("no such host.invalid", 0, "no such"), ("a" * 70, 0, "port 0 of a")],
)  # fmt: skip
def test_an_address_that_cannot_be_had(host, port, named):
    with pytest.raises(UserError, match=named):
        listen(host, port)


@pytest.fixture
def applications(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The applications of servers that end when they start."""
    made: list[Any] = []

    class Ended:
        def __init__(self, app: Any) -> None:
            made.append(app)

        def run(self, sockets: list[socket.socket]) -> None:
            pass

    monkeypatch.setattr(server, "server_of", Ended)
    return made


@pytest.mark.slow
def test_the_command_says_where(index, applications, monkeypatch, capsys):
    shell = Shell(monkeypatch, capsys)
    output, complaint = shell.done("serve", index.folder, "--port", 0)
    assert output.startswith("30 images at http://127.0.0.1:")
    assert complaint == ""
    elsewhere = {"host": "evil.example"}
    assert TestClient(applications[0]).get("/api/info", headers=elsewhere).status_code == 403
    everywhere = ("--port", 0, "--host", "0.0.0.0")
    output, complaint = shell.done("serve", index.folder, *everywhere, "--no-token")
    assert "http://0.0.0.0:" in output
    assert "there is no password" in complaint
    assert TestClient(applications[1]).get("/api/info", headers=elsewhere).status_code == 200
    monkeypatch.setenv("AURANK_TOKEN", "secret")
    assert "any name, and the token" in shell.done("serve", index.folder, *everywhere)[1]
    client = TestClient(applications[2])
    assert client.get("/", headers=elsewhere).status_code == 401
    assert client.get("/", headers={**elsewhere, "authorization": "Bearer secret"}).status_code == 200


@pytest.mark.parametrize("token", [None, ""])
def test_an_address_that_others_reach_wants_a_token(tmp_path, token):
    with pytest.raises(UserError, match=r"--token TOKEN or \$AURANK_TOKEN, or let everybody in by --no-token"):
        serve(tmp_path / "no index", port=0, host="0.0.0.0", token=token)  # said before the index is looked for


def test_who_serves_from_python_is_told_the_address(index, applications):
    told: list[tuple[str, int, bool]] = []
    serve(index.folder, port=0, host="localhost", started=lambda *values: told.append(values))
    ((address, images, is_local),) = told
    assert (images, is_local) == (30, True)
    assert address.startswith("http://localhost:")


@pytest.mark.slow
def test_ten_clients_at_once_get_the_same_answers(index):
    (content,) = (Path(index.about["sources"][0]["place"], "blue/3.png").read_bytes(),)

    def search(number: int) -> Any:
        if number % 2:
            return asked(port, "POST", "/api/search", json.dumps({"row": 3}), {"content-type": "application/json"})
        return asked(port, "POST", "/api/search", HEAD + content + b"\r\n--x--\r\n", FORM)

    with running_server(index) as port, ThreadPoolExecutor(10) as clients:
        answers = list(clients.map(search, range(60)))
    assert {status for status, _ in answers} == {200}
    assert all(answer == answers[0] for answer in answers[::2])
    assert all(answer == answers[1] for answer in answers[1::2])


@pytest.mark.slow
def test_too_many_waiting_searches_are_told_to_come_again(index, monkeypatch):
    hold, search = threading.Event(), index.search_rows

    def slow(*arguments: Any, **options: Any) -> Any:
        hold.wait(10)
        return search(*arguments, **options)

    monkeypatch.setattr(index, "search_rows", slow)

    def ask(number: int) -> tuple[int, dict[str, Any]]:
        answer = asked(port, "POST", "/api/search", b'{"row": 3}', {"content-type": "application/json"})
        if answer[0] == 503:
            hold.set()
        return answer

    with running_server(index, Limits(threads=1, waiting=2)) as port, ThreadPoolExecutor(6) as clients:
        answers = list(clients.map(ask, range(6)))
    assert sorted({status for status, _ in answers}) == [200, 503]
    refusals = {answer["error"] for status, answer in answers if status == 503}
    assert refusals == {"too many searches are waiting; try again in a moment"}


@pytest.mark.slow
def test_over_a_wire_a_body_that_is_too_large_slow_or_broken_off(index):
    kind = f"content-type: {FORM['content-type']}"
    lines = ("POST /api/search HTTP/1.1", "host: 127.0.0.1", "content-length: 5000", kind)
    begun = "\r\n".join([*lines, "", ""]).encode() + HEAD
    with running_server(index, Limits(upload_bytes=200_000, upload_seconds=0.4)) as port:
        status, answer = asked(port, "POST", "/api/search", HEAD + bytes(1_500_000), FORM)
        assert (status, answer["error"]) == (413, "the upload may have 259.3 KiB at most; reduce it")
        with socket.create_connection(("127.0.0.1", port)) as wire:
            wire.sendall(begun)
            assert b"408" in wire.recv(4000)
        with socket.create_connection(("127.0.0.1", port)) as wire:
            wire.sendall(begun)
        assert asked(port, "GET", "/api/info")[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize("target", ["POST /api/search", "GET /api/info", "POST /nowhere"])
def test_a_body_in_chunks_that_never_ends_is_answered_and_cut(index, target):
    lines = (f"{target} HTTP/1.1", "host: 127.0.0.1", "transfer-encoding: chunked", "content-type: application/json")
    chunk = b"10000\r\n" + bytes(2**16) + b"\r\n"
    with running_server(index) as port, socket.create_connection(("127.0.0.1", port), timeout=5) as wire:
        wire.sendall("\r\n".join([*lines, "", ""]).encode())
        sent = 0
        with suppress(OSError):  # the server has closed the connection
            while sent < 400:
                wire.sendall(chunk)
                sent += 1
        assert sent < 400
        said = wire.recv(4000)
    assert said.startswith({"P": b"HTTP/1.1 4", "G": b"HTTP/1.1 200"}[target[0]])
    assert b"413" in said or target != "POST /api/search"


def ready_workers(parent: int, gone: Sequence[str] = ()) -> list[str]:
    """Wait until both workers have mapped the index, none of them is `gone`; return their process ids."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        workers = []
        for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            with suppress(OSError):  # it ends just now
                mapped = Path(f"/proc/{child}/maps").read_text()
                if all(file in mapped for file in ("index.faiss", "embeddings.npy")):
                    workers.append(child)
        if len(workers) == 2 and not {*gone} & {*workers}:
            return workers
        time.sleep(0.1)
    raise AssertionError("the workers are not ready")


def is_running(process: str) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@contextmanager
def two_workers(folder: str | Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-m", "aurank", "serve", str(folder), "--port", "0", "--workers", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as parent:
        try:
            yield parent, int(parent.stdout.readline().partition("127.0.0.1:")[2].partition("/")[0])
        finally:
            parent.terminate()


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=lambda end: end.name)
def test_workers_share_the_index_are_replaced_and_end_with_their_parent(index, end):
    with two_workers(index.folder) as (parent, port):
        workers = ready_workers(parent.pid)
        assert "index.faiss" not in Path(f"/proc/{parent.pid}/maps").read_text()  # it has let go of it
        if end == signal.SIGTERM:
            ended = workers[0]
            os.kill(int(ended), signal.SIGKILL)
            workers = ready_workers(parent.pid, [ended])
        body, kind = json.dumps({"row": 3}), {"content-type": "application/json"}
        answers = [asked(port, "POST", "/api/search", body, kind) for _ in range(8)]
        assert answers[0][0] == 200
        assert all(answer == answers[0] for answer in answers)
        parent.send_signal(end)
        assert parent.wait(30) == (0 if end == signal.SIGTERM else -9)
        if end == signal.SIGTERM:
            assert parent.stderr is not None
            assert f"[{ended}] died" in parent.stderr.readline()
    deadline = time.monotonic() + 30
    while any(map(is_running, workers)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_a_worker_that_would_count_other_rows_ends_the_server(index, tmp_path):
    shutil.copytree(index.folder, tmp_path / "index")
    small_index(write_photos(tmp_path / "photos"), tmp_path / "other")
    with two_workers(tmp_path / "index") as (parent, _):
        workers = ready_workers(parent.pid)
        (tmp_path / "index").rename(tmp_path / "former")
        (tmp_path / "other").rename(tmp_path / "index")
        os.kill(int(workers[0]), signal.SIGKILL)
        _, complaint = parent.communicate(timeout=100)
    assert parent.returncode == 1
    assert "the index has changed" in complaint
    assert not any(map(is_running, workers))


@pytest.mark.slow
def test_connections_that_never_ask_keep_nobody_waiting(index):
    with running_server(index) as port, ExitStack() as held:
        for number in range(200):
            wire = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            wire.sendall(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx-never: " if number % 2 else b"")
        assert asked(port, "POST", "/api/search", b'{"row": 3}', {"content-type": "application/json"})[0] == 200

"""Without the network: weights are given up on within seconds, and what is missing besides is told first."""

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants as hub
import pytest
import timm  # noqa: F401 (its import is not what is timed)

from aurank.commands import evaluate_model
from aurank.embedding import ImageSelection
from aurank.errors import UserError
from aurank.models import Encoder
from aurank.models.adapters.by_name import load_model
from aurank.models.adapters.loading import quick_when_offline


@pytest.fixture(params=["closed", "silent", "failing"])
def nowhere(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A hub behind a proxy on this machine that refuses, never answers, or says that it cannot reach anything."""
    server = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{server.getsockname()[1]}"
    open_sockets: list[socket.socket] = []

    def answer() -> None:
        while True:
            try:
                open_sockets.append(server.accept()[0])
                if request.param == "failing":
                    open_sockets[-1].recv(4096)
                    open_sockets[-1].sendall(b"HTTP/1.1 503 no\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    open_sockets[-1].close()
            except OSError:
                return

    if request.param == "closed":
        server.close()
    else:
        threading.Thread(target=answer, daemon=True).start()
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, address)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hub, "ENDPOINT", "http://hub.invalid")
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path / "empty"))
    yield address
    server.close()
    for one in open_sockets:
        one.close()


def test_weights_are_given_up_on_within_seconds(nowhere: str) -> None:
    for call in (
        lambda: load_model("timm:test_resnet"),
        lambda: Encoder("test_resnet", pretrained=True),
    ):
        start = time.perf_counter()
        with pytest.raises(UserError, match="connect to the network once") as caught:
            call()
        assert time.perf_counter() - start < 10  # 3 seconds, and what a busy machine adds; retries took 50
        assert "\n" not in str(caught.value)
    assert not hub.HF_HUB_OFFLINE


def test_nothing_is_asked_where_nothing_is_to_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "ENDPOINT", None)
    with quick_when_offline(needed=False):
        pass
    load_model("timm:test_resnet,pretrained=false")


def test_missing_data_are_told_before_weights_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aurank.models.adapters.timm.create", None)
    with pytest.raises(UserError, match=r"there is no .*nowhere"):
        evaluate_model("timm:test_resnet", ImageSelection(f"folder:{tmp_path}/nowhere"))

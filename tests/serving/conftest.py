"""A small index, and a client of the application that serves it."""

import pytest
from starlette.testclient import TestClient
from testing.galleries import small_index, write_coloured

from aurank.commands import ImageIndex
from aurank.serving.app import make_app


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> ImageIndex:
    folder = tmp_path_factory.mktemp("small")
    return small_index(write_coloured(folder / "photos"), folder / "index")


@pytest.fixture
def client(index: ImageIndex) -> TestClient:
    return TestClient(make_app(index))

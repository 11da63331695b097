"""A small index, and a client of the application that serves it."""

import pytest
from starlette.testclient import TestClient
from testing.small_index import small_index

from aurank.commands import ImageIndex
from aurank.serving.app import make_app


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> ImageIndex:
    return small_index(tmp_path_factory.mktemp("small"))


@pytest.fixture
def client(index: ImageIndex) -> TestClient:
    return TestClient(make_app(index))

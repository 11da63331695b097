import pytest
from testing.trees import publish_small_sizes


@pytest.fixture
def small_sizes(monkeypatch):
    publish_small_sizes(monkeypatch)

import pytest
from testing.benchmark_trees import publish_small_sizes


@pytest.fixture
def small_sizes(monkeypatch):
    publish_small_sizes(monkeypatch)

"""The pictures, each a small PNG."""

from collections.abc import Iterator
from pathlib import Path

from global_miniatures.store import Store


def draw_all(store: Store, out: Path) -> Iterator[Path]:
    """The pictures drawn, of what there are results of."""
    yield from ()

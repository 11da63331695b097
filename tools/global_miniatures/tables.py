"""The marked blocks of the page."""

from pathlib import Path

from global_miniatures.store import Store


def write_tables(store: Store, page: Path) -> None:
    """Nothing; writes the blocks."""

"""The page of a search: each photo with the images that it found."""

from collections.abc import Sequence
from dataclasses import dataclass

from aurank.reporting.page import render

SHORT = 24  # characters of a path that is shown whole below a picture


@dataclass(frozen=True)
class FoundImage:
    """One image of a list."""

    path: str
    class_name: str
    picture: str | None
    score: float


@dataclass(frozen=True)
class SearchedPhoto:
    """A photo with what it found, or why it could not be read."""

    path: str
    picture: str | None
    found: Sequence[FoundImage]
    error: str | None = None


def search_page(
    title: str, photos: Sequence[SearchedPhoto], facts: Sequence[tuple[str, str]], notes: Sequence[str] = ()
) -> str:
    """Return one HTML file that shows the photos with what they found; facts say how the search was made."""
    return render("search.html", title=title, photos=photos, facts=facts, notes=notes, short=_short)


def _short(name: str) -> str:
    """Return a name, of a long path its end: the beginnings are alike."""
    return name if len(name) <= SHORT or "/" not in name else f"…/{name.rpartition('/')[2]}"

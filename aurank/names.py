"""What was probably meant by a name that nobody knows, and which texts count as the same."""

import difflib
import unicodedata
from collections.abc import Iterable, Sequence


def nearest(name: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> list[str]:
    """The known names that are most like this one, whatever their case, the likest first; none where none is close."""
    lowered = {option.lower(): option for option in known}
    return [lowered[found] for found in difflib.get_close_matches(name.lower(), lowered, n=most, cutoff=cutoff)]


def meant(names: Sequence[str]) -> str:
    """``; did you mean 'a' or 'b'?``, or nothing where there are no names."""
    return f"; did you mean {' or '.join(repr(name) for name in names)}?" if names else ""


def tidied(text: str) -> str:
    """Return the text in Unicode's form NFC, each run of white space as one blank, none at the ends."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def text_key(text: str) -> str:
    """Return what is equal for texts that count as the same: `tidied`, without regard to case, as they are read."""
    return tidied(tidied(text).casefold())  # tidied again: a folded letter may be decomposed

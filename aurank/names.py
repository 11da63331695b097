"""What was probably meant by a name that nobody knows."""

import difflib
from collections.abc import Iterable, Sequence


def nearest(name: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> list[str]:
    """The known names that are most like this one, whatever their case, the likest first; none where none is close."""
    lowered = {option.lower(): option for option in known}
    return [lowered[found] for found in difflib.get_close_matches(name.lower(), lowered, n=most, cutoff=cutoff)]


def meant(names: Sequence[str]) -> str:
    """``; did you mean 'a' or 'b'?``, or nothing where there are no names."""
    return f"; did you mean {' or '.join(repr(name) for name in names)}?" if names else ""

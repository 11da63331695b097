"""The two kinds of failure that end in one clear line instead of a traceback, and the kind of warning."""

import errno
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class AurankError(Exception):
    """A failure that aurank understands; the command line prints its message and exits with 1."""


class UserError(AurankError, ValueError):
    """The user's mistake: bad input, a missing file, an impossible option; the command line exits with 2.

    The message names the thing, the value that came, what was expected, and the remedy.
    """


class Diverged(AurankError):
    """A training that ended early: its loss or weights are not finite, or its network has collapsed."""


class AurankWarning(UserWarning):
    """A warning shown to the user; nothing fails. The command line draws it as a notice."""


class OptionRule(NamedTuple):
    """A rule of options, by the names that a user writes: `option` needs one of `needs`, and excludes `excludes`."""

    option: str
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    why: str = ""


def check_options(options: Mapping[str, object], rules: Iterable[OptionRule]) -> None:
    """Raise UserError for the first rule that the options break; an option of None, False or nothing is not set.

    Example:
        >>> check_options({"--fix": "leaks", "--out": None}, [OptionRule("--fix", needs=("--out",))])
        Traceback (most recent call last):
        aurank.errors.UserError: --fix needs --out
    """
    is_set = {name for name, value in options.items() if value or (value == 0 and value is not False)}
    for option, needs, excludes, why in rules:
        if option not in is_set:
            continue
        reason = f": {why}" if why else ""
        if needs and not is_set.intersection(needs):
            raise UserError(f"{option} needs {' or '.join(needs)}{reason}")
        for name in is_set.intersection(excludes):
            raise UserError(f"{option} does not go with {name}{reason}")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if the message is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


_REMEDIES = {
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise the limit (ulimit -n), or use fewer data.workers"),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space, or name another folder"),
    errno.ENOMEM: "use fewer data.workers, smaller batches, or a machine with more memory",
}


def explained(error: BaseException) -> str | None:
    """Return a message with the remedy if the machine has run short of something; None for other failures."""
    text = first_line(error)
    if isinstance(error, RuntimeError) and "items of ancillary data" in text:
        return f"too many open files ({text}); {_REMEDIES[errno.EMFILE]}"
    if isinstance(error, RuntimeError) and text.startswith("DataLoader worker"):
        ended = f"a process that reads images has ended, most often for want of memory ({text.rstrip('. ')})"
        return f"{ended}; {_REMEDIES[errno.ENOMEM]}, shared memory included"
    if isinstance(error, OSError) and error.errno in _REMEDIES:
        path = "" if error.filename is None else f": {error.filename}"
        return f"{error.strerror}{path}; {_REMEDIES[error.errno]}"
    return None

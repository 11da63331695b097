"""The two kinds of failure that end in one clear line instead of a traceback, and the kind of warning."""

import errno
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class AurankError(Exception):
    """A failure that aurank understands; the command line prints its message and exits with 1."""


class UserError(AurankError, ValueError):
    """The user's mistake: bad input, a missing file, an impossible option; the command line exits with 2."""


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
    """Raise UserError for the first rule that the options break; an option of None, False or nothing is not set."""
    is_set = {name for name, value in options.items() if value or (value == 0 and value is not False)}
    for option, needs, excludes, why in rules:
        if option not in is_set:
            continue
        reason = f": {why}" if why else ""
        if needs and not is_set.intersection(needs):
            raise UserError(f"{option} needs {' or '.join(needs)}{reason}")
        for name in is_set.intersection(excludes):
            raise UserError(f"{option} does not go with {name}{reason}")


def refuse_first(problems: Iterable[str], of: str = "") -> None:
    """Raise UserError with the first of some problems, if there is any."""
    if (problem := next(iter(problems), None)) is not None:
        raise UserError(f"{of}: {problem}" if of else problem)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if the message is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)


def explained(error: BaseException) -> str | None:
    """Return a message with the remedy if the machine has run short of something; None for other failures."""
    text = first_line(error)
    if isinstance(error, RuntimeError) and (text.startswith("DataLoader worker") or "items of ancillary data" in text):
        remedy = "use fewer data.workers or smaller batches, or allow more open files (ulimit -n) and shared memory"
        return f"a process that reads images has ended ({text.rstrip('. ')}); {remedy}"
    if isinstance(error, OSError) and error.errno in _SHORT:
        path = "" if error.filename is None else f": {error.filename}"
        return f"{error.strerror}{path}; free some space, use fewer data.workers, or raise the limits (ulimit)"
    return None

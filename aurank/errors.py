"""The two kinds of failure that end in one clear line instead of a traceback, and the kind of warning."""


class AurankError(Exception):
    """A failure that aurank understands; the command line prints its message and exits with 1."""


class UserError(AurankError, ValueError):
    """The user's mistake: bad input, a missing file, an impossible option; the command line exits with 2.

    The message names the thing, the value that came, what was expected, and the remedy.
    """


class AurankWarning(UserWarning):
    """What a user should know and nothing fails of; the command line draws it as a notice."""


def first_line(error: BaseException) -> str:
    """The first line of what an error says; its type where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

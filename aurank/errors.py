"""The two kinds of failure that end in one clear line instead of a traceback."""


class AurankError(Exception):
    """A failure that aurank understands; the command line prints its message and exits with 1."""


class UserError(AurankError, ValueError):
    """The user's mistake: bad input, a missing file, an impossible option; the command line exits with 2.

    The message names the thing, the value that came, what was expected, and the remedy.
    """


def first_line(error: BaseException) -> str:
    """The first line of what an error says; its type where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

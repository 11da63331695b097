"""The command line: parse, one library call, print. The only place that prints or exits."""

import sys

# isort: off
# They add their commands, in this order.
from aurank.cli import training, measuring, searching, data  # noqa: F401

# isort: on
from aurank.cli.app import app
from aurank.cli.drawing import draw_warnings, is_control, stderr_console
from aurank.errors import AurankError, UserError, explained
from aurank.extras import missing_library

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line; exit with 0, 2 for the user's mistake, 130 / 143 after a signal, 1 for anything else."""
    try:
        for argument in sys.argv[1:]:
            if any(map(is_control, argument)):
                raise UserError(f"the argument {argument!r} holds a control character; write it without")
        with draw_warnings():
            app()
    except AurankError as error:
        stderr_console.say(f"error: {error}")
        sys.exit(2 if isinstance(error, UserError) else 1)
    except MemoryError:
        stderr_console.say("error: there is not enough memory; take less at once (--batch, max_memory, a smaller file)")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except (OSError, RuntimeError, ImportError) as error:
        if (text := explained(error) or missing_library(error)) is None:
            raise
        stderr_console.say(f"error: {text}")
        sys.exit(1)

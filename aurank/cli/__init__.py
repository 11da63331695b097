"""The command line: parse, one library call, print. The only place that prints or exits."""

import sys

import click

# isort: off
# They add their commands, in this order.
from aurank.cli import training, measuring, searching, data  # noqa: F401

# isort: on
from aurank.cli.command import app, data_app, index_app
from aurank.cli.drawing import draw_warnings, is_control, stderr_console
from aurank.errors import AurankError, UserError, explained
from aurank.extras import missing_library

__all__ = ["app", "main"]

app.add_command(index_app)
app.add_command(data_app)


def main() -> None:
    """Run the command line; exit with 0, 2 for the user's mistake, 130 / 143 after a signal, 1 for anything else."""
    words, text = sys.argv[1:] or ["--help"], ""
    try:
        if control := next((word for word in words if any(map(is_control, word))), None):
            raise UserError(f"the argument {control!r} holds a control character; write it without")
        with draw_warnings(), app.make_context("aurank", words) as context:
            app.invoke(context)
        return
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.UsageError as error:
        where = "" if error.ctx is None else f" ({error.ctx.command_path} --help lists what there is)"
        code, text = 2, f"{error.format_message().rstrip('.')}{where}"
    except AurankError as error:
        code, text = 2 if isinstance(error, UserError) else 1, str(error)
    except MemoryError:
        code, text = 1, "there is not enough memory; take less at once (--batch, max_memory, a smaller file)"
    except KeyboardInterrupt:
        code = 130
    except (OSError, RuntimeError, ImportError) as error:
        if (text := explained(error) or missing_library(error) or "") == "":
            raise
        code = 1
    if text:
        stderr_console.say(f"error: {text}")
    sys.exit(code)

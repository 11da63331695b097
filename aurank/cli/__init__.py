"""The command line: parse, one library call, print. The only place that prints or exits."""

import re
import sys
import tomllib
from pathlib import Path

import click

from aurank import __version__
from aurank.cli import commands
from aurank.cli.command import Command, print_result
from aurank.cli.drawing import draw_warnings, is_control, stderr_console
from aurank.errors import AurankError, UserError, explained
from aurank.lazy import missing_library

__all__ = ["app", "main"]


class _Group(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # as they were added


def _make_app() -> click.Group:
    shared, entries = tomllib.loads(Path(__file__).with_name("commands.toml").read_text("utf-8")).values()
    groups = {name: _Group(name, help=text) for name, text in shared["groups"].items()}
    for title, entry in entries.items():
        function = getattr(commands, re.sub("[ -]", "_", title), print_result)
        groups[title.rpartition(" ")[0] or "aurank"].add_command(Command(title, function, entry, shared))
    app = groups.pop("aurank")
    for group in groups.values():
        app.add_command(group)
    version = click.version_option(__version__, message="aurank %(version)s", help="Print the version and exit.")
    return version(app)


app = _make_app()


def main() -> None:
    """Run the command line; exit with 0, 2 for the user's mistake, 130 / 143 after a signal, 1 for anything else."""
    words, text = sys.argv[1:] or ["--help"], ""
    try:
        if control := next((word for word in words if any(map(is_control, word))), None):
            raise UserError(f"the argument {control!r} holds a control character; write it without")
        with draw_warnings(), app.make_context("aurank", words, max_content_width=120) as context:
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
        code, text = 1, explained(error) or missing_library(error) or ""
        if not text:
            raise
    if text:
        stderr_console.say(f"error: {text}")
    sys.exit(code)

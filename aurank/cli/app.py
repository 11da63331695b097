"""The command line's root, to which the files beside this one add their commands."""

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.models import CommandFunctionType

from aurank import __version__
from aurank.cli.drawing import console
from aurank.cli.options import Command


class _App(typer.Typer):
    def command(self, name: str | None = None, **how: Any) -> Callable[[CommandFunctionType], CommandFunctionType]:
        return super().command(name, **{"cls": Command, **how})


app = _App(
    name="aurank",
    help="Train image-retrieval embeddings for average precision, and measure any embedding exactly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its boxes leave 24 of 80 columns for the words
    context_settings={"max_content_width": 120},
)


def _group(name: str, text: str) -> typer.Typer:
    group = _App(help=text, no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(group, name=name)
    return group


data_app = _group("data", "Look after data sets.")
index_app = _group("index", "Make an index of images, and change it.")


def _print_version(wanted: bool) -> bool:
    if wanted:
        console.print(f"aurank {__version__}", highlight=False)
        raise typer.Exit
    return wanted  # typer hands this on in place of what came


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train image-retrieval embeddings for average precision, and measure any embedding exactly."""

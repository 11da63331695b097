"""Commands that look at configurations."""

import shutil
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from aurank.cli.app import app
from aurank.cli.drawing import console
from aurank.cli.options import ConfigFile, Overrides
from aurank.errors import UserError


@app.command()
def config(file: ConfigFile, overrides: Overrides = None) -> None:
    """Print a configuration resolved, or every error in it.

    No data is read.

    \b
    aurank config mine.yaml optim.lr=1e-3
    """
    from aurank.config import dump_config
    from aurank.training import read_config

    console.print(dump_config(read_config(file, overrides or [])), end="", highlight=False, markup=False)


@app.command()
def ls(
    wanted: Annotated[str, typer.Argument(metavar="FILTER", help="Only those with this text in their line.")] = "",
) -> None:
    """List the shipped configurations.

    \b
    aurank ls soprc
    """
    from aurank.config import shipped_configs

    table = Table("name", "about", box=None)
    for name, path in sorted(shipped_configs().items()):
        about = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("#").strip()
        if wanted.lower() in f"{name}\n{about}".lower():
            table.add_row(name, about)
    if not table.rows:
        raise UserError(f"no shipped configuration has {wanted!r} in its name or first line; aurank ls lists them all")
    console.print(table)


@app.command()
def cp(
    name: Annotated[str, typer.Argument(help="A name printed by aurank ls.")],
    to: Annotated[Path, typer.Argument(help="The file or folder to write to.")],
) -> None:
    """Copy a shipped configuration, to change it.

    \b
    aurank cp digits/soprc mine.yaml
    """
    from aurank.config import shipped_configs

    shipped = shipped_configs()
    if name not in shipped:
        raise UserError(f"no shipped configuration {name!r}; expected one of {', '.join(shipped)}")
    target = to / f"{Path(name).name}.yaml" if to.is_dir() else to
    if target.exists():
        raise UserError(f"{target} exists already; name another file")
    if not target.parent.is_dir():
        raise UserError(f"no folder {target.parent}; create it first")
    try:
        shutil.copyfile(shipped[name], target)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror}; name another place") from error
    console.say(f"{name} copied to {target}")

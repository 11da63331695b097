"""Commands that look at data sets."""

import os
from pathlib import Path
from typing import Annotated

import typer

from aurank.cli.app import app, data_app
from aurank.cli.drawing import console, draw_bar
from aurank.cli.options import ConfigFile, Overrides


@app.command()
def doctor(file: ConfigFile, overrides: Overrides = None) -> None:
    """Check the data of a configuration: missing, broken or duplicate images, lone classes, leaks between splits."""
    from aurank.training import build_manifest, read_config

    settings = read_config(file, overrides or [])
    manifest = build_manifest(settings.data, seed=settings.seed)
    report = manifest.doctor(train_labels=settings.data.train_labels == "class", max_pixels=settings.data.max_pixels)
    console.print(str(report), highlight=False, markup=False, soft_wrap=True)
    if report.errors:
        raise SystemExit(2)


@data_app.command("check")
def check_data(
    name: Annotated[str, typer.Argument(help="sop, inaturalist2018 or vehicleid.")],
    root: Annotated[Path | None, typer.Option(help="The data folder; default $AURANK_DATA, else ./data.")] = None,
    checksums: Annotated[bool, typer.Option(help="Also compare the md5 of downloaded archives.")] = True,
) -> None:
    """Say whether a benchmark is there as published; exit code 2 if anything is missing or different."""
    from aurank.data import check_benchmark

    folder = root or Path(os.environ.get("AURANK_DATA") or "data").expanduser()
    with draw_bar(None, "checksums") as (progress, task):
        found = check_benchmark(
            name,
            folder,
            checksums=checksums,
            on_bytes=lambda done, total: progress.update(task, advance=done, total=total),
        )
    console.print(str(found), highlight=False, markup=False, soft_wrap=True)
    if not found.complete:
        raise SystemExit(2)

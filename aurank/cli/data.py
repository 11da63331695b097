"""Commands that look at data sets, and at the cache of their embeddings."""

import os
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from aurank.cli.app import app, cache_app, data_app
from aurank.cli.drawing import console, draw_bar
from aurank.cli.options import CacheOption, Overrides, size


@app.command()
def doctor(
    data: Annotated[
        str, typer.Argument(help="READER:PATH such as folder:photos, a YAML file, or a shipped one's name.")
    ],
    overrides: Overrides = None,
) -> None:
    """Check data: missing, broken or duplicate images, lone classes, leaks between splits."""
    from aurank.embedding import read_data
    from aurank.embedding.read_manifest import asks_about_classes, read_manifest

    section, seed = read_data(data, overrides or []), 0
    if section is None:
        from aurank.training import read_config

        settings = read_config(data, overrides or [])
        section, seed = settings.data, settings.seed
    manifest = read_manifest(section, seed=seed)
    report = manifest.doctor(
        train_labels=section.train_labels == "class",
        ask_classes=asks_about_classes(section, manifest),
        max_pixels=section.max_pixels,
    )
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


@cache_app.command("prune")
def prune_cache(
    most: Annotated[str, typer.Option("--max", help="How much may stay, such as 20GiB.")],
    cache: CacheOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would go, and remove nothing.")] = False,
) -> None:
    """Remove embeddings from the cache, the least recently used first, until the rest is small enough."""
    from aurank.embedding.cache import CachedSet, default_cache, prune

    root = cache or default_cache()

    def told(one: CachedSet) -> None:
        used = datetime.fromtimestamp(one.used).astimezone().isoformat(" ", "minutes")
        text = f"{'would remove' if dry_run else 'removed'} {_gib(one.num_bytes)}, last used {used}: {one.about}"
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    kept = prune(root, size("--max", most), told=told, dry_run=dry_run)
    stays = f"{len(kept):,} sets, {_gib(sum(one.num_bytes for one in kept))}, stay in {root}"
    console.print(stays, highlight=False, markup=False, soft_wrap=True)


def _gib(count: int) -> str:
    return f"{count / 2**30:.3f} GiB"

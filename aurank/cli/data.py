"""Commands that look at data sets, and at the cache of their embeddings."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from aurank.cli.app import app, cache_app, data_app
from aurank.cli.drawing import console, draw_bar
from aurank.cli.options import CacheOption, Overrides
from aurank.errors import UserError
from aurank.sizes import size_in_bytes


@app.command()
def doctor(
    data: Annotated[
        str, typer.Argument(help="READER:PATH such as folder:photos, a YAML file, or a shipped one's name.")
    ],
    overrides: Overrides = None,
) -> None:
    """Check data: missing, broken or duplicate images, lone classes, leaks between splits."""
    from aurank.commands import examine_data

    report = examine_data(data, overrides or [])
    console.say(report)
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
    from aurank.embedding.manifest_from_config import data_folder

    with draw_bar(None, "checksums") as (progress, task):

        def draw(done: int, total: int) -> None:
            progress.update(task, advance=done, total=total)

        found = check_benchmark(name, data_folder(root), checksums=checksums, on_bytes=draw)
    console.say(found)
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
    try:
        at_most = size_in_bytes(most)
    except ValueError as error:
        raise UserError(f"--max: {error}") from None

    def removed(one: CachedSet) -> None:
        used = datetime.fromtimestamp(one.used).astimezone().isoformat(" ", "minutes")
        console.say(f"{'would remove' if dry_run else 'removed'} {_gib(one.num_bytes)}, last used {used}: {one.about}")

    kept = prune(root, at_most, removed=removed, dry_run=dry_run)
    console.say(f"{len(kept):,} sets, {_gib(sum(one.num_bytes for one in kept))}, stay in {root}")


def _gib(count: int) -> str:
    return f"{count / 2**30:.3f} GiB"

"""Commands that read reports."""

from pathlib import Path
from typing import Annotated

import typer

from aurank.cli.app import app
from aurank.cli.drawing import console
from aurank.cli.options import claiming


@app.command()
@claiming(is_file=True)
def compare(
    reports: Annotated[
        list[str],
        typer.Argument(help="Two or more report.json of the same queries, or their folders; then changes of --data."),
    ],
    *,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("compare.html"),
    metric: Annotated[str, typer.Option(help="What is compared, such as mauprc or recall@1.")] = "mauprc",
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples of intervals and p-values.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    most: Annotated[int, typer.Option(min=0, help="How many queries to list, those that changed most.")] = 10,
    force: Annotated[bool, typer.Option("--force", help="Compare although protocols or distances differ.")] = False,
    data: Annotated[
        str | None, typer.Option(help="READER:PATH of the images, or a configuration; for pictures.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="The split that was measured: train, val, test or all.")] = None,
    protocol: Annotated[str | None, typer.Option(help="In place of --data: the protocol that was followed.")] = None,
    root: Annotated[
        Path | None, typer.Option(help="Folder of the protocol's data, or the one that paths of tables start from.")
    ] = None,
    query: Annotated[Path | None, typer.Option(help="In place of --data: the table of the queries.")] = None,
    gallery: Annotated[Path | None, typer.Option(help="In place of --data: the table of the gallery.")] = None,
) -> None:
    """Say whether other models are better than the first, and where.

    \b
    aurank compare runs/before runs/after
    aurank compare before after --data folder:photos --out compare.html
    """
    from aurank.commands import compare_reports
    from aurank.embedding import ImageSelection

    chances = {"resamples": resamples, "seed": seed}
    overrides = [word for word in reports if word.startswith("data.") and "=" in word]
    paths = [Path(word) for word in reports if word not in overrides]
    images = ImageSelection(data, split, protocol, root, query, gallery, overrides)
    found = compare_reports(paths, out=out, images=images, metric=metric, most=most, force=force, **chances)
    for name, comparison in found.items():
        if len(found) > 1:
            console.say(f"{name} against the first:")
        console.say(comparison)
    console.say(f"written to {out}")

"""Commands that make an index of images, change it and search it."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aurank.cli.app import app, index_app
from aurank.cli.drawing import announced, console, draw_bar, one_name, stderr_console
from aurank.cli.options import AllowIndexCode, AsJson, Drawn, FitOn, ModelToRun, Postprocess, measuring
from aurank.errors import UserError

if TYPE_CHECKING:
    from aurank.commands import PhotoHits
    from aurank.embedding import ImageSelection

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the index.")]
Roots = Annotated[
    list[Path] | None,
    typer.Option("--root", help="Where the images are now, if they were moved; again for each place they came from."),
]
WIDEST = 40  # characters of a class in a table


@index_app.command("build")
@measuring("data", "split", joined=True)
def build(
    *,
    model: ModelToRun,
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    factory: Annotated[
        str, typer.Option("--index", help="A faiss index: Flat is exact; IVF64,Flat or HNSW32 are approximate.")
    ] = "Flat",
    distance: Annotated[str, typer.Option(help="cosine, dot or euclidean.")] = "cosine",
    postprocess: Postprocess = None,
    fit_on: FitOn = None,
    embeddings: Annotated[
        Path | None, typer.Option(help="What aurank embed wrote of the same model and images, which is taken instead.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the index's training, and of the images it is measured with.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an index that is there.")] = False,
    images: "ImageSelection",
    drawn: Drawn,
) -> None:
    """Embed images and write an index of them.

    The index keeps the model. By default the images of all splits are in it.

    \b
    aurank index build --model timm:resnet18 --data folder:photos --out index
    """
    from aurank.commands import build_index

    with drawn() as running, announced("loading the model and the images"):
        made = build_index(
            model,
            images,
            out=out,
            factory=factory,
            distance=distance,
            postprocess=postprocess,
            fit_on=fit_on,
            embeddings=embeddings,
            overwrite=overwrite,
            seed=seed,
            running=running,
        )
    if made is None:
        return
    console.say(made.description)
    console.say(f"written to {out}")


@index_app.command("add")
@measuring("data", "split")
def add(
    *,
    folder: Folder,
    roots: Roots = None,
    images: "ImageSelection",
    drawn: Drawn,
) -> None:
    """Add images, and embed again those whose files have changed.

    \b
    aurank index add index --data folder:photos
    """
    from aurank.commands import ImageIndex, add_images

    with drawn() as running:
        change = add_images(folder, images, roots=roots or [], running=running)
    console.say(change)
    console.say(ImageIndex.open(folder, device="cpu").description)


@index_app.command("remove")
def remove(
    folder: Folder,
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="PATH", help="As search shows them; - reads them from stdin.")
    ] = None,
    classes: Annotated[
        list[str] | None, typer.Option("--class", help="All images of a class; may be given repeatedly.")
    ] = None,
    missing: Annotated[bool, typer.Option("--missing", help="Images whose files are gone.")] = False,
    roots: Roots = None,
) -> None:
    """Remove images, by path, by class or because they are gone.

    \b
    aurank index remove index chair/12.jpg
    aurank index remove index --class chair --missing
    """
    from aurank.commands import ImageIndex, remove_images

    if not (paths or classes or missing):
        raise UserError("say which images to remove: paths, --class NAME or --missing")
    gone = _with_stdin(paths or [])
    console.say(remove_images(folder, gone, classes=classes or [], missing=missing, roots=roots or []))
    console.say(ImageIndex.open(folder, device="cpu").description)


@app.command()
def search(
    folder: Folder,
    photos: Annotated[
        list[str], typer.Argument(metavar="PHOTO", help="Images, folders, zips; - reads a list of them from stdin.")
    ],
    k: Annotated[int, typer.Option("--k", help="How many images to find for each photo.")] = 10,
    threshold: Annotated[
        float | None, typer.Option(help="Leave out what scores less, as aurank calibrate finds it.")
    ] = None,
    classes: Annotated[
        list[str] | None, typer.Option("--class", help="Find images of this class alone; may be given repeatedly.")
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Search exactly although the index is approximate.")] = False,
    as_json: AsJson = False,
    html: Annotated[Path | None, typer.Option(help="A page (.html) to write, with pictures.")] = None,
    roots: Roots = None,
    batch: Annotated[int, typer.Option(min=1, help="Photos embedded at once.")] = 64,
    device: Annotated[str | None, typer.Option(help="Such as cuda:1 or cpu; default: cuda where there is one.")] = None,
    allow_code: AllowIndexCode = False,
) -> None:
    """Find the images of an index that are nearest to photos.

    The exit code is 2 where a photo cannot be read.

    \b
    aurank search index photo.jpg more.zip --class chair --k 5
    aurank search index photos --threshold 0.8 --html found.html
    """
    from aurank.commands import ImageIndex, RunOptions, search_photos
    from aurank.commands.galleries.search import results_json, results_page
    from aurank.files import require_writable, write_text

    if html is not None:
        require_writable(html, suffix=".html", option="--html")
    chosen = str(RunOptions(device=device).torch_device)
    wanted = _with_stdin(photos)
    index = ImageIndex.open(folder, roots=roots or [], device=chosen, allow_code=allow_code)
    with (
        draw_bar(None, "loading the model") as (progress, task),
        announced("loading the model and the photos") as loaded,
    ):

        def draw(done: int, total: int) -> None:
            loaded()
            progress.update(task, description="searching", completed=done, total=total)

        among = classes or None
        found = search_photos(
            index, wanted, k, threshold=threshold, classes=among, exact=exact, batch=batch, progress=draw
        )
    if html is not None:
        options = [("images of a list", str(k))]
        options += [] if threshold is None else [("least score", str(threshold))]
        options += [("class", name) for name in classes or []]
        page = results_page(index, found, options)
        write_text(html, page)
    if as_json:
        typer.echo(results_json(index, found))
    else:
        _print_lists(found)
        console.say(f"searched {index.description}{'; searched exactly' if exact else ''}")
    if k > len(index):
        stderr_console.say(f"--k {k} asks for more than the {len(index)} images of the index: all are listed")
    if html is not None:
        stderr_console.say(f"written to {html}")
    if any(one.error for one in found):
        raise SystemExit(2)


def _with_stdin(given: Sequence[str]) -> list[str]:
    """Return the arguments, - replaced by the lines of stdin."""
    from aurank.data.photos import read_list

    found: list[str] = []
    for one in given:
        found += read_list(sys.stdin.buffer.read()) if one == "-" else [one]
    return found


def _print_lists(found: "Sequence[PhotoHits]") -> None:
    names = [one_name(hit.class_name) for one in found for hit in one.hits]
    width = min(WIDEST, max(map(len, names), default=0))
    width = max(width, len("class")) if width else 0
    scores = max([len("score"), *(len(f"{hit.score:.4f}") for one in found for hit in one.hits)])
    for one in found:
        console.say(one_name(one.photo.path))
        if one.error:
            console.say(f"  cannot be read: {one_name(one.error)}")
        elif not one.hits:
            console.say("  nothing is close enough")
        else:
            heading = f"{'class':<{width}}  " if width else ""
            console.say(f"rank  {'score':<{scores}}  {heading}path")
        for rank, hit in enumerate(one.hits, start=1):
            label = f"{one_name(hit.class_name):<{width}}  " if width else ""
            console.say(f"{rank:>4}  {f'{hit.score:.4f}':>{scores}}  {label}{one_name(hit.path)}")

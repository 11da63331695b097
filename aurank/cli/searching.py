"""Commands that make an index of images, and search it."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from aurank.cli.app import app, index_app
from aurank.cli.drawing import console, draw_stages, one_name, progress_line, stderr_console
from aurank.cli.options import (
    AllowIndexCode,
    AsJson,
    Drawn,
    FitOn,
    IndexFolder,
    ModelToRun,
    MovedModel,
    Postprocess,
    Roots,
    argument,
    claiming,
    device_option,
    measuring,
    option,
    reads_some,
    require_search,
)
from aurank.errors import UserError

if TYPE_CHECKING:
    from aurank.commands import PhotoHits
    from aurank.embedding import ImageSelection

_WIDEST = 40  # characters of a class in a table


def _free_to_build(given: dict[str, Any]) -> None:
    from aurank.embedding.named import require_index_folder

    if (given["out"] is None) == (given["to"] is None):
        raise UserError("say where the index goes: --out FOLDER, or --to milvus:FILE_OR_URL#COLLECTION")
    if given["out"] is not None:
        require_index_folder(given["out"], overwrite=given["overwrite"])
    require_search(given["to"] or "")


@index_app.command("build")
@measuring("data", "split", joined=True)
@claiming(_free_to_build, is_file=None)
def build(
    *,
    model: ModelToRun,
    out: Path | None = option("The folder to write."),
    to: str | None = option("Instead of a folder: milvus:FILE_OR_URL#COLLECTION, such as milvus:gallery.db#photos."),
    index: str = option(
        "A faiss index: Flat is exact; IVF64,Flat or HNSW32 are approximate. In Milvus: HNSW,M=16; ef=64.",
        "--index",
        default="Flat",
    ),
    distance: str = option("cosine, dot or euclidean (l2).", default="cosine"),
    postprocess: Postprocess = None,
    fit_on: FitOn = None,
    seed: int = option("Seed of the index's training, and of the images it is measured with.", default=0),
    overwrite: bool = option("Replace an index that is there.", "--overwrite", default=False),
    images: "ImageSelection",
    drawn: Drawn,
) -> None:
    """Embed images and write an index of them.

    The index keeps the model. By default the images of all splits are in it.

    \b
    aurank index build --model timm:resnet18 --data folder:photos --out index
    """
    from aurank.commands import build_index

    with drawn() as running:
        steps = {"postprocess": postprocess, "fit_on": fit_on}
        how = {"factory": index, "distance": distance, "overwrite": overwrite, "seed": seed, "running": running}
        made = build_index(model, images, out=to or out or "", **steps, **how)
    if made is not None:
        console.say(made.description, f"written to {to or out}")


@index_app.command("add")
@measuring("data", "split")
def add(
    *, folder: IndexFolder, model: MovedModel = None, roots: Roots = None, images: "ImageSelection", drawn: Drawn
) -> None:
    """Add images, and embed again those whose files have changed.

    \b
    aurank index add index --data folder:photos
    """
    require_search(folder)
    from aurank.commands import ImageIndex, add_images

    with drawn() as running:
        change = add_images(folder, images, model=model, roots=roots or [], running=running)
    console.say(change, ImageIndex.open(folder, device="cpu").description)


@index_app.command("remove")
def remove(
    folder: IndexFolder,
    paths: list[str] | None = argument("As search shows them; - reads them from stdin.", "PATH"),
    classes: list[str] | None = option("All images of a class; may be given repeatedly.", "--class"),
    missing: bool = option("Images whose files are gone.", "--missing", default=False),
    roots: Roots = None,
) -> None:
    """Remove images, by path, by class or because they are gone.

    \b
    aurank index remove index chair/12.jpg
    aurank index remove index --class chair --missing
    """
    require_search(folder)
    from aurank.commands import ImageIndex, remove_images

    if not (paths or classes or missing):
        raise UserError("say which images to remove: paths, --class NAME or --missing")
    gone = _with_stdin(paths or [])
    console.say(remove_images(folder, gone, classes=classes or [], missing=missing, roots=roots or []))
    console.say(ImageIndex.open(folder, device="cpu").description)


@app.command()
def search(
    folder: IndexFolder,
    photos: list[str] = argument(
        "Images, folders, zips; - reads a list of them from stdin.", "PHOTO", default=..., callback=reads_some
    ),
    k: int = option("How many images to find for each photo.", "--k", default=10),
    threshold: float | None = option("Leave out what scores less, as aurank calibrate finds it."),
    classes: list[str] | None = option("Find images of this class alone; may be given repeatedly.", "--class"),
    exact: bool = option("Search exactly although the index is approximate.", "--exact", default=False),
    as_json: AsJson = False,
    html: Path | None = option("A page (.html) to write, with pictures.", suffix=".html"),
    model: MovedModel = None,
    roots: Roots = None,
    batch: int = option("Photos embedded at once.", default=64, min=1),
    device: str | None = device_option("Such as cuda:1 or cpu; default: cuda where there is one."),
    allow_code: AllowIndexCode = False,
) -> None:
    """Find the images of an index that are nearest to photos.

    The exit code is 2 where a photo cannot be read.

    \b
    aurank search index photo.jpg more.zip --class chair --k 5
    aurank search index photos --threshold 0.8 --html found.html
    """
    require_search(folder)
    from aurank.commands import ImageIndex, RunOptions, search_photos
    from aurank.commands.galleries.search import results_json, results_page
    from aurank.files import write_text

    chosen = str(RunOptions(device=device).torch_device)
    wanted = _with_stdin(photos)
    opened = ImageIndex.open(folder, model=model, roots=roots or [], device=chosen, allow_code=allow_code)
    with draw_stages("loading the model") as draw:
        found = search_photos(
            opened,
            wanted,
            k,
            threshold=threshold,
            classes=classes or None,
            exact=exact,
            batch=batch,
            progress=lambda done, total: draw("searching", done, total),
        )
    if html is not None:
        options = [("images of a list", str(k)), *(("class", name) for name in classes or [])]
        options += [] if threshold is None else [("least score", str(threshold))]
        write_text(html, results_page(opened, found, options))
    if as_json:
        typer.echo(results_json(opened, found))
    else:
        _print_lists(found)
        console.say(f"searched {opened.description}{'; searched exactly' if exact else ''}")
    if k > len(opened):
        stderr_console.say(f"--k {k} asks for more than the {len(opened)} images of the index: all are listed")
    if html is not None:
        stderr_console.say(f"written to {html}")
    if any(one.error for one in found):
        raise SystemExit(2)


@app.command()
def serve(
    folder: IndexFolder,
    host: str = option("An address of this machine; 0.0.0.0 is all of them.", default="127.0.0.1"),
    port: int = option("Of the page's address; 0 takes a free one.", default=8000),
    model: MovedModel = None,
    workers: int = option("Processes; each has the model, and all share the index.", default=1, min=1),
    token: str | None = option("What browsers ask for as a password, and programs send.", envvar="AURANK_TOKEN"),
    no_token: bool = option("Let in whoever reaches --host.", "--no-token", default=False),
    roots: Roots = None,
    device: str | None = device_option("Where the model runs, such as cuda; default: cpu."),
    allow_code: AllowIndexCode = False,
) -> None:
    """Search an index from a page in the browser, until Ctrl+C.

    Programs use its JSON API, which /openapi.json describes.

    \b
    aurank serve index --port 8000
    """
    require_search(folder)
    from aurank.serving import Served, serve

    def started(served: Served) -> None:
        progress_line.end()
        console.say(f"{served.images:,} images at {served.address} (Ctrl+C ends)")
        if token:
            stderr_console.say("Browsers ask for a name and a password: any name, and the token.")
        elif not served.is_local:
            stderr_console.say("Whoever reaches this machine can search and see the images: there is no password.")

    serve(
        folder,
        model=model,
        roots=roots or [],
        host=host,
        port=port,
        workers=workers,
        token=token,
        no_token=no_token,
        device=device,
        allow_code=allow_code,
        started=started,
    )


def _with_stdin(given: Sequence[str]) -> list[str]:
    from aurank.data.photos import read_list

    lists = [read_list(sys.stdin.buffer.read()) if one == "-" else [one] for one in given]
    return [one for several in lists for one in several]


def _print_lists(found: "Sequence[PhotoHits]") -> None:
    names = [one_name(hit.class_name) for one in found for hit in one.hits]
    width = min(_WIDEST, max(map(len, names), default=0))
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

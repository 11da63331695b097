"""Commands that make an index of images, and search it."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aurank.cli.checks import require_search
from aurank.cli.command import MOST, Call, app, command, index_app
from aurank.cli.drawing import console, draw_stages, one_name, progress_line, stderr_console
from aurank.errors import OptionRule, UserError
from aurank.files import write_text

if TYPE_CHECKING:
    from aurank.commands import PhotoHits
    from aurank.serving import Served

_WIDEST = 40  # characters of a class in a table


@command(
    index_app,
    "aurank.commands.galleries.build_index.build_index",
    without=MOST,
    joined=True,
    rules=[OptionRule("--out", excludes=("--to",))],
)
def build(call: Call, *, out: Path | None = None, to: str = "") -> None:
    """Embed images and write an index of them.

    The index keeps the model. By default the images of all splits are in it.

    aurank index build --model timm:resnet18 --data folder:photos --out index

    Args:
        out: the folder to write.
        to: instead of a folder: milvus:FILE_OR_URL#COLLECTION, such as milvus:gallery.db#photos.
    """
    from aurank.embedding.locations import require_index_folder

    if out is not None:
        require_index_folder(out, overwrite=call["overwrite"])
    elif not to:
        raise UserError("say where the index goes: --out FOLDER, or --to milvus:FILE_OR_URL#COLLECTION")
    require_search(to)
    made = call(out=to or out)
    if made is not None:
        console.say(made.description, f"written to {to or out}")


@command(index_app, "aurank.commands.galleries.build_index.add_images", without=MOST)
def add(call: Call) -> None:
    """Add images, and embed again those whose files have changed.

    aurank index add index --data folder:photos
    """
    _say_change(call, call())


@command(index_app, "aurank.commands.galleries.build_index.remove_images")
def remove(call: Call) -> None:
    """Remove images, by path, by class or because they are gone.

    aurank index remove index chair/12.jpg
    aurank index remove index --class chair --missing
    """
    if not (call.keys() & {"paths", "classes"} or call["missing"]):
        raise UserError("say which images to remove: paths, --class NAME or --missing")
    _say_change(call, call(paths=_with_stdin(call.get("paths", ()))))


def _say_change(call: Call, change: object) -> None:
    from aurank.commands import ImageIndex

    console.say(change, ImageIndex.open(call["folder"], device="cpu").description)


@command(app, "aurank.commands.galleries.search.search_photos")
def search(
    call: Call,
    folder: str,
    photos: Sequence[str],
    *,
    model: str | None = None,
    roots: Sequence[Path] = (),
    device: str | None = None,
    allow_code: bool = False,
    html: Path | None = None,
    as_json: bool = False,
) -> None:
    """Find the images of an index that are nearest to photos.

    The exit code is 2 where a photo cannot be read.

    aurank search index photo.jpg more.zip --class chair --k 5
    aurank search index photos --threshold 0.8 --html found.html

    Args:
        folder: as for `add_images`.
        photos: images, folders, zips; - reads a list of them from stdin.
        model: as for `add_images`.
        roots: as for `add_images`.
        device: as for `RunOptions`.
        allow_code: trust the model of the index: let its code run.
        html: a page (.html) to write, with pictures.
        as_json: print JSON in place of a table.
    """
    from aurank.commands import ImageIndex, RunOptions
    from aurank.commands.galleries.search import results_json, results_page

    device, k = str(RunOptions(device=device).torch_device), call["k"]
    paths = _with_stdin(photos)
    index = ImageIndex.open(folder, model=model, roots=roots, device=device, allow_code=allow_code)
    with draw_stages("loading the model") as draw:
        results = call(index=index, photos=paths, progress=lambda done, total: draw("searching", done, total))
    if html is not None:
        options = [("images of a list", str(k)), *(("class", name) for name in call.get("classes", ()))]
        options += [("least score", str(call["threshold"]))] if "threshold" in call else []
        write_text(html, results_page(index, results, options))
    if as_json:
        click.echo(results_json(index, results))
    else:
        _print_lists(results)
        console.say(f"searched {index.description}{'; searched exactly' if call['exact'] else ''}")
    if k > len(index):
        stderr_console.say(f"--k {k} asks for more than the {len(index)} images of the index: all are listed")
    if html is not None:
        stderr_console.say(f"written to {html}")
    if any(result.error for result in results):
        raise SystemExit(2)


@command(app, "aurank.serving.server.serve")
def serve(call: Call) -> None:
    """Search an index from a page in the browser, until Ctrl+C.

    Programs use its JSON API, which /openapi.json describes.

    aurank serve index --port 8000
    """

    def started(served: "Served") -> None:
        progress_line.end()
        console.say(f"{served.images:,} images at {served.address} (Ctrl+C ends)")
        if "token" in call:
            stderr_console.say("Browsers ask for a name and a password: any name, and the token.")
        elif not served.is_local:
            stderr_console.say("Whoever reaches this machine can search and see the images: there is no password.")

    call(started=started)


def _with_stdin(paths: Sequence[str]) -> list[str]:
    from aurank.data.photos import read_list

    lists = [read_list(sys.stdin.buffer.read()) if path == "-" else [path] for path in paths]
    return [path for listed in lists for path in listed]


def _print_lists(results: "Sequence[PhotoHits]") -> None:
    hits = [hit for result in results for hit in result.hits]
    width = min(_WIDEST, max([len(one_name(hit.class_name)) for hit in hits], default=0))
    width = max(width, len("class")) if width else 0
    scores = max([len("score"), *(len(f"{hit.score:.4f}") for hit in hits)])
    for result in results:
        console.say(one_name(result.photo.path))
        if result.error:
            console.say(f"  cannot be read: {one_name(result.error)}")
        elif not result.hits:
            console.say("  nothing is close enough")
        else:
            heading = f"{'class':<{width}}  " if width else ""
            console.say(f"rank  {'score':<{scores}}  {heading}path")
        for rank, hit in enumerate(result.hits, start=1):
            label = f"{one_name(hit.class_name):<{width}}  " if width else ""
            console.say(f"{rank:>4}  {f'{hit.score:.4f}':>{scores}}  {label}{one_name(hit.path)}")

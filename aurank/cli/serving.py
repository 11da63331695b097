"""The command that answers from a browser."""

from typing import Annotated

import typer

from aurank.cli.app import app
from aurank.cli.drawing import console, stderr_console
from aurank.cli.options import AllowIndexCode
from aurank.cli.searching import Folder, Roots


@app.command()
def serve(
    folder: Folder,
    host: Annotated[str, typer.Option(help="An address of this machine; 0.0.0.0 is all of them.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Of the page's address; 0 takes a free one.")] = 8000,
    roots: Roots = None,
    device: Annotated[str | None, typer.Option(help="Where the model runs, such as cuda; default: cpu.")] = None,
    allow_code: AllowIndexCode = False,
) -> None:
    """Search an index from a page in the browser, until Ctrl+C.

    Programs use its JSON API, which /openapi.json describes.

    \b
    aurank serve index --port 8000
    """
    from aurank.serving import Served, serve

    def started(served: Served) -> None:
        console.say(f"{served.images:,} images at {served.address} (Ctrl+C ends)")
        if not served.is_local:
            stderr_console.say("Whoever reaches this machine can search and see the images: there is no password.")

    serve(folder, roots=roots or [], host=host, port=port, device=device, allow_code=allow_code, started=started)

"""Commands that look at data sets, and at the cache of their embeddings."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from aurank.cli.app import app, data_app
from aurank.cli.drawing import bar, console, draw_stages, stderr_console
from aurank.cli.options import (
    ConfigFile,
    Drawn,
    Labels,
    Overrides,
    argument,
    claiming,
    measuring,
    option,
    reads,
    require_keys,
)
from aurank.errors import UserError

if TYPE_CHECKING:
    from aurank.embedding import ImageSelection

_FIXES = (
    "Findings that the table in --out leaves out, with commas: missing, unreadable, repeats, near-repeats, leaks, "
    "near-leaks, conflicts, near-conflicts, blurred, dark, tiny, odd-shapes; with --model also embeddings, labels; "
    "with --negatives suspects."
)


@app.command()
def init(
    images: str = argument(
        "A folder or zip of images, in class folders or not; or a table.", default=..., callback=reads
    ),
    overrides: Overrides = None,
    *,
    out: Path = option("The configuration to write (.yaml).", default=Path("mine.yaml")),
    cameras: str | None = option("Where id and camera stand in the paths: a regular expression.", metavar="PATTERN"),
    overwrite: bool = option("Replace --out.", "--overwrite", default=False),
) -> None:
    """Look at images and write a configuration that fits them.

    It says why beside each choice, and trains as it stands. The commands to go on with are printed.

    \b
    aurank init photos
    aurank init photos train.steps=600 data.odd_classes=keep
    aurank init people --cameras '(?P<id>[0-9]+)_(?P<camera>c[0-9])'
    """
    from aurank.files import require_absent

    require_absent(out, overwrite=overwrite)  # before what takes seconds to import
    from aurank.commands import write_first_configuration

    console.say(write_first_configuration(images, out, overrides or [], cameras=cameras, overwrite=overwrite))


@app.command()
@measuring("data")
@claiming(is_file=True)
def doctor(
    target: str | None = argument("READER:PATH such as folder:photos, a YAML file, or a shipped one's name."),
    *,
    model: str | None = option("Examine its embeddings of the images too; names as for evaluate."),
    embeddings: Path | None = option("Examine saved embeddings: .npz, or .npy with --labels.", callback=reads),
    labels: Labels = None,
    negatives: Path | None = option("Hard negatives (.parquet) of aurank mine: looked at too.", callback=reads),
    html: Path | None = option("A page (.html) to write, with pictures of what was found.", suffix=".html"),
    fix: str | None = option(_FIXES, metavar="NAMES"),
    out: Path | None = option("A table (.csv) to write, of the data without what --fix names.", suffix=".csv"),
    images: "ImageSelection",
    drawn: Drawn,
) -> None:
    """Find faults of images, labels and embeddings.

    Of images: broken, repeated, leaked from training to test, poor. Of embeddings: collapse, hubs, wrong labels.
    The exit code is 2 where there are errors, 1 where warnings name images or embeddings, else 0.

    \b
    aurank doctor folder:photos --html doctor.html
    aurank doctor folder:photos --fix unreadable,repeats --out clean.csv
    aurank doctor --embeddings rows.npz
    """
    # With --data, what stands first is an override.
    data, overrides = (target, images.overrides) if images.data is None else (images.data, images.overrides)
    if images.data is not None and target is not None:
        overrides = [target, *overrides]
    if data is not None and embeddings is None:
        require_keys(str(data), overrides)  # before what takes seconds to import
    from aurank.commands import examine_data, examine_embeddings
    from aurank.data.checks.findings import NEED_MODEL, describe_cleaning, read_fixes, write_table
    from aurank.files import write_text
    from aurank.reporting.doctor_page import doctor_page

    fixes = [] if fix is None else read_fixes(fix)
    if (fix is None) != (out is None):
        raise UserError("--fix NAMES and --out FILE.csv go together: what is left out, and the table of what stays")
    if embeddings is not None:
        for name, value in {"--model": model, "--fix": fix, "--negatives": negatives, "DATA": data}.items():
            if value is not None:
                raise UserError(f"{name} {value} has no use with --embeddings {embeddings}: leave one out")
    elif data is None:
        raise UserError("say what to examine: READER:PATH such as folder:photos, or --embeddings FILE")
    elif labels is not None:
        raise UserError(f"--labels {labels} goes with --embeddings: the labels of {data} come with the images")
    elif model is None and (needing := [name for name in fixes if name in NEED_MODEL]):
        raise UserError(f"--fix {needing[0]} goes with --model, whose embeddings show it; add one, or leave it out")
    if "suspects" in fixes and negatives is None:
        raise UserError("--fix suspects goes with --negatives FILE, which aurank mine writes; add it, or leave it out")
    if embeddings is not None:
        report = examine_embeddings(embeddings, labels)
    else:
        with drawn() as running:
            report = examine_data(str(data), overrides, model=model, table=out, negatives=negatives, running=running)
    console.say(report)
    if html is not None:
        write_text(html, doctor_page(report, command=shlex.join(["aurank", *sys.argv[1:]])))
        console.say(f"written to {html}")
    if out is not None:
        console.say(describe_cleaning(report, fixes))
        kept = report.kept(fixes)
        where = write_table(kept, out)
        console.say(f"{len(kept):,} of {report.counts.get('pairs', report.counts['images']):,} rows are in {where}")
    if report.severity:
        raise SystemExit(report.severity)


@data_app.command("check")
def check_data(
    name: str = argument("A published set, such as sop or market1501.", default=...),
    root: Path | None = option("The data folder; default: $AURANK_DATA, else ./data."),
    checksums: bool = option("Also compare the md5 of downloaded archives.", default=True),
) -> None:
    """Say whether a benchmark is there as published.

    The exit code is 2 if anything is missing or different.

    \b
    aurank data check sop --root /data
    """
    from aurank.data import check_benchmark
    from aurank.embedding.named import data_folder

    with bar("checksums") as (_, show):

        def compared(count: int, total: int) -> None:
            show("comparing checksums", advance=count, total=total)

        found = check_benchmark(name, data_folder(root), checksums=checksums, on_bytes=compared)
    console.say(found)
    if not found.complete:
        raise SystemExit(2)


@data_app.command("get")
def get_data(
    name: str = argument("A published set, such as omniglot, grocery or cub200.", default=...),
    *,
    to: Path | None = option("The data folder; default: $AURANK_DATA, else ./data."),
    url: str | None = option("A mirror: the file's address, or, of several files, that of their folder."),
) -> None:
    """Fetch a published set from its public address, and verify it.

    Given again, the command goes on where it was stopped. Sets without a public address: where to ask.

    \b
    aurank data get grocery --to /data
    """
    from aurank.data.download import fetch, find_set
    from aurank.embedding.named import data_folder

    about = find_set(name)
    if about.addresses:
        stderr_console.say(f"{about.title}, from {about.origin}; terms: {about.terms}")
    with bar("fetching") as (_, show):

        def fetched(done: int, size: int | None) -> None:
            of = "" if size is None else f" of {size:,}"
            show(f"fetching: {done:,}{of} bytes", completed=done, total=size)

        console.say(fetch(name, data_folder(to), url=url, on_bytes=fetched))


@data_app.command("prepare")
def prepare(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    out: Path = option("Folder to write, for data.prepared.", default=...),
    short_side: int | None = option("Shorter side of the images kept; default: what the transforms need.", min=1),
    jpeg: bool = option("Keep JPEGs: a fifth as large, slower, not exact.", "--jpeg", default=False),
) -> None:
    """Decode and resize all images once, to be read again and again.

    Given again, the command goes on where it was stopped, and takes new and changed originals.

    \b
    aurank data prepare mine.yaml --out prepared
    aurank train mine.yaml data.prepared=prepared
    """
    from aurank.commands import prepare_data

    with draw_stages("preparing images") as progress:
        result = prepare_data(config, out, overrides or [], short_side=short_side, jpeg=jpeg, progress=progress)
    console.say(result, f"read them by data.prepared={out}")

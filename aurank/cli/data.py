"""Commands that look at data sets."""

import shlex
import sys
from pathlib import Path

from aurank.cli.checks import require_keys
from aurank.cli.command import MOST, Call, app, command, data_app
from aurank.cli.drawing import bar, console, draw_stages, stderr_console
from aurank.errors import OptionRule, UserError
from aurank.files import require_absent, require_writable, write_text


@command(app, "aurank.commands.init.write_first_configuration")
def init(call: Call) -> None:
    """Look at images and write a configuration that fits them.

    It says why beside each choice, and trains as it stands. The commands to go on with are printed.

    aurank init photos
    aurank init photos train.steps=600 data.odd_classes=keep
    aurank init people --cameras '(?P<id>[0-9]+)_(?P<camera>c[0-9])'
    """
    require_absent(call["out"], overwrite=call["overwrite"])  # before what takes seconds to import
    console.say(call())


@command(
    app,
    "aurank.commands.doctor.examine_data",
    without=(*MOST, "split"),
    claims="file",
    rules=[
        OptionRule("--embeddings", excludes=("DATA", "--model", "--fix", "--negatives")),
        OptionRule("--labels", needs=("--embeddings",), why="else the labels come with the images"),
        OptionRule("--fix", needs=("--out",), why="the table of what stays"),
        OptionRule("--out", needs=("--fix",), why="what the table leaves out"),
    ],
)
def doctor(
    call: Call,
    data: str | None = None,
    *,
    embeddings: Path | None = None,
    labels: Path | None = None,
    html: Path | None = None,
    fix: str = "",
) -> None:
    """Find faults of images, labels and embeddings.

    Of images: broken, repeated, leaked from training to test, poor. Of embeddings: collapse, hubs, wrong labels.
    The exit code is 2 where there are errors, 1 where warnings name images or embeddings, else 0.

    aurank doctor folder:photos --html doctor.html
    aurank doctor folder:photos --fix unreadable,repeats --out clean.csv
    aurank doctor --embeddings rows.npz

    Args:
        data: READER:PATH such as folder:photos, a YAML file, or a shipped one's name.
        embeddings: examine saved embeddings: .npz, or .npy with --labels.
        labels: labels (.npy) of an .npy of embeddings.
        html: a page (.html) to write, with pictures of the findings.
        fix: findings that the table in --out leaves out, with commas: missing, unreadable, repeats, near-repeats,
            leaks, near-leaks, conflicts, near-conflicts, blurred, dark, tiny, odd-shapes; with --model also embeddings,
            labels; with --negatives suspects.
    """
    if data is not None:
        require_keys(data, call.get("overrides", ()))
    from aurank.commands import examine_embeddings
    from aurank.data.checks.findings import NEED_MODEL, describe_cleaning, read_fixes, write_table
    from aurank.reporting.doctor_page import doctor_page

    fixes = read_fixes(fix) if fix else []
    if fix:
        require_writable(call["out"], suffix=".csv")
    needed = {**dict.fromkeys(NEED_MODEL, "model"), "suspects": "negatives"}
    if lacking := [name for name in fixes if name in needed and needed[name] not in call]:
        raise UserError(
            f"--fix {lacking[0]} goes with --{needed[lacking[0]]}, which shows it; add one, or leave it out"
        )
    if embeddings is not None:
        report = examine_embeddings(embeddings, labels)
    elif data is not None:
        report = call(data=data)
    else:
        raise UserError("say what to examine: READER:PATH such as folder:photos, or --embeddings FILE")
    console.say(report)
    if html is not None:
        write_text(html, doctor_page(report, command=shlex.join(["aurank", *sys.argv[1:]])))
        console.say(f"written to {html}")
    if fix:
        console.say(describe_cleaning(report, fixes))
        clean = report.kept(fixes)
        table = write_table(clean, call["out"])
        console.say(f"{len(clean):,} of {report.counts.get('pairs', report.counts['images']):,} rows are in {table}")
    if report.severity:
        raise SystemExit(report.severity)


@command(data_app, "aurank.data.readers.published.check_benchmark", name="check", without=("path",))
def check_data(call: Call, *, root: Path | None = None) -> None:
    """Say whether a benchmark is there as published.

    The exit code is 2 if anything is missing or different.

    aurank data check sop --root /data

    Args:
        root: the data folder; default: $AURANK_DATA, else ./data.
    """
    from aurank.embedding.image_selection import data_folder

    with bar("checksums") as (_, show):
        completeness = call(
            root=data_folder(root),
            on_bytes=lambda count, total: show("comparing checksums", advance=count, total=total),
        )
    console.say(completeness)
    if not completeness.complete:
        raise SystemExit(2)


@command(data_app, "aurank.data.download.fetch", name="get", without=("root",))
def get_data(call: Call, *, to: Path | None = None) -> None:
    """Fetch a published set from its public address, and verify it.

    Given again, the command goes on where it was stopped. Sets without a public address: where to ask.

    aurank data get grocery --to /data

    Args:
        to: the data folder; default: $AURANK_DATA, else ./data.
    """
    from aurank.data.download import find_set
    from aurank.embedding.image_selection import data_folder

    about = find_set(call["name"])
    if about.addresses:
        stderr_console.say(f"{about.title}, from {about.origin}; terms: {about.terms}")
    with bar("fetching") as (_, show):

        def draw(done: int, size: int | None) -> None:
            of = "" if size is None else f" of {size:,}"
            show(f"fetching: {done:,}{of} bytes", completed=done, total=size)

        console.say(call(root=data_folder(to), on_bytes=draw))


@command(data_app, "aurank.commands.prepare.prepare_data")
def prepare(call: Call) -> None:
    """Decode and resize all images once, to be read again and again.

    Given again, the command goes on where it was stopped, and takes new and changed originals.

    aurank data prepare mine.yaml --out prepared
    aurank train mine.yaml data.prepared=prepared
    """
    with draw_stages("preparing images") as progress:
        result = call(progress=progress)
    console.say(result, f"read them by data.prepared={call['out']}")

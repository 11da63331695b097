"""What commands do beside calling their function, where they do more than print its result; named as their titles."""

import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from aurank.cli.checks import check_overrides, require_search
from aurank.cli.command import Call, typed_command
from aurank.cli.drawing import (
    bar,
    console,
    draw_stages,
    draw_training,
    listening,
    one_name,
    stderr_console,
)
from aurank.errors import UserError
from aurank.files import require_absent, require_writable, write_text
from aurank.lazy import require_libraries
from aurank.names import require_choice
from aurank.sizes import seconds

if TYPE_CHECKING:
    from aurank.commands import PhotoHits


def train(call: Call, *, out: Path | None = None, dry_run: bool = False) -> None:
    out = out or Path("runs") / call["config"].stem
    if dry_run:
        from aurank.training import read_config, rehearse

        console.say(rehearse(read_config(call["config"], call.get("overrides", ()))))
        return
    if "MASTER_ADDR" not in os.environ:  # of several processes, training looks in the first
        from aurank.embedding.locations import require_usable

        require_usable(out, call["resume"])
    with draw_training() as listener:
        result = call(out=out, listener=listener)
    if result.is_main and (skipped := ", ".join(f"{n} of {split}" for split, n in result.skipped.items() if n)):
        stderr_console.say(f"skipped, unreadable: {skipped}")
    if result.is_main and result.stopped_by is not None:
        stderr_console.say(f"stopped by a signal after step {result.steps}; all is saved, go on with --resume")
    if result.stopped_by is not None:
        raise SystemExit(128 + result.stopped_by)
    if not result.is_main:
        return
    if result.two_way:
        from aurank.embedding.image_text_pairs import describe_groups

        images = [] if result.report is None else [f"images with each other\n{result.report}"]
        console.say(describe_groups(result.two_way, *images))
    elif result.report is not None:
        console.say(result.report)
    console.say(f"written to {result.out}")


def benchmark(call: Call, *, limit: str | None = None) -> None:
    if limit is not None:
        call["limit"] = seconds(limit)
    with bar("benchmark", at_once=True) as (_, show):

        def draw(unit: object, line: dict[str, Any], done: int, total: int) -> None:
            value = line.get("error") or f"mAUPRC {line.get('mauprc', line.get('val_mauprc'))}"
            text = f"{done} of {total}: {unit}: {value}, {line['seconds']} s"
            show(text, completed=done, total=total, note=str(unit), due=True)

        complete = call(listener=draw)
    left = "" if complete else "; not all is done: the same command goes on"
    console.say(f"written to {call['out'] / 'benchmark.html'}{left}")


def tune(call: Call, *, out: Path | None = None, ranges: Path | None = None, only_list: bool = False) -> None:
    require_libraries("aurank tune", "optuna")
    from aurank.commands.tune import read_ranges, searched_ranges, value_of
    from aurank.training import read_config

    file_ranges = {} if ranges is None else read_ranges(ranges)
    if only_list:
        settings = read_config(call["config"], call.get("overrides", ()))
        table = Table("setting", "range", "now", box=None)
        for key, each in searched_ranges(settings, file_ranges).items():
            table.add_row(key, str(each), json.dumps(value_of(settings, key)))
        console.print(table)
        return

    def show(line: dict[str, Any]) -> None:
        progress.stop()  # until the next step
        value, best = ("" if each is None else f"{each:.4f}" for each in (line["value"], line["best"]))
        short = " ".join(f"{key.rpartition('.')[2]}={text}" for key, text in line["settings"].items())
        console.say(f"trial {line['number']} of {call['trials']}: {value or line['state']}, best {best}  {short}")
        if line["error"]:
            stderr_console.say(line["error"])

    out = out or Path("runs") / f"tune-{call['config'].stem}"
    with bar("searching") as (progress, draw):
        tuned = call(out=out, ranges=file_ranges, listener=show, progress=listening(draw), say=stderr_console.say)
    console.say(f"best of {tuned.trials}: mAUPRC {tuned.value:.4f} in validation, {' '.join(tuned.overrides)}")
    if tuned.at_end:
        console.say(f"at an end of its range, beyond which there may be better ones: {', '.join(tuned.at_end)}")
    console.say(f"written to {out}: best.yaml to train with, tune.html to look at")


def adapt(call: Call) -> None:
    call(listener=console.say)
    out = call.get("out", "runs/adapted")
    console.say(f"written to {out}: aurank:{out}/best to measure, search with or export, adapt.html to look at")


def profile(call: Call) -> None:
    with draw_stages("preparing") as listener:
        result = call(listener=listener)
    if result.is_main:
        console.say(result, *([f"written to {call['trace']}"] if "trace" in call else []))


def demo(call: Call) -> None:
    with draw_training() as listener:
        results, stopped_by = call(listener=listener)
    if stopped_by is not None:
        stderr_console.say("stopped by a signal; all is saved, the same command goes on")
        raise SystemExit(128 + stopped_by)
    table = Table("test digits", "mAUPRC", "Recall@1", title="aurank demo")
    for name, metrics in results.items():
        table.add_row(name.replace("_", " "), f"{metrics['mauprc']:.4f}", f"{metrics['recall@1']:.4f}")
    console.print(table)
    page = call["out"] / "run/report.html"
    console.say(f"written to {call['out'] / 'demo.json'}" + (f", to look at: {page}" if page.exists() else ""))


def export(call: Call) -> None:
    from aurank.embedding.locations import require_checkpoint, resolve_checkpoint
    from aurank.exporting.folder import require_export

    require_export(call["to"], call["out"], int8=call["int8"], overwrite=call["overwrite"])
    require_checkpoint(resolve_checkpoint(call["checkpoint"].removeprefix("aurank:")))
    console.say(*call(), f"written to {call['out']}")


def config(_: Call, configuration: str, overrides: Sequence[str] = ()) -> None:
    from aurank.config import dump_config
    from aurank.training import read_config

    console.print(dump_config(read_config(configuration, overrides)), end="", highlight=False, markup=False)


def ls(_: Call, text: str = "") -> None:
    from aurank.config import shipped_configs

    table = Table("name", "about", box=None)
    for name, path in sorted(shipped_configs().items()):
        about = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("#").strip()
        if text.lower() in f"{name}\n{about}".lower():
            table.add_row(name, about)
    console.print(table)


def cp(_: Call, name: str, target: Path) -> None:
    from aurank.config import shipped_configs

    shipped = shipped_configs()
    require_choice("the configuration", name, shipped)
    target = target / f"{Path(name).name}.yaml" if target.is_dir() else target
    require_absent(target)
    text = shipped[name].read_text(encoding="utf-8")
    head = "".join(re.findall(r"\A(?:#.*\n)*", text))
    # What was measured is of the shipped file alone; a line that goes on begins with three blanks.
    comments = re.sub(r"(?m)^# (?:Command|Result|To beat|Hardware|Chosen): .*\n(?:#   .*\n)*", "", head)
    comments += f"# Command:  {shlex.join(['aurank', 'train', str(target)])}   (copied from {name})\n"
    write_text(target, comments + text.removeprefix(head))
    console.say(f"{name} copied to {target}")


def init(call: Call) -> None:
    require_absent(call["out"], overwrite=call["overwrite"])  # before what takes seconds to import
    console.say(call())


def doctor(
    call: Call,
    data: str | None = None,
    *,
    embeddings: Path | None = None,
    labels: Path | None = None,
    html: Path | None = None,
    fix: str = "",
) -> None:
    if data is not None:
        check_overrides(data, call.get("overrides", ()))
    from aurank.commands import examine_embeddings
    from aurank.data.checks.findings import NEED_MODEL, describe_cleaning, read_fixes, write_table
    from aurank.reporting.doctor_page import doctor_page

    fixes = read_fixes(fix) if fix else []
    if fix:
        require_writable(call["out"], suffix=".csv")
    needed = {**dict.fromkeys(NEED_MODEL, "model"), "suspects": "negatives"}
    if lacking := [name for name in fixes if name in needed and needed[name] not in call]:
        raise UserError(f"--fix {lacking[0]} needs --{needed[lacking[0]]}, which shows it; add one, or leave it out")
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
    elif report.findings:
        console.say("--html FILE shows pictures, consequences and remedies")
    if fix:
        console.say(describe_cleaning(report, fixes))
        clean = report.kept(fixes)
        table = write_table(clean, call["out"])
        console.say(f"{len(clean):,} of {report.counts.get('pairs', report.counts['images']):,} rows are in {table}")
    if report.severity:
        raise SystemExit(report.severity)


def data_check(call: Call, *, root: Path | None = None) -> None:
    from aurank.embedding.image_selection import data_folder

    with bar("checksums") as (_, show):
        draw = partial(show, "comparing checksums")
        completeness = call(root=data_folder(root), on_bytes=lambda count, total: draw(advance=count, total=total))
    console.say(completeness)
    if not completeness.complete:
        raise SystemExit(2)


def data_get(call: Call, *, to: Path | None = None) -> None:
    from aurank.data.download import PUBLIC_SETS
    from aurank.embedding.image_selection import data_folder

    about = PUBLIC_SETS.get(call["name"])
    if about is not None and about.addresses:
        stderr_console.say(f"{about.title}, from {about.origin}; terms: {about.terms}")
    with bar("fetching") as (_, show):
        draw = partial(show, "fetching")
        console.say(call(root=data_folder(to), on_bytes=lambda done, size: draw(completed=done, total=size)))


def data_prepare(call: Call) -> None:
    with draw_stages("preparing images") as progress:
        console.say(call(progress=progress), f"read them by data.prepared={call['out']}")


def evaluate(call: Call) -> None:
    from aurank.reporting.results import PAGE, REPORT, require_free, require_same_command

    out = call["out"]
    require_free(out)
    if not call["overwrite"]:
        require_same_command(out, typed_command())
    report = call()
    if call.group is None or call.group.rank == 0:
        console.say(report)
        console.say(f"written to {out / REPORT}" + (f", to look at: {out / PAGE}" if call["report"] else ""))


def embed(call: Call) -> None:
    from aurank.data.shards import require_out

    require_out(call["out"], mapped="map" in call)
    if (embedded := call()) is not None:
        console.say("{} embeddings of {} dimensions written to {}".format(*embedded.embeddings.shape, call["out"]))


def mine(call: Call) -> None:
    out = call["out"]
    _, report = call()
    mined = f"{out / 'negatives.parquet'}, to look at: {out / 'mine.html'}"
    console.say(report, f"written to {out / 'selected.csv' if 'select' in call else mined}")


def probe(call: Call) -> None:
    call(finished=lambda name, result: console.say(result, f"written to {call['out'] / f'{name}.json'}"))


def compare(call: Call, reports: Sequence[str], *, out: Path | str = "compare.html") -> None:
    overrides = [word for word in reports if word.startswith("data.") and "=" in word]
    paths = [Path(word) for word in reports if word not in overrides]
    call["images"] = replace(call["images"], overrides=overrides)
    with draw_stages("reading reports") as draw:
        comparisons = call(paths=paths, out=out, progress=partial(draw, "resampling"))
    for name, comparison in comparisons.items():
        console.say(*([f"{name} against the first:"] if len(comparisons) > 1 else []), comparison)
    console.say(f"written to {out}")


def calibrate(call: Call) -> None:
    from aurank.reporting.results import CALIBRATION, require_free, require_same_command

    if (out := call.get("out")) is not None:
        require_free(out, CALIBRATION)
        if not call["overwrite"]:
            require_same_command(out, typed_command(), CALIBRATION[0])
    console.say(call())
    if out is not None:
        console.say(f"written to {out / 'calibration.json'}, to look at: {out / 'calibrate.html'}")


def index_build(call: Call) -> None:
    from aurank.embedding.locations import require_index_folder

    if not (out := call["out"]).startswith("milvus:"):
        require_index_folder(Path(out), overwrite=call["overwrite"])
    require_search(out)
    if (index := call()) is not None:
        console.say(index.description, f"written to {out}")


def index_remove(call: Call) -> None:
    console.say(call(paths=_with_stdin(call.get("paths", ()))))


def search(call: Call, *, html: Path | None = None, explain: bool = False, as_json: bool = False) -> None:
    from aurank.commands import ImageIndex, RunOptions
    from aurank.commands.galleries.search import results_json, results_page

    options, k, paths = call["index"], call["k"], _with_stdin(call.get("photos", ()))
    device = RunOptions(device=options.get("device")).torch_device
    index = ImageIndex.open(**{**options, "device": str(device)})
    with draw_stages("loading the model") as draw:
        results = call(index=index, photos=paths, progress=partial(draw, "searching"))
    if html is not None:
        facts = [("images of a list", str(k)), *(("class", name) for name in call.get("classes", ()))]
        facts += [("least score", str(call["threshold"]))] if "threshold" in call else []
        write_text(html, results_page(index, results, facts, explained=explain))
        stderr_console.say(f"written to {html}")
    if as_json:
        click.echo(results_json(index, results))
    else:
        _print_lists(results)
        console.say(f"searched {index.description}{'; searched exactly' if call['exact'] else ''}")
    if k > len(index):
        stderr_console.say(f"--k {k} asks for more than the {len(index)} images of the index: all are listed")
    if any(result.error for result in results):
        raise SystemExit(2)


def serve(call: Call) -> None:
    def started(address: str, images: int, is_local: bool) -> None:
        console.say(f"{images:,} images at {address} (Ctrl+C ends)")
        if "token" in call:
            stderr_console.say("Browsers ask for a name and a password: any name, and the token.")
        elif not is_local:
            stderr_console.say("Whoever reaches this machine can search and see the images: there is no password.")

    call(started=started)


def _with_stdin(paths: Sequence[str]) -> list[str]:
    from aurank.data.photos import read_list

    lists = [read_list(sys.stdin.buffer.read()) if path == "-" else [path] for path in paths]
    return [path for listed in lists for path in listed]


def _print_lists(results: "Sequence[PhotoHits]") -> None:
    names = [one_name(hit.class_name) for result in results for hit in result.hits]
    width = min(40, max(map(len, ["class", *names])))
    for result in results:
        error = one_name(result.error or "nothing is close enough")
        heading = f"rank  {'score':>9}  {'class':<{width}}  path" if result.hits else f"  {error}"
        console.say(one_name(result.photo.path), heading)
        for rank, hit in enumerate(result.hits, start=1):
            console.say(f"{rank:>4}  {hit.score:>9.4f}  {one_name(hit.class_name):<{width}}  {one_name(hit.path)}")

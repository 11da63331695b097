"""What is drawn while a command runs."""

import json
import math
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import category as category_of

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from aurank.errors import AurankWarning, UserError
from aurank.files import write_text

if TYPE_CHECKING:
    from aurank.distributed import ProcessGroup

LONGEST_LINE = 4000
QUIET = 30.0  # seconds between two lines of progress where there is no terminal
_TURNING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"

# Of a validation, as far as it has them.
SHOWN = {"mauprc": "mAUPRC", "recall@1": "Recall@1", "mean_recall": "mean recall"}
SHOWN |= {"image_to_text/recall@1": "Recall@1 of texts", "text_to_image/recall@1": "of images"}


class Terminal(Console):
    """A console on which no text that came from a file, a name or another library can move the cursor or lie."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)

    def say(self, content: object) -> None:
        """Print plain text: nothing in it is taken for markup, and long lines are left to the terminal."""
        self.print(str(content), highlight=False, markup=False, soft_wrap=True)


def printable(text: str) -> str:
    """The text with its control characters written out, as \\x1b, and its longest lines cut in the middle.

    So too the characters that turn the direction of writing around, and what is no character.
    """
    controls = set(filter(is_control, text))
    escapes = {ord(one): one.encode("unicode_escape", "surrogatepass").decode("ascii") for one in controls}
    lines, half = text.translate(escapes).split("\n"), LONGEST_LINE // 2
    return "\n".join(line if len(line) <= LONGEST_LINE else f"{line[:half]}…{line[-half:]}" for line in lines)


def one_name(text: str) -> str:
    """The text of a name on one line, its line breaks and tabs written out."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def is_control(character: str) -> bool:
    """Whether a character is written to a terminal for what it does there, line breaks and tabs aside."""
    return character not in "\n\t" and (category_of(character) in ("Cc", "Cs") or character in _TURNING)


console, stderr_console = Terminal(), Terminal(stderr=True, highlight=False)


@contextmanager
def draw_warnings() -> Iterator[None]:
    """A context in which aurank's warnings are lines as its other notices are, of one process of several."""

    def show(message: Warning | str, category: type[Warning], *where: Any, **lines: Any) -> None:
        if not issubclass(category, AurankWarning):
            usual(printable(str(message)), category, *where, **lines)
        elif os.environ.get("RANK", "0") == "0":
            stderr_console.say(message)

    with warnings.catch_warnings():
        usual, warnings.showwarning = warnings.showwarning, show
        yield


@contextmanager
def draw_bar(total: int | None, text: str) -> Iterator[tuple[Progress, Any]]:
    """A bar on a terminal, nothing elsewhere, and the task whose fields it shows."""
    named, noted = TextColumn("{task.description}"), TextColumn("{task.fields[note]}")
    columns = (named, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), noted)
    with Progress(*columns, console=stderr_console, disable=not stderr_console.is_terminal) as progress:
        yield progress, progress.add_task(text, total=total, note="")


@contextmanager
def announced(text: str, after: float = 5.0) -> Iterator[Callable[[], None]]:
    """Print a line where no terminal shows a bar and the context takes longer than `after` seconds.

    It gives what is to be called when the thing is done earlier than the context.
    """
    timer = threading.Timer(after, stderr_console.say, [text])
    if not stderr_console.is_terminal and os.environ.get("RANK", "0") == "0":
        timer.start()
    try:
        yield timer.cancel
    finally:
        timer.cancel()


def _lines(progress: Progress, *, at_once: bool) -> Callable[..., None]:
    """What prints lines of progress where there is no terminal: the first at once, or after 30 s, and one each 30 s.

    It is given each line with its stage, at whose start one is due too, but not in a command's first 30 s; `due_now`
    prints one whatever the time.
    """
    quiet_until = -math.inf if at_once else time.monotonic() + QUIET
    due, last = quiet_until, ""

    def tell(text: str, stage: str, *, due_now: bool = False) -> None:
        nonlocal due, last
        now, begins, last = time.monotonic(), stage != last, stage
        if progress.disable and (due_now or now >= (quiet_until if begins else due)):
            due = now + QUIET
            stderr_console.say(text)

    return tell


@contextmanager
def draw_training() -> Iterator[Callable[[str, dict[str, Any]], None]]:
    """A listener that draws training: a bar on a terminal, elsewhere a line now and then; lines for validations."""
    with draw_bar(None, "training") as (progress, task):
        tell = _lines(progress, at_once=True)

        def listen(kind: str, values: dict[str, Any]) -> None:
            if kind == "step":
                loss = "" if values["loss"] is None else f"loss {values['loss']:.4f}  "
                note = f"{loss}lr {values['lr']:.1e}  {values['images_per_second']:.0f} images/s"
                progress.update(task, completed=values["step"], total=values["steps"], note=note)
                is_last = values["step"] == values["steps"]
                tell(f"step {values['step']} of {values['steps']}: {note}", "", due_now=is_last)
            elif kind == "validation":
                mark = " (best)" if values["improved"] else ""
                shown = ", ".join(f"{label} {values[name]:.4f}" for name, label in SHOWN.items() if name in values)
                stderr_console.say(f"step {values['step']}: validation {shown}{mark}")
            elif kind == "notice":
                stderr_console.say(values["text"])
            elif kind == "testing":
                text = f"measuring {values['images']:,} test images"
                progress.update(task, description=text, note="")
                tell(text, "", due_now=True)
            elif kind == "measuring":
                progress.update(task, description=values["stage"], completed=values["done"], total=values["total"])
                tell(f"{values['stage']}: {values['done']:,} of {values['total']:,}", "")

        yield listen


@contextmanager
def draw_stages() -> Iterator[Callable[[str, int, int], None]]:
    """What draws a stage, how much of it is done and how much there is: a bar on a terminal, elsewhere a few lines."""
    with draw_bar(None, "") as (progress, task):
        tell = _lines(progress, at_once=False)

        def listen(stage: str, done: int, total: int) -> None:
            progress.update(task, description=stage, completed=done, total=total)
            tell(f"{stage}: {done:,} of {total:,}", stage)

        yield listen


@contextmanager
def draw_measuring(
    given: dict[str, Any], finished: Callable[[str, Any], None] | None = None, *, group: "ProcessGroup | None" = None
) -> Iterator[Any]:
    """Give `RunOptions` that draw one bar a stage on a terminal, elsewhere lines of a run that takes a while.

    Args:
        given: the options of a command by name.
        finished: may print, as no bar is drawn meanwhile.
        group: processes that share the work; rank 0 alone draws and is given what is finished.
    """
    from aurank.commands import RunOptions
    from aurank.embedding.cache import default_cache

    flags = {name: f"--{name.replace('_', '-')}" for name, value in given.items() if value}
    typed = [flag if given[name] is True else f"{flag} {given[name]}" for name, flag in flags.items()]
    options = dict(given)
    if options.pop("no_cache", "cache" not in options):
        if options.get("cache") is not None:
            raise UserError(f"--cache {options['cache']} and --no-cache exclude each other; give one of them")
    else:
        options["cache"] = options["cache"] or default_cache()
    if group is not None:
        options["group"] = group
        if group.rank > 0:
            yield RunOptions(**options, given=typed)
            return
    with draw_bar(None, "preparing") as (progress, task):
        tell = _lines(progress, at_once=False)

        def listen(stage: str, done: int, total: int) -> None:
            progress.start()  # again, after a result
            progress.update(task, description=stage, completed=done, total=total)
            tell(f"{stage}: {done:,} of {total:,}", stage)

        def pause(name: str, result: Any) -> None:
            progress.stop()
            if group is not None:
                group.leave()  # the others are done
            if finished is not None:
                finished(name, result)

        yield RunOptions(**options, listener=listen, say=stderr_console.say, finished=pause, given=typed)


def keep_baselines(found: dict[str, dict[str, float]], out: Path) -> None:
    """Write baselines.json, and print its main metrics as a table."""
    from aurank.reporting.results import BASELINES

    write_text(out / BASELINES, json.dumps(found, indent=1) + "\n")
    # Of metrics that were chosen otherwise the first few.
    names = [name for name in ("mauprc", "recall@1") if name in found["model"]] or list(found["model"])[:3]
    table = Table("", *(SHOWN.get(name, name) for name in names), title="beside baselines")
    for label, metrics in found.items():
        row = [f"{metrics[name]:.4f}" if name in metrics else "" for name in names]
        table.add_row(label.replace("_", " "), *row)
    console.print(table)

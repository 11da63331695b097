"""What is drawn while a command runs."""

import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO
from unicodedata import category as category_of

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from aurank.errors import AurankWarning, UserError
from aurank.files import write_text

LONGEST_LINE = 4000
_TURNING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


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
    shown = "".join(_escaped(one) if is_control(one) else one for one in text)
    half = LONGEST_LINE // 2
    lines = shown.split("\n")
    return "\n".join(line if len(line) <= LONGEST_LINE else f"{line[:half]}…{line[-half:]}" for line in lines)


def is_control(character: str) -> bool:
    """Whether a character is written to a terminal for what it does there, line breaks and tabs aside."""
    return character not in "\n\t" and (category_of(character) in ("Cc", "Cs") or character in _TURNING)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


QUIET = 30.0  # seconds between two lines of progress where there is no terminal

console = Terminal()
stderr_console = Terminal(stderr=True, highlight=False)

# Of a validation, as far as it has them.
SHOWN = {
    "mauprc": "mAUPRC",
    "recall@1": "Recall@1",
    "mean_recall": "mean recall",
    "image_to_text/recall@1": "Recall@1 of texts",
    "text_to_image/recall@1": "of images",
}


@contextmanager
def draw_warnings() -> Iterator[None]:
    """A context in which aurank's warnings are lines as its other notices are, of one process of several."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not issubclass(category, AurankWarning):
            usual(printable(str(message)), category, filename, lineno, file, line)
        elif os.environ.get("RANK", "0") == "0":
            stderr_console.say(message)

    with warnings.catch_warnings():
        usual, warnings.showwarning = warnings.showwarning, show
        yield


@contextmanager
def draw_bar(total: int | None, text: str) -> Iterator[tuple[Progress, Any]]:
    """A bar on a terminal, nothing elsewhere, and the task whose fields it shows."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=stderr_console, disable=not stderr_console.is_terminal) as progress:
        yield progress, progress.add_task(text, total=total, note="")


class _Lines:
    """Lines of progress where there is no terminal: the first at once, or after the first 30 s, and one each 30 s."""

    def __init__(self, progress: Progress, *, at_once: bool) -> None:
        self._progress = progress
        self._quiet_until = -math.inf if at_once else time.monotonic() + QUIET
        self._next, self._stage = self._quiet_until, ""

    def tell(self, text: str, stage: str = "") -> None:
        """Print the text where a line is due; one is at the start of a stage too, but not in a command's first 30 s."""
        now = time.monotonic()
        begins, self._stage = stage != self._stage, stage
        if self._progress.disable and now >= (self._quiet_until if begins else self._next):
            self._next = now + QUIET
            stderr_console.say(text)


@contextmanager
def draw_training() -> Iterator[Callable[[str, dict[str, Any]], None]]:
    """A listener that draws training: a bar on a terminal, elsewhere a line now and then; lines for validations."""
    with draw_bar(None, "training") as (progress, task):
        lines = _Lines(progress, at_once=True)

        def listen(kind: str, values: dict[str, Any]) -> None:
            if kind == "step":
                loss = "" if values["loss"] is None else f"loss {values['loss']:.4f}  "
                note = f"{loss}lr {values['lr']:.1e}  {values['images_per_second']:.0f} images/s"
                progress.update(task, completed=values["step"], total=values["steps"], note=note)
                lines.tell(f"step {values['step']} of {values['steps']}: {note}")
            elif kind == "validation":
                mark = " (best)" if values["improved"] else ""
                shown = ", ".join(f"{label} {values[name]:.4f}" for name, label in SHOWN.items() if name in values)
                stderr_console.say(f"step {values['step']}: validation {shown}{mark}")
            elif kind == "notice":
                stderr_console.say(values["text"])
            elif kind == "testing":
                progress.update(task, description=f"testing on {values['images']} images", note="")

        yield listen


@contextmanager
def draw_measuring(given: dict[str, Any], finished: Callable[[str, Any], None] | None = None) -> Iterator[Any]:
    """Give `RunOptions` that draw one bar a stage on a terminal, elsewhere lines of a run that takes a while.

    Args:
        given: the options batch, device, cache, no_cache and allow_code, as far as a command has them.
        finished: called with each result and its name; it may print, as no bar is drawn meanwhile.
    """
    from aurank.commands import RunOptions
    from aurank.embedding.cache import default_cache

    cache, is_off = given["cache"], given["no_cache"]
    if is_off and cache is not None:
        raise UserError(f"--cache {cache} and --no-cache exclude each other; give one of them")
    flags = {name: f"--{name.replace('_', '-')}" for name, value in given.items() if value}
    with draw_bar(None, "preparing") as (progress, task):
        lines = _Lines(progress, at_once=False)

        def listen(stage: str, done: int, total: int) -> None:
            progress.start()  # again, after a result
            progress.update(task, description=stage, completed=done, total=total)
            lines.tell(f"{stage}: {done:,} of {total:,}", stage)

        def pause(name: str, result: Any) -> None:
            progress.stop()
            if finished is not None:
                finished(name, result)

        yield RunOptions(
            batch=given["batch"],
            device=given["device"],
            cache=None if is_off else cache or default_cache(),
            allow_code=given.get("allow_code", False),
            listener=listen,
            say=stderr_console.say,
            finished=pause,
            given=[flag if given[name] is True else f"{flag} {given[name]}" for name, flag in flags.items()],
        )


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

"""What is drawn while a command runs."""

import math
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from unicodedata import category as category_of

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from aurank.errors import AurankWarning

if TYPE_CHECKING:
    from aurank.distributed import ProcessGroup

QUIET = 10.0  # seconds between two lines of progress where there is no terminal
_TURNING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"

# Of a validation, as far as it has them.
SHOWN = {"mean_recall": "mean recall", "mauprc": "mAUPRC", "recall@1": "Recall@1"}
SHOWN |= {"image_to_text/recall@1": "Recall@1 of texts", "text_to_image/recall@1": "of images"}


class Terminal(Console):
    """A console on which no text that came from a file, a name or another library can move the cursor or lie."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)

    def say(self, *contents: object) -> None:
        """Print plain texts: nothing in them is taken for markup, and long lines are left to the terminal."""
        for content in contents:
            self.print(str(content), highlight=False, markup=False, soft_wrap=True)


def printable(text: str) -> str:
    """Return the text with its control characters written out, as \\x1b."""
    controls = set(filter(is_control, text))
    return text.translate({ord(each): each.encode("unicode_escape", "surrogatepass").decode() for each in controls})


def one_name(text: str) -> str:
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def is_control(character: str) -> bool:
    return character not in "\n\t" and (category_of(character) in ("Cc", "Cs") or character in _TURNING)


console, stderr_console = Terminal(), Terminal(stderr=True, highlight=False)


@contextmanager
def draw_warnings() -> Iterator[None]:
    def show(message: Warning | str, category: type[Warning], *where: Any, **lines: Any) -> None:
        if not issubclass(category, AurankWarning):
            usual(printable(str(message)), category, *where, **lines)
        elif os.environ.get("RANK", "0") == "0":
            stderr_console.say(message)

    with warnings.catch_warnings():
        usual, warnings.showwarning = warnings.showwarning, show
        yield


class ProgressLine:
    """What the command does: a line every `QUIET` seconds without a terminal, and at an interrupt."""

    text, next_time = "", 0.0

    @contextmanager
    def told(self, remedy: str) -> Iterator[None]:
        """While entered, an interrupt says where the command was, and the remedy."""
        self.text, self.next_time = "", time.monotonic() + QUIET
        try:
            yield
        except KeyboardInterrupt:
            if os.environ.get("RANK", "0") == "0":
                stopped = f"stopped at {self.text}" if self.text else "stopped"
                stderr_console.say("; ".join(filter(None, [stopped, remedy])))
            raise

    def tell(self, text: str, *, due: bool = False) -> None:
        self.text = text
        if not stderr_console.is_terminal and (due or time.monotonic() >= self.next_time):
            self.next_time = time.monotonic() + QUIET
            stderr_console.say(text)


progress_line = ProgressLine()


@contextmanager
def bar(text: str, *, at_once: bool = False) -> Iterator[tuple[Progress, Callable[..., None]]]:
    is_first, last_stage = at_once, ""

    def show(line: str, stage: str = "", *, due: bool = False, **fields: Any) -> None:
        nonlocal is_first, last_stage
        progress.start()  # again, after a result
        if stage != last_stage or fields.get("completed", math.inf) < progress.tasks[0].completed:
            progress.reset(task)
        progress.update(task, **fields)
        left = progress.tasks[0].time_remaining
        progress_line.tell(f"{line}, {timedelta(seconds=left)} left" if left else line, due=due or is_first)
        is_first, last_stage = False, stage

    before, progress_line.text = progress_line.text, text
    with Progress(
        *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()),
        TextColumn("{task.fields[note]}"),
        console=stderr_console,
        disable=not stderr_console.is_terminal,
        get_time=time.monotonic,
        speed_estimate_period=math.inf,
    ) as progress:
        task = progress.add_task(text, total=None, note="")
        yield progress, show
    progress_line.text = before


@contextmanager
def draw_training() -> Iterator[Callable[[str, dict[str, Any]], None]]:
    with bar("training", at_once=True) as (_, show):

        def listen(kind: str, values: dict[str, Any]) -> None:
            if kind == "step":
                step, steps = values["step"], values["steps"]
                loss = "" if values["loss"] is None else f"loss {values['loss']:.4f}  "
                note = f"{loss}lr {values['lr']:.1e}  {values['images_per_second']:.0f} images/s"
                show(f"step {step} of {steps}: {note}", due=step == steps, completed=step, total=steps, note=note)
            elif kind == "validation":
                mark = " (best)" if values["improved"] else ""
                shown = ", ".join(f"{label} {values[name]:.4f}" for name, label in SHOWN.items() if name in values)
                stderr_console.say(f"step {values['step']}: validation {shown}{mark}")
            elif kind == "notice":
                stderr_console.say(values["text"])
            elif kind == "testing":
                text = f"measuring {values['images']:,} test images"
                show(text, due=True, description=text, note="", completed=0, total=values["images"])
            elif kind == "measuring":
                stage, done, total = values["stage"], values["done"], values["total"]
                show(f"{stage}: {done:,} of {total:,}", description=stage, completed=done, total=total)

        yield listen


def listening(show: Callable[..., None]) -> Callable[[str, int, int], None]:
    """Return what shows a stage and how much of it is done."""

    def listen(stage: str, done: int, total: int) -> None:
        show(f"{stage}: {done:,} of {total:,}", stage, description=stage, completed=done, total=total)

    return listen


@contextmanager
def draw_stages(text: str) -> Iterator[Callable[[str, int, int], None]]:
    with bar(text) as (_, show):
        yield listening(show)


@contextmanager
def draw_measuring(
    options: dict[str, Any], finished: Callable[[str, Any], None] | None = None, *, group: "ProcessGroup | None" = None
) -> Iterator[Any]:
    """Give `RunOptions` that draw one bar a stage on a terminal, elsewhere lines of a run that takes a while."""
    from aurank.commands import RunOptions
    from aurank.embedding.cache import default_cache

    options = dict(options)
    if not options.pop("no_cache", True):
        options.setdefault("cache", default_cache())
    if group is not None:
        options["group"] = group
        if group.rank > 0:
            yield RunOptions(**options)
            return
    with bar("preparing") as (progress, show):

        def pause(name: str, result: Any) -> None:
            progress.stop()
            if group is not None:
                group.leave()  # the others are done
            if finished is not None:
                finished(name, result)

        yield RunOptions(**options, listener=listening(show), say=stderr_console.say, finished=pause)

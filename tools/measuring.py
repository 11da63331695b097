"""What the benchmarks share: seconds of a step, memory of this process, and a measurement in a process of its own."""

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def parser_of(usage: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """Return a parser with an option for each default: a value of its type, or several of a list's; False is a flag."""
    parser = argparse.ArgumentParser(description=usage, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        several, option = isinstance(default, list), f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(option, action="store_true")
        else:
            kind = type(default[0] if several else default)
            parser.add_argument(option, type=kind, nargs="*" if several else None, default=default)
    return parser


def resident_megabytes(field: str) -> float:
    """VmRSS (now), VmHWM (most so far) or RssAnon (of this process alone), as the kernel counts them."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def forget_peak() -> None:
    """Start the peak of resident memory anew."""
    with contextlib.suppress(OSError):  # where it may not be written, the peak of the imports counts too
        Path("/proc/self/clear_refs").write_text("5")


def seconds(step: Callable[[], object]) -> float:
    """How long one call takes."""
    return timed(step)[0][0]


def timed(step: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[tuple[float, float], Any]:
    """Return the seconds of one call by the clock and of this process's processor time, and its result."""
    wall, processor = time.perf_counter(), time.process_time()
    result = step(*arguments, **options)
    return (time.perf_counter() - wall, time.process_time() - processor), result


def alone(one: str, given: argparse.Namespace, **changed: object) -> dict[str, Any]:
    """Return what this tool prints as JSON for --one in a new process; "failure" with its last words where it fails."""
    words = []
    for name, value in {**vars(given), "one": one, **changed}.items():
        if value not in (None, False, []):
            values = [] if value is True else value if isinstance(value, list) else [value]
            words += [f"--{name.replace('_', '-')}", *map(str, values)]
    done = subprocess.run([sys.executable, sys.argv[0], *words], capture_output=True, text=True)
    if done.returncode:
        return {"failure": done.stderr.strip() or "killed"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found

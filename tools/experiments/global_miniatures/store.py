"""What was measured: one finished run a line of a JSON Lines file, found again by what was asked of it."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aurank.files import write_text

Line = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One run: of which experiment, which row of it, with what settings and seed."""

    experiment: str
    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    def __str__(self) -> str:
        settings = " ".join(f"{key}={value}" for key, value in self.settings.items() if key != "overrides")
        return f"{self.experiment}: {self.name} {settings} seed {self.seed}".replace("  ", " ")


class Store:
    """The lines of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        self.lines: list[Line] = [json.loads(line) for line in text.splitlines()]

    def find(self, run: Run) -> Line | None:
        """The line of a run; None before it has finished."""
        wanted = json.loads(json.dumps(asdict(run)))
        return next((line for line in self.lines if all(line[key] == value for key, value in wanted.items())), None)

    def append(self, run: Run, found: Line) -> None:
        """Nothing; the file is written anew and renamed, so that a kill leaves no half line."""
        self.lines.append({**asdict(run), **found})
        write_text(self.path, "".join(json.dumps(line) + "\n" for line in self.lines))

    def of(self, experiment: str, name: str | None = None) -> list[Line]:
        """The finished runs of an experiment, or of one row of it, less those that failed."""
        return [
            line
            for line in self.lines
            if line["experiment"] == experiment and name in (None, line["name"]) and "error" not in line
        ]

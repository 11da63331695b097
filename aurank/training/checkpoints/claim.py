"""What a run leaves in its folder beside its results: its lock, and what a killed run left half written."""

import contextlib
import re
import shutil
from pathlib import Path

from aurank.claim import LOCK

# A run's own files, half written, and the folder in which those of a report are made.
_TEMPORARY = re.compile(r"\..+\.(pt|yaml|json|parquet|png)\.([0-9a-f]{12}){1,2}\.part")


def is_passing(path: Path) -> bool:
    """Return whether a file in the folder of a run is its lock, or one that a killed run left half written."""
    # A file that is gone was such a one: rank 0 removes them while others look.
    return path.name == LOCK or (_TEMPORARY.fullmatch(path.name) is not None and not path.is_dir())


def remove_temporaries(out: Path) -> None:
    """Remove what a killed run left half written; only where it writes, for runs of others may lie in ``out``."""
    for left in [*out.glob(".*.part"), *out.glob("two_way/*/.*.part")]:
        with contextlib.suppress(OSError):
            if _TEMPORARY.fullmatch(left.name):
                shutil.rmtree(left) if left.is_dir() else left.unlink()

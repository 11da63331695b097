"""The files of an evaluation: made whole beside their names, then renamed."""

import contextlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aurank.errors import AurankError, UserError
from aurank.files import ABANDONED, remove_temporaries, require_writable, temporary_name, write_text

if TYPE_CHECKING:  # torch is not imported to see whether a folder is free
    from aurank.evaluation import Report

REPORT, PER_QUERY = "report.json", "per_query.parquet"
PAGE, PER_CLASS = "report.html", "per_class.csv"
STEPS = "postprocessing.safetensors"
CALIBRATION = "calibration.json", "calibrate.html"


def require_free(out: Path, names: Sequence[str] = (REPORT, PER_QUERY, PAGE, PER_CLASS)) -> None:
    for name in names:
        if (out / name).is_dir():
            raise UserError(f"--out {out}: {name} is a folder there; move it away, or name another --out")
    require_writable(out / names[0])
    if REPORT in names and all((out / name).exists() for name in ("config.yaml", "metrics.jsonl")):
        raise UserError(f"--out {out} holds a training run, and its {REPORT} would be overwritten; name another folder")


def require_same_command(out: Path, command: str | None, name: str = REPORT) -> bool:
    if not (out / name).exists():
        return False
    made_by = None
    with contextlib.suppress(OSError, ValueError, AttributeError):  # another file, or a damaged one
        made_by = json.loads((out / name).read_bytes()).get("command")
    if made_by != command:
        by = "something else" if made_by is None else f"another command ({made_by})"
        raise UserError(
            f"--out {out} holds the result of {by}: name another folder, or add --overwrite to replace that result"
        )
    return True


def write_results(report: "Report", out: Path, *, overwrite: bool = False, page: str | None = None) -> None:
    """Write report.json, per_query.parquet and per_class.csv; until all are whole, `out` stays as it is.

    `page` is written as report.html; that of an earlier result goes. Without labels there is no per_class.csv.

    Raises:
        UserError: `out` holds a training run, a folder of one of the names, or, without `overwrite`, the result of
            another command.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from aurank.evaluation import evaluate
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_results(evaluate(np.eye(2)[[0, 0, 1, 1]], [5, 5, 6, 6]), Path(folder))
        ...     sorted(file.name for file in Path(folder).iterdir())
        ['per_class.csv', 'per_query.parquet', 'report.json']
    """
    require_free(out)
    if not overwrite:
        require_same_command(out, report.command)
    save_results(report, out, page=page)


def save_results(report: "Report", out: Path, *, page: str | None = None) -> None:
    from aurank.reporting.tables import class_csv

    # Beside their final names, so that only renaming is left.
    staging = temporary_name(out / REPORT)
    try:
        staging.mkdir(parents=True)
        remove_temporaries(out, REPORT, age=ABANDONED)
        report.save(staging / REPORT)
        report.write_per_query(staging / PER_QUERY)
        if page is not None:
            write_text(staging / PAGE, page)
        if "label" in report.per_query:
            write_text(staging / PER_CLASS, class_csv(report))
        for name in (STEPS, PAGE, PER_CLASS):  # of an earlier report
            (out / name).unlink(missing_ok=True)
        for name in (PER_QUERY, PER_CLASS, PAGE, REPORT):
            if (staging / name).exists():
                (staging / name).replace(out / name)
    except (OSError, AurankError) as error:
        raise AurankError(
            f"cannot write to {out} ({error}); mend that and give the command again (train with --resume), or "
            "name another --out: cached embeddings are not computed again"
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        with contextlib.suppress(OSError):  # it is not empty
            out.rmdir()

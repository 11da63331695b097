"""The files of an evaluation: made whole beside their names, then renamed."""

import contextlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aurank.errors import AurankError, UserError
from aurank.files import ABANDONED, remove_temporaries, replacing, require_writable, temporary_name, write_text

if TYPE_CHECKING:  # whether a folder is free is looked at without torch
    from aurank.evaluation import Report

REPORT, PER_QUERY, CURVE = "report.json", "per_query.parquet", "pr_curve.png"
PAGE, PER_CLASS = "report.html", "per_class.csv"
BASELINES, STEPS, CODES = "baselines.json", "postprocessing.safetensors", "codes.png"
CALIBRATION = "calibration.json", "calibration.csv", "calibrate.html"


def require_free(out: Path, names: Sequence[str] = (REPORT, PER_QUERY, CURVE, PAGE, PER_CLASS)) -> None:
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
    with contextlib.suppress(OSError, ValueError, AttributeError):  # something else, or damaged
        made_by = json.loads((out / name).read_bytes()).get("command")
    if made_by != command:
        by = "something else" if made_by is None else f"another command ({made_by})"
        remedy = "name another folder, or add --overwrite to replace that result"
        raise UserError(f"--out {out} holds the result of {by}: {remedy}")
    return True


def write_results(report: "Report", out: Path, *, overwrite: bool = False, page: str | None = None) -> None:
    """Write report.json, per_query.parquet, per_class.csv and pr_curve.png; until all are whole, `out` stays as it is.

    `page` is written as report.html; one of an earlier result goes. Without labels there is no per_class.csv.

    Raises UserError where `out` holds a training run, a folder of one of the names, or, without `overwrite`, the result
    of another command, which may have come since this one began.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from aurank.evaluation import evaluate
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_results(evaluate(np.eye(2)[[0, 0, 1, 1]], [5, 5, 6, 6]), Path(folder))
        ...     sorted(file.name for file in Path(folder).iterdir())
        ['per_class.csv', 'per_query.parquet', 'pr_curve.png', 'report.json']
    """
    require_free(out)
    if not overwrite:
        require_same_command(out, report.command)
    save_results(report, out, page=page)


def save_results(report: "Report", out: Path, *, page: str | None = None) -> None:
    from aurank.reporting.charts import draw_codes, draw_curve  # matplotlib takes most of a second
    from aurank.reporting.tables import class_csv

    # Beside the names they are given in the end, so that only renaming is left.
    staging = temporary_name(out / REPORT)
    try:
        staging.mkdir(parents=True)
        remove_temporaries(out, REPORT, age=ABANDONED)
        report.save(staging / REPORT)
        report.write_per_query(staging / PER_QUERY)
        if report.curve is not None:
            with replacing(staging / CURVE) as file:
                file.write(draw_curve(report))
        else:  # of cut lists; an earlier picture would be of something else
            (out / CURVE).unlink(missing_ok=True)
        if report.codes:
            with replacing(staging / CODES) as file:
                file.write(draw_codes(report.codes))
        if page is not None:
            write_text(staging / PAGE, page)
        if "label" in report.per_query:
            write_text(staging / PER_CLASS, class_csv(report))
        for name in (BASELINES, STEPS, CODES, PAGE, PER_CLASS):  # they stand beside the metrics of another report
            (out / name).unlink(missing_ok=True)
        for name in (PER_QUERY, PER_CLASS, CURVE, CODES, PAGE, REPORT):
            if (staging / name).exists():
                (staging / name).replace(out / name)
    except (OSError, AurankError) as error:
        raise AurankError(
            f"cannot write to {out} ({error}); mend that and give the command again (train with --resume), or "
            "name another --out: what the cache holds is not embedded again"
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        with contextlib.suppress(OSError):  # it holds the files, or what was there before
            out.rmdir()

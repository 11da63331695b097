"""Several processes give the bits of one, whoever holds which rows, and none waits for one that is gone."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from aurank.evaluation import evaluate

# Run by every member: it writes its report, or its error, to its own file.
MEMBER = """
import os, signal, sys, time
import numpy as np, torch, torch.distributed as dist
from datetime import timedelta
import aurank

folder, mode, rank, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
dist.init_process_group(
    "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size, timeout=timedelta(seconds=120)
)
rows, labels = np.load(f"{folder}/rows.npy"), np.load(f"{folder}/labels.npy")
cuts = [0, 7, *(len(rows) * (member + 1) // size for member in range(1, size))]  # uneven shards
own = slice(cuts[rank], cuts[rank + 1])

def told(kind, error, trace):
    sys.__excepthook__(kind, error, trace)
    time.sleep(2)  # gloo may abort a process whose partner leaves while it still speaks

if mode != "die":
    sys.excepthook = told
half = len(rows) // 2
small = {"max_memory": "256KiB"}
if mode == "copies":
    report = aurank.evaluate(rows[:half], labels[:half], torch.from_numpy(rows[half:]), labels[half:], **small)
elif mode == "one side":  # shards of queries, the whole gallery everywhere; other threads and memory on each rank
    torch.set_num_threads(1 + rank)
    part = slice(0, 60) if rank == 0 else slice(60, half)
    both = torch.from_numpy(np.stack([labels, labels], axis=1))
    report = aurank.evaluate(
        rows[part], both[part][:, 0], rows[half:], labels[half:], max_memory=f"{256 * (1 + rank)}KiB", distance="dot"
    )
elif mode == "text":  # no member knows all the names
    report = aurank.evaluate(rows[own], [f"class {label}" for label in labels[own]], **small)
elif mode == "almost copies":
    rows[3, 0] += 1e-6 * rank
    report = aurank.evaluate(rows, labels, **small)
elif mode == "other types":
    report = aurank.evaluate(rows[own].astype([np.float32, np.float64][rank]), labels[own], **small)
elif mode == "other settings":
    report = aurank.evaluate(rows[own], labels[own], junk=[rank], **small)
elif mode == "die":
    def die(done, total):
        if rank == size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.2)
    aurank.evaluate(rows[own], labels[own], max_memory="64KiB", progress=die)
else:
    report = aurank.evaluate(rows[own], labels[own], **small)
report.save(f"{folder}/report-{rank}.json")
"""


def start(folder: Path, mode: str, size: int) -> list["subprocess.Popen[str]"]:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 24)).astype(np.float32)
    rows[200:300] = rows[100:200] + np.float32(1e-7) * rng.normal(size=(100, 24)).astype(np.float32)
    rows[300:] = rows[:100]
    np.save(folder / "rows.npy", rows)
    np.save(folder / "labels.npy", rng.integers(0, 50, 400) - 2**40)
    command = [sys.executable, "-c", MEMBER, str(folder), mode]
    return [
        subprocess.Popen([*command, str(rank), str(size)], stderr=subprocess.PIPE, text=True) for rank in range(size)
    ]


def run(folder: Path, mode: str, size: int) -> None:
    for member in start(folder, mode, size):
        said = member.communicate(timeout=300)[1]
        assert member.returncode == 0, said


@pytest.mark.parametrize("size", [2, 4])
def test_shards_on_several_processes_give_the_report_of_one(size: int, tmp_path: Path) -> None:
    run(tmp_path, "shards", size)
    evaluate(np.load(tmp_path / "rows.npy"), np.load(tmp_path / "labels.npy")).save(tmp_path / "alone.json")
    expected = (tmp_path / "alone.json").read_bytes()
    for rank in range(size):
        assert (tmp_path / f"report-{rank}.json").read_bytes() == expected


def test_text_labels_are_the_same_names_on_all_processes(tmp_path: Path) -> None:
    run(tmp_path, "text", 2)
    labels = [f"class {label}" for label in np.load(tmp_path / "labels.npy")]
    evaluate(np.load(tmp_path / "rows.npy"), labels).save(tmp_path / "alone.json")
    for rank in range(2):
        assert (tmp_path / f"report-{rank}.json").read_bytes() == (tmp_path / "alone.json").read_bytes()


def test_equal_rows_on_all_processes_count_once(tmp_path: Path) -> None:
    run(tmp_path, "copies", 2)
    rows, labels = np.load(tmp_path / "rows.npy"), np.load(tmp_path / "labels.npy")
    evaluate(rows[:200], labels[:200], rows[200:], labels[200:]).save(tmp_path / "alone.json")
    assert json.loads((tmp_path / "report-0.json").read_text())["num_queries"] == 200
    for rank in range(2):
        assert (tmp_path / f"report-{rank}.json").read_bytes() == (tmp_path / "alone.json").read_bytes()


def test_shards_of_queries_meet_a_gallery_that_every_process_has(tmp_path: Path) -> None:
    run(tmp_path, "one side", 2)
    rows, labels = np.load(tmp_path / "rows.npy"), np.load(tmp_path / "labels.npy")
    evaluate(rows[:200], labels[:200], rows[200:], labels[200:], distance="dot").save(tmp_path / "alone.json")
    for rank in range(2):
        assert (tmp_path / f"report-{rank}.json").read_bytes() == (tmp_path / "alone.json").read_bytes()


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("almost copies", "all ranks gave the same query labels and ids, but other embeddings"),
        (
            "other types",
            "the types and widths of the query side .* must be the same on all ranks: rank 0 has .*float32",
        ),
        ("other settings", "junk must be the same on all ranks"),
    ],
)
def test_processes_that_do_not_agree_are_all_told_so(mode: str, message: str, tmp_path: Path) -> None:
    for member in start(tmp_path, mode, 2):
        said = member.communicate(timeout=300)[1]
        assert member.returncode == 1
        assert re.search(f"UserError: {message}", said), said


def test_a_process_that_dies_ends_the_others_with_a_message(tmp_path: Path) -> None:
    members = start(tmp_path, "die", 2)
    members[1].communicate(timeout=300)
    assert members[1].returncode == -signal.SIGKILL
    before = time.monotonic()
    said = members[0].communicate(timeout=60)[1]
    assert time.monotonic() - before < 30
    assert members[0].returncode == 1
    assert "AurankError: evaluation stopped on rank 0 of 2: another rank is gone" in said
    assert not list(tmp_path.glob("report-*"))

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

pytestmark = pytest.mark.slow
# Run by every process: for each mode it writes its report, or the error that all of them get, to its own file.
MEMBER = """
import os, signal, sys, time
import numpy as np, torch, torch.distributed as dist
from datetime import timedelta
import aurank
from aurank.errors import UserError
from aurank.evaluation.engine import ranks

try:
    from aurank.evaluation.engine import codes
except ImportError:
    codes = None

folder, rank, size, *modes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]
dist.init_process_group(
    "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size, timeout=timedelta(seconds=120)
)
if rank and codes:  # one processor multiplies in float32, the others in int8
    ranks.FEWEST, codes.int8_speed = 0, lambda dim: 100.0
rows, labels = np.load(f"{folder}/rows.npy"), np.load(f"{folder}/labels.npy")
cuts = [0, 7, *(len(rows) * (member + 1) // size for member in range(1, size))]  # uneven shards
own = slice(cuts[rank], cuts[rank + 1])
half = len(rows) // 2
small = {"max_memory": "256KiB"}

def measure(mode):
    torch.set_num_threads(1)
    if mode == "copies":
        return aurank.evaluate(rows[:half], labels[:half], torch.from_numpy(rows[half:]), labels[half:], **small)
    if mode == "one side":  # shards of queries, the whole gallery everywhere; other threads and memory on each rank
        torch.set_num_threads(1 + rank)
        edges = [0, 60, 130, half]
        part = slice(edges[rank], edges[rank + 1])
        both = torch.from_numpy(np.stack([labels, labels], axis=1))
        memory = f"{256 * (1 + rank)}KiB"
        return aurank.evaluate(
            rows[part], both[part][:, 0], rows[half:], labels[half:], max_memory=memory, distance="dot"
        )
    if mode == "text":  # no process knows all the names
        return aurank.evaluate(rows[own], [f"class {label}" for label in labels[own]], **small)
    if mode == "almost copies":
        return aurank.evaluate(rows + np.float32(1e-6 * rank), labels, **small)
    if mode == "other types":
        return aurank.evaluate(rows[own].astype([np.float32, np.float64, np.float32][rank]), labels[own], **small)
    if mode == "other settings":
        return aurank.evaluate(rows[own], labels[own], junk=[rank], **small)
    if mode == "die":
        def die(done, total):
            if rank == size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.2)
        return aurank.evaluate(rows[own], labels[own], max_memory="64KiB", progress=die)
    return aurank.evaluate(rows[own], labels[own], **small)

for mode in modes:
    try:
        measure(mode).save(f"{folder}/{mode}-{rank}.json")
    except UserError as error:
        open(f"{folder}/{mode}-{rank}.txt", "w").write(str(error))
"""
REFUSED = {
    "almost copies": "all ranks gave the same query labels and ids, but other embeddings",
    "other types": "the types and widths of the query side .* must be the same on all ranks: rank 0 has .*float32",
    "other settings": "junk must be the same on all ranks",
}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int, str]], float]:
    """Three processes that went through every mode, refused ones in between, until the last one died.

    Their folder; what each returned and printed; and how many seconds the others lived on.
    """
    folder, chance = tmp_path_factory.mktemp("three"), np.random.default_rng(0)
    rows = chance.normal(size=(400, 24)).astype(np.float32)
    rows[200:300] = rows[100:200] + np.float32(1e-7) * chance.normal(size=(100, 24)).astype(np.float32)
    rows[300:] = rows[:100]
    np.save(folder / "rows.npy", rows)
    np.save(folder / "labels.npy", chance.integers(0, 50, 400) - 2**40)
    modes = ["shards", *REFUSED, "text", "copies", "one side", "die"]
    members = [
        subprocess.Popen(
            [sys.executable, "-c", MEMBER, str(folder), str(rank), "3", *modes], stderr=subprocess.PIPE, text=True
        )
        for rank in range(3)
    ]
    printed = [members[2].communicate(timeout=300)[1]]
    before = time.monotonic()
    printed = [member.communicate(timeout=60)[1] for member in members[:2]] + printed
    ended = [(member.returncode, text) for member, text in zip(members, printed, strict=True)]
    return folder, ended, time.monotonic() - before


@pytest.mark.parametrize("mode", ["shards", "text", "copies", "one side"])
def test_three_processes_give_the_report_of_one(mode: str, three: tuple[Path, list[tuple[int, str]], float]) -> None:
    folder = three[0]
    rows, labels = np.load(folder / "rows.npy"), np.load(folder / "labels.npy")
    alone = {
        "shards": lambda: evaluate(rows, labels),
        "text": lambda: evaluate(rows, [f"class {label}" for label in labels]),
        "copies": lambda: evaluate(rows[:200], labels[:200], rows[200:], labels[200:]),
        "one side": lambda: evaluate(rows[:200], labels[:200], rows[200:], labels[200:], distance="dot"),
    }[mode]()
    alone.save(folder / "alone.json")
    expected = (folder / "alone.json").read_bytes()
    assert [(folder / f"{mode}-{rank}.json").read_bytes() for rank in range(3)] == [expected] * 3, three[1]
    if mode == "copies":  # equal rows on all processes count once
        assert json.loads((folder / "copies-0.json").read_text())["num_queries"] == 200


@pytest.mark.parametrize("mode", REFUSED)
def test_processes_that_disagree_all_get_the_reason(
    mode: str, three: tuple[Path, list[tuple[int, str]], float]
) -> None:
    for rank in range(3):
        assert re.match(REFUSED[mode], (three[0] / f"{mode}-{rank}.txt").read_text())


def test_a_process_that_dies_ends_the_others(three: tuple[Path, list[tuple[int, str]], float]) -> None:
    folder, ended, lived_on = three
    assert ended[2][0] == -signal.SIGKILL, ended[2][1]
    assert ended[0][0] != 0 != ended[1][0]
    assert lived_on < 30
    assert not list(folder.glob("die-*"))

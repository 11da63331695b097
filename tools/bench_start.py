"""How long commands take that compute next to nothing, beside `import torch`.

    python tools/bench_start.py [--rounds 7]

Medians over rounds that run every line once, and ratios to `import torch`: of the clock, and of the CPU, which other
work on the machine disturbs less. The first round, which reads from the disk, is left out.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from measuring import seconds

EVALUATE = ["-m", "aurank", "evaluate", "--model", "embeddings:rows.npz", "--overwrite", "--out", "out"]
COMMANDS = {
    "import torch": ["-c", "import torch"],
    "aurank config digits/soprc": ["-m", "aurank", "config", "digits/soprc"],
    "aurank train --out FULL": ["-m", "aurank", "train", "digits/soprc", "--out", "."],
    "aurank search INDEX GONE": ["-m", "aurank", "search", "gone", "gone.jpg"],
    "aurank evaluate": EVALUATE,
    "aurank evaluate --no-report": [*EVALUATE, "--no-report"],
}
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--rounds", type=int, default=7)
with tempfile.TemporaryDirectory() as folder:
    np.savez(
        Path(folder, "rows.npz"), embeddings=np.random.default_rng(0).normal(size=(60, 8)), labels=np.arange(60) // 4
    )
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for _ in range(parser.parse_args().rounds + 1):
        for name, words in COMMANDS.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            command = [sys.executable, *words]
            clock = seconds(partial(subprocess.run, command, cwd=folder, capture_output=True))
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            taken[name].append((clock, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
torch = np.median(taken["import torch"][1:], axis=0)
for name, values in taken.items():
    clock, cpu = np.median(values[1:], axis=0)
    print(f"{name:28} {clock:6.2f} s, {clock / torch[0]:5.2f} × torch; CPU {cpu:6.2f} s, {cpu / torch[1]:5.2f} ×")

"""How long commands take that compute next to nothing, beside `import torch`: python tools/bench_start.py [ROUNDS]

Medians over rounds (7; a first one is left out), and ratios, of the clock and of the CPU, which others disturb less.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

COMMANDS = {
    "import torch": "-c __import__('torch')",
    "aurank config digits/soprc": "-m aurank config digits/soprc",
    "aurank search INDEX PHOTO, no INDEX": "-m aurank search gone gone.jpg",
    "aurank evaluate": "-m aurank evaluate --model embeddings:rows.npz --overwrite --out out",
    "aurank evaluate --no-report": "-m aurank evaluate --model embeddings:rows.npz --overwrite --out out --no-report",
}
with tempfile.TemporaryDirectory() as folder:
    rows = np.random.default_rng(0).normal(size=(60, 8))
    np.savez(Path(folder, "rows.npz"), embeddings=rows, labels=np.arange(60) // 4)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for _ in range(int((sys.argv[1:] or [7])[0]) + 1):
        for name, words in COMMANDS.items():
            before = os.times()
            subprocess.run([sys.executable, *words.split()], cwd=folder, capture_output=True)
            used = np.subtract(os.times(), before)
            taken[name].append((used[4], used[2] + used[3]))
torch = np.median(taken["import torch"][1:], axis=0)
for name, values in taken.items():
    clock, cpu = np.median(values[1:], axis=0)
    print(f"{name:36} {clock:6.2f} s, {clock / torch[0]:5.2f} × torch; CPU {cpu:6.2f} s, {cpu / torch[1]:5.2f} ×")

"""Where and with what something was measured."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch


def surroundings() -> dict[str, Any]:
    """Device, cores, threads, torch and commit."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU"
    return {
        "device": device,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "commit": commit(),
    }


def commit() -> str:
    """The checkout's commit, "-dirty" where it has changes; "unknown" without git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"

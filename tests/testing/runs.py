"""Comparing what runs leave behind."""

import json
from pathlib import Path
from typing import Any

import torch
from testing.tiny import STEPS

from aurank.embedding.stored.checkpoint import load_checkpoint

# A loss of a low temperature, or Adam, would make much of the last digits, in which sums of chunks differ.
EXACT: dict[str, Any] = {
    "model": {"params": {}, "freeze_batch_norm": True},
    "optim": {"name": "sgd", "lr": 0.05, "clip_norm": 0.5, "warmup_steps": 0},
}


def weights(out: Path) -> dict[str, torch.Tensor]:
    encoder: dict[str, torch.Tensor] = load_checkpoint(out / "last.safetensors")["encoder"]
    return encoder


def records(out: Path, split: str) -> list[dict[str, Any]]:
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["split"] == split]


def assert_same_run(out: Path, other: Path, *, ignore: tuple[str, ...] = ("workers",), log_every: int = 1) -> None:
    log = (out / "metrics.jsonl").read_bytes()
    assert log == (other / "metrics.jsonl").read_bytes()
    steps = [record["step"] for record in map(json.loads, log.splitlines()) if record["split"] == "train"]
    assert steps == list(range(log_every, STEPS + 1, log_every))
    for name in ("last.safetensors", "best.safetensors"):
        assert_equal(load_checkpoint(out / name), load_checkpoint(other / name), ignore)
    assert (out / "report.json").read_bytes() == (other / "report.json").read_bytes()


def assert_equal(left: object, right: object, ignore: tuple[str, ...], path: str = "") -> None:
    assert type(left) is type(right), path
    if isinstance(left, torch.Tensor):
        assert torch.equal(left, right), path
    elif isinstance(left, dict):
        assert list(left) == list(right), path
        for key in left:
            if key not in ignore:
                assert_equal(left[key], right[key], ignore, f"{path}.{key}")
    elif isinstance(left, list | tuple):
        assert len(left) == len(right), path
        for place, (one, other) in enumerate(zip(left, right, strict=True)):
            assert_equal(one, other, ignore, f"{path}[{place}]")
    else:
        assert left == right, path

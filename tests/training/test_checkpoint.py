import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aurank.errors import UserError
from aurank.training.checkpoint import (
    CONTENT,
    FORMAT,
    load_checkpoint,
    random_state,
    resolve_checkpoint,
    restore_random_state,
    save_checkpoint,
)


def content(**parts: Any) -> dict[str, Any]:
    """A checkpoint with everything that belongs there, empty but for ``parts``."""
    empty = {name: kinds[0]() for name, kinds in CONTENT.items()}
    return {**empty, **parts}


def test_every_random_generator_continues_where_it_stood(tmp_path: Path) -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002

    draw()
    save_checkpoint(tmp_path / "state.pt", content(random=[random_state()]))
    expected = draw()
    draw()
    restore_random_state(load_checkpoint(tmp_path / "state.pt")["random"][0])
    assert draw() == expected


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 cut"])
def test_a_broken_file_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "last.pt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"last\.pt is truncated or not an aurank checkpoint") as caught:
        load_checkpoint(path)
    assert "\n" not in str(caught.value)


def test_a_truncated_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint(path, content(encoder={"weights": torch.zeros(1000)}))
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(UserError, match="truncated"):
        load_checkpoint(path)


def test_a_missing_or_foreign_or_future_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint at"):
        load_checkpoint(tmp_path / "none.pt")
    torch.save({"weights": 1}, tmp_path / "foreign.pt")
    with pytest.raises(UserError, match="no format number"):
        load_checkpoint(tmp_path / "foreign.pt")
    torch.save({"format": FORMAT + 1}, tmp_path / "future.pt")
    with pytest.raises(UserError, match=f"format {FORMAT + 1}.*upgrade aurank"):
        load_checkpoint(tmp_path / "future.pt")


def test_a_checkpoint_of_before_samplers_had_a_state_and_models_texts_is_read(tmp_path: Path) -> None:
    whole = content(format=FORMAT, tokeniser=None)
    older = {key: value for key, value in whole.items() if key not in ("sampler", "tokeniser")}
    torch.save(older, tmp_path / "last.pt")
    assert load_checkpoint(tmp_path / "last.pt") == whole


@pytest.mark.parametrize("name", [name for name in CONTENT if name not in ("sampler", "miner", "tokeniser")])
def test_a_checkpoint_that_lacks_a_part_or_holds_another_type_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "last.pt"
    whole = content(format=FORMAT)
    torch.save({key: value for key, value in whole.items() if key != name}, path)
    with pytest.raises(UserError, match=rf"last\.pt is not a complete aurank checkpoint: '{name}' is missing"):
        load_checkpoint(path)
    torch.save({**whole, name: 3}, path)
    with pytest.raises(UserError, match=f"'{name}' is of type int, expected"):
        load_checkpoint(path)
    torch.save({**whole, "format": "1"}, path)
    with pytest.raises(UserError, match="no format number"):
        load_checkpoint(path)


def test_a_checkpoint_cannot_run_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "owned",))  # type: ignore[return-value]

    torch.save({"format": FORMAT, "evil": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(UserError, match="not an aurank checkpoint"):
        load_checkpoint(tmp_path / "evil.pt")
    assert not (tmp_path / "owned").exists()


def test_a_full_disk_leaves_the_previous_checkpoint_valid(tmp_path: Path) -> None:
    """The limit on file size makes the kernel itself refuse the second, larger checkpoint."""
    script = f"""
import resource, signal, sys
from pathlib import Path
import torch
from aurank.errors import AurankError
from aurank.training.checkpoint import CONTENT, save_checkpoint
path = Path({str(tmp_path / "last.pt")!r})
empty = {{name: kinds[0]() for name, kinds in CONTENT.items()}}
save_checkpoint(path, {{**empty, "encoder": {{"weights": torch.ones(10)}}}})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    save_checkpoint(path, {{"weights": torch.zeros(1_000_000)}})
except AurankError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"cannot save {tmp_path / 'last.pt'}")
    assert "is untouched" in done.stdout
    assert done.stdout.count("\n") == 1
    assert torch.equal(load_checkpoint(tmp_path / "last.pt")["encoder"]["weights"], torch.ones(10))
    assert [path.name for path in tmp_path.iterdir()] == ["last.pt"]


def test_a_name_without_suffix_or_a_folder_finds_the_file(tmp_path: Path) -> None:
    assert resolve_checkpoint(tmp_path / "best") == tmp_path / "best.pt"
    assert resolve_checkpoint(str(tmp_path / "last.pt")) == tmp_path / "last.pt"
    assert resolve_checkpoint(tmp_path) == tmp_path / "best.pt"

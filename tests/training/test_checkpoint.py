import random
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from testing.runs import assert_equal
from testing.tiny import tiny_config

import aurank
from aurank.commands import evaluate_model
from aurank.embedding.from_config import build_encoder
from aurank.embedding.stored.checkpoint import (
    CONTENT,
    FORMAT,
    WEIGHTS,
    as_trained,
    load_checkpoint,
    resolve_checkpoint,
    save_checkpoint,
)
from aurank.errors import UserError
from aurank.training import read_config
from aurank.training.checkpoints.state import Progress, random_state, restore_random_state


def content(**parts: Any) -> dict[str, Any]:
    """A checkpoint with everything that belongs there, empty but for ``parts`` and a configuration."""
    empty = {name: (None if type(None) in kinds else kinds[0]()) for name, kinds in CONTENT.items()}
    return {**empty, "config": tiny_config(), **parts}


def of_before(**parts: Any) -> dict[str, Any]:
    """The same as it was written before checkpoints had sums."""
    return {"format": 1, **{name: value for name, value in content(**parts).items() if name != "data"}}


def test_every_random_generator_continues_where_it_stood(tmp_path: Path) -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002

    draw()
    state = random_state()  # checking types draws as well, in tests
    save_checkpoint(tmp_path / "state.pt", content(random=[state]))
    saved = load_checkpoint(tmp_path / "state.pt")["random"][0]
    restore_random_state(state)
    expected = draw()
    draw()
    restore_random_state(saved)
    assert draw() == expected


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 cut"])
def test_a_broken_file_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "last.pt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"last\.pt: cannot be read as a checkpoint of aurank") as caught:
        load_checkpoint(path)
    assert "\n" not in str(caught.value)


def test_a_truncated_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint(path, content(encoder={"weights": torch.zeros(1000)}))
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(UserError, match=r"last\.pt: cannot be read"):
        load_checkpoint(path)


def test_a_missing_or_foreign_or_future_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint at"):
        load_checkpoint(tmp_path / "none.pt")
    torch.save({"weights": 1}, tmp_path / "foreign.pt")
    with pytest.raises(UserError, match="cannot be read as a checkpoint of aurank"):
        load_checkpoint(tmp_path / "foreign.pt")
    for sums in ({}, {"checksums": {"progress": "of another kind"}}):
        torch.save({"format": FORMAT + 1, **sums}, tmp_path / "future.pt")
        with pytest.raises(UserError, match=f"format {FORMAT + 1}.*upgrade aurank"):
            load_checkpoint(tmp_path / "future.pt")


def test_a_checkpoint_of_before_samplers_had_a_state_and_models_texts_is_read(tmp_path: Path) -> None:
    older = {key: value for key, value in of_before().items() if key not in ("sampler", "miner", "tokeniser")}
    torch.save(older, tmp_path / "last.pt")
    assert load_checkpoint(tmp_path / "last.pt") == {
        **content(),
        "config": as_trained(content()["config"]),
        "format": 1,
    }


@pytest.mark.parametrize("name", [name for name in CONTENT if name not in ("sampler", "miner", "tokeniser", "data")])
def test_a_checkpoint_that_lacks_a_part_or_holds_another_type_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "last.pt"
    whole = of_before()
    torch.save({key: value for key, value in whole.items() if key != name}, path)
    with pytest.raises(UserError, match=rf"last\.pt is not a complete aurank checkpoint: '{name}' is missing"):
        load_checkpoint(path)
    torch.save({**whole, name: 3}, path)
    with pytest.raises(UserError, match=f"'{name}' is of type int, expected"):
        load_checkpoint(path)
    torch.save({**whole, "format": "1"}, path)
    with pytest.raises(UserError, match="cannot be read as a checkpoint of aurank"):
        load_checkpoint(path)


def test_a_checkpoint_cannot_run_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "owned",))  # type: ignore[return-value]

    torch.save({"format": FORMAT, "evil": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(UserError, match="it would run"):
        load_checkpoint(tmp_path / "evil.pt")
    assert not (tmp_path / "owned").exists()


@pytest.mark.slow
def test_a_full_disk_leaves_the_previous_checkpoint_valid(tmp_path: Path) -> None:
    """The limit on file size makes the kernel itself refuse the second, larger checkpoint."""
    script = f"""
import resource, signal, sys
from pathlib import Path
import torch
from aurank.errors import AurankError
from aurank.embedding.stored.checkpoint import CONTENT, save_checkpoint
path = Path({str(tmp_path / "last.pt")!r})
empty = {{name: None if type(None) in kinds else kinds[0]() for name, kinds in CONTENT.items()}}
save_checkpoint(path, {{**empty, "config": {tiny_config()!r}, "encoder": {{"weights": torch.ones(10)}}}})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    save_checkpoint(path, {{"encoder": torch.zeros(1_000_000)}})
except AurankError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"cannot save {tmp_path / 'last.pt'}: File too large; ")
    assert "is untouched" in done.stdout
    assert done.stdout.count("\n") == 1
    assert torch.equal(load_checkpoint(tmp_path / "last.pt")["encoder"]["weights"], torch.ones(10))
    assert [path.name for path in tmp_path.iterdir()] == ["last.pt"]


def test_a_name_without_suffix_or_a_folder_finds_the_file(tmp_path: Path) -> None:
    assert resolve_checkpoint(tmp_path / "best") == tmp_path / "best.pt"
    assert resolve_checkpoint(str(tmp_path / "last.pt")) == tmp_path / "last.pt"
    assert resolve_checkpoint(tmp_path) == tmp_path / "best.pt"


def flipped(whole: bytes, bit: int) -> bytes:
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["last.pt", "best.pt", "of before"])
def test_of_400_flipped_bits_none_is_read_as_other_content(tmp_path: Path, kind: str) -> None:
    path, network = tmp_path / "file.pt", torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5))
    optimiser = torch.optim.AdamW(network.parameters())
    network(torch.randn(4, 6)).sum().backward()
    optimiser.step()
    parts = {"encoder": network.state_dict(), "optimiser": optimiser.state_dict(), "random": [random_state()]}
    if kind == "of before":
        torch.save(of_before(**parts), path)
    else:
        save_checkpoint(path, {name: content(**parts)[name] for name in (CONTENT if kind == "last.pt" else WEIGHTS)})
    whole, expected = path.read_bytes(), load_checkpoint(path)
    accepted = 0
    for bit in random.Random(0).sample(range(8 * len(whole)), 400):
        path.write_bytes(flipped(whole, bit))
        try:
            found = load_checkpoint(path)
        except UserError:
            continue
        accepted += 1
        assert_equal(found, expected, ignore=())
        assert vars(found["encoder"]) == vars(expected["encoder"])
    assert accepted < 200  # what is between the records of the archive, and read by nobody


def test_a_tensor_that_is_not_what_was_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint(path, content(encoder={"first": torch.ones(3), "second": torch.zeros(3)}))
    written = torch.load(path, weights_only=True)
    written["encoder"]["second"][1] = 1
    torch.save(written, path)  # with sums of the archive that are right
    with pytest.raises(UserError, match=r"last\.pt: .*encoder/second is not what was written"):
        load_checkpoint(path)
    del written["checksums"]
    torch.save(written, path)
    with pytest.raises(UserError, match=r"last\.pt: .*checksums is not what was written"):
        load_checkpoint(path)


def test_a_checkpoint_of_weights_is_measured_and_not_resumed(tmp_path: Path) -> None:
    path = tmp_path / "best.pt"
    save_checkpoint(path, {name: content()[name] for name in WEIGHTS})
    assert load_checkpoint(path)["manifest"] == ""
    with pytest.raises(UserError, match=r"best\.pt holds weights only, .*--resume takes last\.pt"):
        load_checkpoint(path, read_run=read_config)


@pytest.mark.slow
def test_a_model_is_used_whose_loss_may_no_longer_be_configured_so(tmp_path: Path) -> None:
    path, config = tmp_path / "best.pt", tiny_config("emc2")
    settings = read_config(config)
    encoder = build_encoder(settings.model, channels=1).state_dict()
    config["loss"]["params"] = {"official": True, "burn_in": 0.1}
    config["sampler"]["params"] = {"gone": 1}
    config["optim"]["name"] = "gone"
    weights = content(config=config, encoder=encoder, progress=vars(Progress()))
    save_checkpoint(path, {name: weights[name] for name in WEIGHTS})
    assert evaluate_model(f"aurank:{path}").metrics["mauprc"] > 0
    assert aurank.load(path)[0].dim == 8
    save_checkpoint(path, weights)
    with pytest.raises(UserError, match=r"cannot use its config \(.*; use the version that wrote it"):
        load_checkpoint(path, read_run=read_config)


def test_a_checkpoint_that_claims_more_memory_than_it_has_bytes_is_refused(tmp_path: Path) -> None:
    torch.save(of_before(encoder={"bomb": torch.zeros(1).expand(10**6, 10**6)}), tmp_path / "bomb.pt")
    with pytest.raises(UserError, match=r"values that take more than 16 times the [0-9,]+ bytes of the file"):
        load_checkpoint(tmp_path / "bomb.pt")
    with zipfile.ZipFile(tmp_path / "deflated.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(10**7))
    with pytest.raises(UserError, match=r"record 'archive/data\.pkl' is compressed"):
        load_checkpoint(tmp_path / "deflated.pt")


@pytest.mark.parametrize("below", [0, "long text " * 10_000, {"a long key " * 10_000: 0}])
def test_lists_that_refer_to_each_other_ten_times_are_refused_at_once(tmp_path: Path, below: Any) -> None:
    for _ in range(4 if below else 30):
        below = [below] * 10
    torch.save(of_before(progress={"nested": below}), tmp_path / "bomb.pt")
    with pytest.raises(UserError, match=r"bomb\.pt: .*values that take more than 16 times the"):
        load_checkpoint(tmp_path / "bomb.pt")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"encoder": {"weight": 3}}, r"'encoder' has at 'weight' a int, expected a tensor"),
        ({"average": {"updates": "x", "values": {}}}, r"'average' lacks its updates, a number"),
        ({"average": {"updates": 1, "values": {"w": []}}}, r"'average' has at 'w' a list, expected a tensor"),
        ({"config": {"seed": 1}}, r"cannot use its config \(.*; use the version that wrote it"),
    ],
)
def test_weights_and_configurations_of_other_types_are_refused(
    tmp_path: Path, parts: dict[str, Any], message: str
) -> None:
    save_checkpoint(tmp_path / "best.pt", content(**parts))
    with pytest.raises(UserError, match=message) as caught:
        load_checkpoint(tmp_path / "best.pt")
    assert "\n" not in str(caught.value)

"""Processes that share images: each batch in one of them, the bits of one process, and one end for all."""

import json
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist
from testing.processes import ended, launch, run_ranks, succeeded
from testing.trees import write_tree

from aurank.commands import ImageIndex, RunOptions, build_index, embed_model, embed_to_folder, evaluate_model
from aurank.distributed import ProcessGroup
from aurank.embedding import ImageSelection
from aurank.embedding.embedded import Embedded

pytestmark = pytest.mark.slow
MODEL, COUNT, BATCH = "timm:test_vit,pretrained=false", 30, 4


def photos(folder: Path) -> ImageSelection:
    names = [f"class {row // 6}/{row:02d}.png" for row in range(COUNT)]
    return ImageSelection(f"folder:{write_tree(folder / 'photos', names, height=12, width=9)}")


def running(folder: Path, **options: object) -> RunOptions:
    return RunOptions(batch=BATCH, device="cpu", cache=folder / "cache", **options)  # type: ignore[arg-type]


def _member(rank: int, folder: Path) -> None:
    """Go through all that two processes do, and leave what each found."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    images, group = ImageSelection(f"folder:{folder / 'photos'}"), ProcessGroup(None)
    how = running(folder, group=group)
    embed_model(MODEL, images, running=how).save(folder / f"shared-{rank}.npz")
    report = evaluate_model(MODEL, images, running=how, neighbours=3)
    report.save(folder / f"report-{rank}.json")
    alone = evaluate_model(MODEL, images, running=how, postprocess="query_expansion:k=2")  # by the first for all
    alone.save(folder / f"alone-{rank}.json")
    embed_to_folder(MODEL, images, out=folder / "parts", shard_rows=13, running=how)
    dist.barrier()
    evaluate_model(f"embeddings:{folder / 'parts'}", running=how).save(folder / f"parts-{rank}.json")
    made = build_index(MODEL, images, out=folder / "index", running=how)
    assert (made is None) == (rank == 1)
    broken = folder / "photos" / "class 0" / "05.png"  # of the second batch, which is that of rank 1
    dist.barrier()
    if rank == 0:
        broken.write_bytes(b"no image")
    dist.barrier()
    skipping = ImageSelection(images.data, overrides=["data.on_error=skip"])
    said: list[str] = []
    rest = embed_model(MODEL, skipping, running=RunOptions(batch=BATCH, device="cpu", group=group, say=said.append))
    rest.save(folder / f"rest-{rank}.npz")
    (folder / f"said-{rank}.txt").write_text("\n".join(said))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes left, after a first attempt that was killed when it had a few batches."""
    folder = tmp_path_factory.mktemp("two")
    embed_model(MODEL, photos(folder), running=running(folder))
    (cache,) = (folder / "cache").iterdir()
    for row in (4, 8, 20, 28):  # what both ranks had, one of them more
        (cache / f"{row:010d}.safetensors").unlink()
    run_ranks(_member, 2, folder)
    return folder


def same(path: Path, expected: Embedded) -> bool:
    """Return whether a file has these rows; but for what knows when each file was written."""
    found = vars(Embedded.load(path))
    return all(np.array_equal(found[name], value) for name, value in vars(expected).items() if value is not None)


def test_two_processes_that_resume_a_third_give_the_bits_of_one(two: Path, tmp_path: Path) -> None:
    alone = embed_model(MODEL, photos(tmp_path), running=RunOptions(batch=BATCH, device="cpu"))
    assert len(alone.labels) == COUNT
    for rank in range(2):
        assert same(two / f"shared-{rank}.npz", alone)
    assert same(two / "parts", alone)
    assert sorted(path.name for path in (two / "parts").glob("part-*")) == [f"part-0000{part}.npy" for part in range(3)]
    index = ImageIndex.open(two / "index", device="cpu")
    assert np.array_equal(index.rows.embeddings, alone.embeddings)
    assert index.images["path"].tolist() == alone.paths.tolist()
    (cache,) = (two / "cache").iterdir()
    pieces = sorted(cache.glob("*.safetensors"))
    assert [int(path.stem) for path in pieces] == list(range(0, COUNT, BATCH))  # each once, cut as by one process


def test_two_processes_give_the_report_of_one_with_lists_in_the_first(two: Path, tmp_path: Path) -> None:
    images = photos(tmp_path)
    how = RunOptions(batch=BATCH, device="cpu")
    alone = evaluate_model(MODEL, images, running=how, neighbours=3)
    alone.save(tmp_path / "alone.json")
    expected = (tmp_path / "alone.json").read_bytes()
    assert (two / "report-0.json").read_bytes() == expected
    evaluate_model(MODEL, images, running=how).save(tmp_path / "plain.json")
    assert (two / "report-1.json").read_bytes() == (tmp_path / "plain.json").read_bytes()
    found = [json.loads((two / f"{name}-1.json").read_text())["metrics"] for name in ("report", "parts")]
    assert found[0] == found[1]
    expanded = evaluate_model(MODEL, images, running=how, postprocess="query_expansion:k=2")
    expanded.save(tmp_path / "expanded.json")
    for rank in range(2):
        assert (two / f"alone-{rank}.json").read_bytes() == (tmp_path / "expanded.json").read_bytes()


def test_what_one_process_cannot_read_is_skipped_by_all(two: Path) -> None:
    for rank in range(2):
        rest = Embedded.load(two / f"rest-{rank}.npz")
        assert rest.ids.tolist() == [row for row in range(COUNT) if row != 5]
        assert "skipped, unreadable: 1 of 30 images (class 0/05.png)" in (two / f"said-{rank}.txt").read_text()


SLOW = """
import time
from aurank.embedding.cache import EmbeddingCache

def slow(self, piece, write=EmbeddingCache.write, sleep=time.sleep):
    write(self, piece)
    sleep(0.3)
EmbeddingCache.write = slow
"""


def test_a_rank_that_is_killed_ends_the_other_in_one_line_and_its_pieces_stay(tmp_path: Path) -> None:
    data = photos(tmp_path).data
    out = tmp_path / "rows.npz"
    command = ["embed", "--model", MODEL, "--data", data, "--batch", 2, "--cache", tmp_path / "cache", "--out", out]
    processes = launch([command] * 2, setup=SLOW)
    try:
        deadline = time.monotonic() + 120
        while len(list((tmp_path / "cache").glob("*/*.safetensors"))) < 3:
            assert time.monotonic() < deadline
            assert all(process.poll() is None for process in processes), ended(processes)
            time.sleep(0.02)
        processes[1].send_signal(signal.SIGKILL)
    finally:
        results = ended(processes)
    assert results[0][0] == 1, results
    assert results[0][2].count("error: ") == 1
    assert "error: rank 0 has stopped: another rank is gone (" in results[0][2]
    assert "; look at that rank's own message, then give the same command again" in results[0][2]
    assert not out.exists()
    held = len(list((tmp_path / "cache").glob("*/*.safetensors")))
    assert held >= 3
    results = succeeded(launch([command] * 2))
    assert results[0][1] == f"{COUNT} embeddings of 64 dimensions written to {out}\n"
    assert "read " in results[0][2]
    assert results[1][1:] == ("", "")  # only rank 0 prints

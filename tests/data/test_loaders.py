import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from testing.refusals import refused
from testing.trees import array_manifest, write_tree, zip_tree

from aurank.data import TRANSFORMS, Batch, BatchLoader, ImageDataset, PKSampler, loader, view_keys
from aurank.data.readers.folders import read_folder
from aurank.errors import UserError


@pytest.fixture(scope="module")
def zipped(tmp_path_factory):
    """Returns a manifest of 24 images of 4 classes in a zip archive."""
    root = tmp_path_factory.mktemp("zipped")
    write_tree(root / "tree", [f"class{number % 4}/{number}.png" for number in range(24)])
    return read_folder(root, path=zip_tree(root / "tree", root / "tree.zip").name)


def _sick(root, *broken):
    """Returns a manifest of eight images, of which some cannot be read."""
    manifest = read_folder(write_tree(root, [f"a/{number}.png" for number in range(8)]))
    for number in broken:
        (root / f"a/{number}.png").write_bytes(b"no image")
    return manifest


def _dataset(manifest, **options):
    return ImageDataset(manifest, TRANSFORMS["crop_flip"](8, 3), channels=3, seed=5, **options)


def _batches(dataset, count, **options):
    sampler = PKSampler(dataset.manifest.labels, 12, per_class=3)
    wanted = (view_keys(rows.tolist(), epoch, views=2) for epoch, _, rows in sampler.iterate())
    return list(itertools.islice(BatchLoader(dataset, wanted, **options), count))


def _in_order(dataset, batch):
    """The keys of all rows in order, not augmented."""
    return [range(start, min(start + batch, len(dataset))) for start in range(0, len(dataset), batch)]


def _equal(first, second):
    return len(first) == len(second) and all(
        torch.equal(one, other)
        for left, right in zip(first, second, strict=True)
        for one, other in zip(left, right, strict=True)
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("workers", [0, 2])
def test_pinned_batches_hold_the_same_images(zipped, workers):
    dataset = _dataset(zipped)
    found = list(BatchLoader(dataset, _in_order(dataset, 10), workers=workers))
    assert all(part.is_pinned() for batch in found for part in batch)
    assert _equal(found, [dataset.__getitems__(range(start, min(start + 10, 24))) for start in (0, 10, 20)])


@pytest.mark.slow
@pytest.mark.parametrize("cache_bytes", [0, 2**20])
def test_the_number_of_workers_changes_no_pixel(zipped, cache_bytes):
    dataset = _dataset(zipped, cache_bytes=cache_bytes)
    here = _batches(dataset, 6, workers=0)
    assert isinstance(here[0], Batch)
    assert here[0].image.shape == (24, 3, 8, 8)
    for workers in (1, 2):
        assert _equal(_batches(dataset, 6, workers=workers), here)


@pytest.mark.parametrize("side", [8, 64])
def test_large_and_small_tensors_come_from_a_worker_as_they_are_made(zipped, side):
    dataset = ImageDataset(zipped, TRANSFORMS["crop_flip"](side, 3), channels=3)
    keys = view_keys(range(24), 1, views=3)
    (found,), expected = BatchLoader(dataset, [keys], workers=1), dataset.__getitems__(keys)
    assert _equal([found], [expected])
    assert (found.image.nbytes > loader._SMALL) == (side == 64)
    found.label.add_(1)  # it may be written to


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_the_global_random_states_are_neither_read_nor_changed(zipped, workers):
    def states():
        return np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()  # noqa: NPY002

    dataset = _dataset(zipped)
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        random.seed(seed)
        before = states()
        found.append(_batches(dataset, 3, workers=workers))
        assert states() == before
    assert _equal(*found)


@pytest.mark.parametrize("count", [0, 5, loader._FEW + 7])
def test_what_is_made_of_each_item_comes_in_their_order_from_other_processes_where_they_are_many(count):
    found = list(loader.made_of_each(lambda item: (item, os.getpid()), range(count)))
    assert [item for item, _ in found] == [*range(count)]
    is_forked = count >= loader._FEW and sys.platform == "linux" and os.cpu_count() > 1
    assert all((process != os.getpid()) == is_forked for _, process in found)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_corrupt_image_ends_in_its_own_message_and_workers_end_with_the_iteration(tmp_path, workers):
    manifest = _sick(tmp_path, 5)
    batches = BatchLoader(_dataset(manifest, cache_bytes=0), _in_order(manifest, 2), workers=workers)
    for _ in range(2):
        refused(r"^image 'a/5\.png' in ", list, batches)
        assert multiprocessing.active_children() == []
        stopped = iter(batches)
        next(stopped)
        stopped.close()
        assert multiprocessing.active_children() == []


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_worker_skips_is_counted_in_the_parent(tmp_path, workers):
    manifest = _sick(tmp_path, 2, 5)
    dataset = _dataset(manifest, cache_bytes=0, on_error="skip")
    found = list(BatchLoader(dataset, _in_order(dataset, 3), workers=workers))
    assert torch.cat([batch.id for batch in found]).tolist() == [0, 1, 3, 4, 6, 7]
    assert dataset.skipped == ["a/2.png", "a/5.png"]


def test_workers_leave_the_first_signal_to_the_parent():
    manifest = array_manifest({"test": [40]})
    batches = BatchLoader(_dataset(manifest), _in_order(manifest, 2), workers=2)
    iterator = iter(batches)
    next(iterator), next(iterator)  # one from each, so both have started
    for worker in multiprocessing.active_children():
        os.kill(worker.pid, signal.SIGINT)
        os.kill(worker.pid, signal.SIGTERM)
    assert len(list(iterator)) == 18


@pytest.mark.parametrize("count", [5, loader._FEW + 7])
def test_an_error_where_items_are_made_comes_as_it_was_and_no_process_stays(count):
    def make(item):
        if item == 3:
            raise UserError("image 3 is gone")
        return item

    refused(r"^image 3 is gone$", list, loader.made_of_each(make, range(count)))
    begun = loader.made_of_each(str, range(count), at_once=4)
    assert next(begun) == "0"
    begun.close()
    assert multiprocessing.active_children() == []


ENDLESS = """
import os
from aurank.data.loader import made_of_each
for process, _ in made_of_each(lambda item: (os.getpid(), bytes(10**6)), range(10**6)):
    print(process, flush=True)
    input()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or os.cpu_count() == 1, reason="needs forked workers")
def test_workers_end_with_a_parent_that_is_killed():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", ENDLESS], **pipes) as parent:
        state = Path("/proc", parent.stdout.readline().decode().strip(), "stat")
        parent.kill()
    deadline = time.monotonic() + 60
    with suppress(FileNotFoundError, ProcessLookupError):
        while " Z " not in state.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.mark.slow
def test_an_iteration_forgotten_in_a_cycle_does_not_reach_into_new_workers(zipped, capfd):
    batches = BatchLoader(_dataset(zipped), _in_order(zipped, 4), workers=2)
    for _ in range(3):
        forgotten = [iter(batches)]
        next(forgotten[0])
        forgotten.append(forgotten)
        del forgotten
        assert torch.cat([batch.id for batch in batches]).tolist() == list(range(24))
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_workers_that_are_not_forked_give_the_same_pixels(tmp_path, monkeypatch):
    """Elsewhere than on Linux workers are spawned, and everything goes to them by pickle."""
    monkeypatch.setattr(loader, "_context", lambda: multiprocessing.get_context("spawn"))
    manifest = read_folder(write_tree(tmp_path, [f"a/{number}.png" for number in range(6)]))
    dataset = ImageDataset(manifest, TRANSFORMS["affine"](8, 3), channels=3)
    wanted = [view_keys(range(6), epoch) for epoch in range(3)]
    here, there = (list(BatchLoader(dataset, wanted, workers=workers)) for workers in (0, 1))
    assert _equal(here, there)

"""Trees of a benchmark's published size: the layout that the reader wants, and the counts, at a hundredth."""

import numpy as np
import pytest
from make_benchmark_tree import TREES, Tree, write

from aurank.data import BENCHMARKS, Manifest
from aurank.data.readers import READERS

SHARE = 0.002


@pytest.mark.parametrize("name", list(TREES))
def test_a_tree_is_read_as_the_benchmark(name, tmp_path):
    chance = np.random.default_rng(0)
    write(TREES[name](BENCHMARKS[name], SHARE, chance), tmp_path, 8, chance)
    manifest: Manifest = READERS[name](tmp_path, complete=False)
    sizes = list(BENCHMARKS[name].sizes.values())
    for split, (images, classes) in (("train", sizes[0]), ("test", sizes[-1])):
        part = manifest.split(split)
        assert len(part) == round(images * SHARE)
        assert len(np.unique(part.labels)) == max(2, round(classes * SHARE))
    assert not list(tmp_path.glob("*.part"))


def test_what_is_there_is_not_written_over(tmp_path):
    (tmp_path / "here").mkdir()
    with pytest.raises(SystemExit, match="here exists: remove it, or name another --root"):
        write(Tree("here", [], {}), tmp_path, 8, np.random.default_rng(0))

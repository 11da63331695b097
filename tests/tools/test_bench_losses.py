"""The benchmark of the losses can make and call every loss of classes."""

from argparse import Namespace
from pathlib import Path

import bench_losses
import pytest

from aurank.losses import LOSSES
from aurank.names import signature

OF_CLASSES = sorted(bench_losses.OF_CLASSES & set(LOSSES))


def test_losses_with_vectors_of_classes_are_measured_on_classes() -> None:
    with_vectors = {name for name in LOSSES if "num_classes" in signature(LOSSES[name])[0]}
    assert with_vectors
    assert with_vectors | {"circle"} <= set(OF_CLASSES)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize("name", OF_CLASSES)
def test_a_loss_of_classes_is_measured(name: str) -> None:
    given = Namespace(batch=[32], dim=8, per_class=4, references=0, samples=100_000, rounds=1)
    assert bench_losses.measure(name, given)["seconds"] > 0

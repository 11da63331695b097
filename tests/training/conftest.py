"""Runs of the tests are short: of one thread, and of a fifth of the digits.

Trainings in this process and in processes of their own are compared bit for bit: both take one thread.
"""

from collections.abc import Iterator

import pytest
import torch
from testing.runs import few_digits

from aurank.data import READERS

torch.set_num_threads(1)  # as testing.processes does; a fixture would come after those of a module


@pytest.fixture(scope="module", autouse=True)
def few() -> Iterator[None]:
    """Read few digits, here and in the processes that a test starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(READERS, "digits", few_digits)
        yield

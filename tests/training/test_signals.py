"""What ends a run between two steps, and what does not."""

import signal
from collections.abc import Iterator

import pytest

from aurank.training.loop import StopRequest


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_first_signal_is_remembered_and_a_second_that_insists_interrupts() -> None:
    with StopRequest() as stop:
        for number in (signal.SIGUSR1, signal.SIGHUP, signal.SIGHUP, signal.SIGTERM):
            signal.raise_signal(
                number
            )  # a closed terminal sends its signal twice, and a scheduler warns before it ends
        assert stop.received == signal.SIGUSR1
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_nohup_stays_in_force() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGHUP)
    assert stop.received is None
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN

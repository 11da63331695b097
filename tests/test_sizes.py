import os

import pytest

from aurank.sizes import as_text, available_memory, seconds, size_in_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("512", 512),
        ("512B", 512),
        ("2KB", 2000),
        ("1.5 KiB", 1536),
        ("1GB", 10**9),
        ("1GiB", 2**30),
        ("1tb", 10**12),
    ],
)
def test_a_size_is_read_in_bytes(text: str, expected: int) -> None:
    assert size_in_bytes(text) == expected


@pytest.mark.parametrize("text", ["a lot", "", "-1", "1 G", "GiB"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size such as"):
        size_in_bytes(text)


def test_amounts_are_written_in_the_largest_unit_that_they_fill() -> None:
    assert [as_text(count) for count in (0, 1023, 1536, 2**30, 5 * 2**50)] == [
        *("0.0 B", "1,023.0 B", "1.5 KiB", "1.0 GiB", "5,120.0 TiB")
    ]


def test_the_memory_available_is_within_that_of_the_machine() -> None:
    found = available_memory()
    assert found is not None
    assert 2**24 < found <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(("text", "expected"), [("90", 90), ("1.5 h", 5400), ("10min", 600), ("2S", 2)])
def test_a_time_is_read_in_seconds(text: str, expected: int) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["soon", "", "-1", "1 day", "min"])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a time such as"):
        seconds(text)

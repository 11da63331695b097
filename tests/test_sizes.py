import pytest

from aurank.sizes import as_text, seconds, size_in_bytes

SIZES = {"0": 0, "512": 512, "512B": 512, "2KB": 2000, "1.5 KiB": 1536, "1GB": 10**9, "1GiB": 2**30, "1tb": 10**12}
TIMES = {"90": 90, "1.5 h": 5400, "10min": 600, "2S": 2}


def test_sizes_and_times_are_read_as_people_write_them() -> None:
    assert {text: size_in_bytes(text) for text in SIZES} == SIZES
    assert {text: seconds(text) for text in TIMES} == TIMES


@pytest.mark.parametrize("text", ["a lot", "", "-1", "1 X", "GiB", "1 day", "min"])
def test_what_is_no_size_and_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size such as"):
        size_in_bytes(text)
    with pytest.raises(ValueError, match="expected a time such as"):
        seconds(text)


def test_amounts_are_written_in_the_largest_unit_that_they_fill() -> None:
    assert [as_text(count) for count in (0, 1023, 1536, 2**30, 5 * 2**50)] == [
        *("0 B", "1023 B", "1.5 KiB", "1.0 GiB", "5.0 PiB")
    ]

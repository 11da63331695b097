import pytest

from aurank.sizes import size_in_bytes


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

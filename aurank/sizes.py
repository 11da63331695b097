"""Amounts of memory as people write them."""

import re

SIZE = r"(?i)^([0-9]{1,15}(?:\.[0-9]{1,9})?) ?((?:[KMGT]i?)?B)?$"
"""A number with or without a unit: "512", "512MB", "1.5 GiB"."""

_FACTORS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_FACTORS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def size_in_bytes(text: str) -> int:
    """The bytes in ``"1GiB"`` (2³⁰), ``"1GB"`` (10⁹), ``"512"`` (512).

    Raises:
        ValueError: not a size.
    """
    match = re.fullmatch(SIZE, text)
    if match is None:
        raise ValueError(f"got {text!r}, expected a size such as 512MB or 1GiB, or a number of bytes")
    return int(float(match[1]) * _FACTORS[(match[2] or "").upper()])

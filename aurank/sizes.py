"""Amounts of memory and time as people write them."""

import re

from aurank.errors import UserError

_SECONDS = {"": 1, "S": 1, "MIN": 60, "H": 3600}


def size_in_bytes(text: str) -> int:
    """Return the bytes in ``"1GiB"`` (2³⁰), ``"1GB"`` (10⁹), ``"512"`` (512); UserError for anything else."""
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        return int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError as error:
        raise UserError(f"got {text!r}, expected a size such as 512MB or 1GiB, or a number of bytes") from error


def seconds(text: str) -> float:
    """Return the seconds in ``"10min"`` (600), ``"90"`` (90); UserError for anything else."""
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) ?(S|MIN|H|)", text.upper())
    if match is None:
        raise UserError(f"got {text!r}, expected a time such as 90s, 10min or 2h, or a number of seconds")
    return float(match[1]) * _SECONDS[match[2]]


def as_text(count: int) -> str:
    """Return an amount such as "512.0 MiB"."""
    from pydantic import ByteSize

    return ByteSize(count).human_readable(separator=" ")

"""What users are told when something cannot be meant."""

import re
from collections.abc import Callable

import pytest

from aurank.errors import UserError


def refused(message: str, call: Callable[..., object], *arguments: object, **options: object) -> str:
    """Return what a call says that ends in a UserError of one line, in which the pattern is found."""
    with pytest.raises(UserError) as caught:
        call(*arguments, **options)
    said = str(caught.value)
    assert "\n" not in said
    assert re.search(message, said), said
    return said

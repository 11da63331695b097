"""Comparing what `state_dict` and `get_extra_state` give."""

from torch import Tensor


def same_state(one: object, other: object) -> bool:
    """True if both hold the same keys, types, dtypes and values to the last bit, however deep."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and one.equal(other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_state(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same_state, one, other))
    return one == other

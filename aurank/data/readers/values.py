"""What one value says, alike in tables, data frames, archives and data sets: a text, a label, a camera."""

from collections.abc import Sequence
from numbers import Number
from typing import Any

import numpy as np

from aurank.data.manifest import Label, first_seen
from aurank.errors import UserError
from aurank.names import NO_GROUP_NAMES, plain_name, text_key


def read_label(value: Any, where: str, names: Sequence[str] = (), *, separator: str | None = None) -> Label:
    """Return the name of a class, "" where it is missing: None, NaN, empty, or the text nan or NaN.

    The label 1.0 is 1, as numbers that have gaps become; truth values are the classes True and False. With `names` a
    number is a place among them. A list, of truth values too, or a text with a `separator` has the names of several.

    Raises:
        UserError: names `where`; for another thing than texts and numbers, and a number without a name.
    """
    plain: Any = value.tolist() if hasattr(value, "tolist") else value  # of NumPy or torch
    if plain is not value and isinstance(plain, list) and len(plain) == 1:
        (plain,) = plain  # an array of one number, as MedMNIST has them
    if separator is not None and isinstance(plain, str):
        plain = plain.split(separator or "|") if plain_name(plain) else ""  # YAML reads a bare | as ""
    if isinstance(plain, list | tuple):
        flags = all(isinstance(each, bool) for each in plain)
        labels = [read_label(each, where, names) for each in (np.flatnonzero(plain).tolist() if flags else plain)]
        texts = sorted({label for label in labels if isinstance(label, str) and label})
        if len(texts) == len(labels) and "|" not in "".join(texts):
            return tuple(texts) or ""
    is_one = isinstance(plain, str | Number | None)
    if not is_one:
        expected = "a label must be a number or text, or a list that has each once, without |, or truth values"
        raise UserError(f"{where}: {expected}; got {plain!r}"[:300] + "; mend it, or name another column by label")
    text = plain_name(plain)
    if not names or not text or isinstance(plain, str):
        return text
    if plain not in range(len(names)):
        named = f"none of the {len(names)} classes that are named"
        raise UserError(f"{where}: label {text} is {named}; leave such images out")
    return names[int(plain)]


def name_by_texts(texts: Sequence[str]) -> list[Label]:
    """Return the label of each text, which the first of those names that differ only in case."""
    first: dict[str, Label] = {}
    return [first.setdefault(text_key(text), text) for text in texts]


def require_filled(column: str, empty: Sequence[str]) -> None:
    """Raise UserError where a value is missing, of which `empty` names each."""
    if empty:
        more = f", and in {len(empty) - 1:,} more" if len(empty) > 1 else ""
        raise UserError(f"{empty[0]}: {column} is empty or NaN{more}; give each image one, or leave such images out")


def number_groups(values: Sequence[Any]) -> tuple[list[int], tuple[str, ...] | None]:
    """Return a number for each value, −1 where it names none, and the names by their number; None of plain numbers."""
    named = [plain_name(value, NO_GROUP_NAMES) for value in values]
    if all(value.isdecimal() and len(value) <= 18 for value in named if value):
        return [int(value) if value else -1 for value in named], None
    numbers = first_seen(filter(None, named))
    return [numbers[value] if value else -1 for value in named], tuple(numbers)

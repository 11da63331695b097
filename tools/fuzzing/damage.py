"""Random damage: to the place of a file, to bytes, to the words of a text, to the values of a tree."""

import copy
import random
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from fuzzing.formats import FORMATS, TEXTS

_NAMES = ("x", ".hidden.jpg", "é.jpg", "0002_c1s1.jpg", "_.jpg", "9" * 30 + "_c1s1_0_0.jpg", "a" * 200)
HOSTILE_WORDS = (
    *("", " ", "nan", "inf", "-1", "0", "1e999", "9" * 30, "9" * 5000, "0x10", "true", "null", "~", "[]", "{}"),
    *("\x00", "a\x00b", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\r", "\u202e", "\ufeff", "\ud7ff", "é" * 300),
    *("..", "../x", "../../../../etc/passwd", "/etc/passwd", "/dev/zero", "//", "./.", "a/" * 200, "a" * 5000, "~root"),
    *('"', "'", "\\", ",", ";", "\t", "\n", "%s", "{0}", "[" * 2000, "{" * 2000),
    *("- " * 500, "&a [*a]", "!!python/name:os"),
)
HOSTILE_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**30, 0.5, -0.5, 1e300, float("nan"), float("inf")),
    *("", "x", "1", [], [1], [[1], 2], {}, {"a": 1}, {"name": "x", "params": {}}, "a" * 5000, "\x1b[31m", "\ud800"),
)
HOSTILE_ARRAYS: tuple[Any, ...] = (
    *(np.zeros(0), np.zeros((0, 4)), np.zeros((12, 0)), np.zeros((12, 4, 2)), np.float64(3), np.zeros(5)),
    *(np.full((12, 4), np.nan), np.full((12, 4), 1e38), np.arange(12) * 1.5, np.arange(12) - 5, np.ones((2, 2, 2))),
    *(np.array(["x\x1b[31m"] * 12), np.zeros(12, dtype="datetime64[s]"), np.zeros(12, dtype=complex)),
    *(np.zeros(12, dtype=[("a", "i4")]), np.full(12, 2**63, dtype=np.uint64), np.zeros((12, 4), dtype="f2")),
    *(np.array([["x", 1]], dtype=object), np.array([[-5, 10**9]]), np.array([[None]])),
)
_NUMBERS = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)


def damage_file(path: Path, files: list[Path], chance: random.Random) -> bool:
    """Damage a file, perhaps by values that are written as its format has them: return whether that was so."""
    if chance.random() < 0.15:
        _move(path, files, chance)
        return False
    content, (read, write) = path.read_bytes(), FORMATS.get(path.suffix, (None, None))
    if read is not None and chance.random() < 0.65:
        with suppress(Exception):  # what cannot be opened or written keeps its format, and its bytes are damaged
            values = (*HOSTILE_VALUES, *HOSTILE_ARRAYS) if path.suffix in _OF_ARRAYS else HOSTILE_VALUES
            path.write_bytes(write(damage_tree(read(content), chance, values), content))
            return True
    if path.suffix in TEXTS and chance.random() < 0.7:
        with suppress(UnicodeDecodeError):
            path.write_bytes(damage_text(content.decode(), chance).encode("utf-8", "surrogatepass"))
            return False
    path.write_bytes(damage_bytes(content, chance, chance.choice(files).read_bytes()))
    return False


_OF_ARRAYS = (".npz", ".npy", ".mat")


def _move(path: Path, files: list[Path], chance: random.Random) -> None:
    how = chance.randrange(7)
    if how == 0:
        path.unlink()
    elif how == 1:
        path.rename(path.with_name(chance.choice(_NAMES)))
    elif how == 2:
        shutil.copy(path, path.with_name(chance.choice(_NAMES)))
    elif how == 3:
        path.write_bytes(b"")
    elif how == 4:
        path.write_bytes(chance.choice(files).read_bytes())
    elif how == 5:
        path.unlink()
        path.mkdir()
    else:
        path.unlink()
        path.symlink_to(chance.choice(("/dev/null", "/dev/zero", "/etc", "nowhere", path.name)))


def damage_bytes(content: bytes, chance: random.Random, other: bytes = b"") -> bytes:
    """Flip, overwrite, cut, remove, insert or copy bytes, the first two more often."""
    data, other = bytearray(content), other or content
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        how, place, size = chance.randrange(8), chance.randrange(max(1, len(data))), chance.choice((1, 4, 64, 1024))
        if how <= 1 and data:
            data[place] ^= 1 << chance.randrange(8)
        elif how <= 3:
            size = chance.choice((1, 2, 4, 8))
            number = chance.choice(_NUMBERS) & (256**size - 1)
            data[place : place + size] = number.to_bytes(size, chance.choice(("little", "big")))
        elif how <= 5:
            del data[place : place + size if how == 4 else None]
        elif how == 6:
            data[place:place] = chance.randbytes(size)
        else:
            start = chance.randrange(max(1, len(other)))
            data[place : place + size] = other[start : start + size]
    return bytes(data)


def damage_text(content: str, chance: random.Random) -> str:
    for _ in range(chance.choice((1, 1, 2, 3))):
        separator, word = chance.choice(("\n", "\n", ",", " ", ":")), chance.choice(HOSTILE_WORDS)
        parts, how = content.split(separator), chance.randrange(5)
        place, other = (chance.randrange(len(parts)) for _ in range(2))
        if how == 4:
            parts[place], parts[other] = parts[other], parts[place]
        else:
            again = [parts[place]] * chance.choice((2, 2, 51))
            parts[place : place + 1] = ([word], [word, parts[place]], [], again)[how]
        content = separator.join(parts)
    return content


def damage_tree(tree: Any, chance: random.Random, values: tuple[Any, ...] = HOSTILE_VALUES) -> Any:
    tree = copy.deepcopy(tree)
    for _ in range(chance.choice((1, 1, 2, 3))):
        spots = list(_spots(tree))
        if not spots:
            return chance.choice(values)
        holder, key = chance.choice(spots)
        what = chance.randrange(6)
        if what <= 2:
            holder[key] = copy.deepcopy(chance.choice(values))
        elif what == 3:
            del holder[key]
        elif what == 4 and isinstance(holder, dict):
            holder[chance.choice((f"{key}x", "x", "", 7, "a" * 300, "\x1b[31m"))] = holder.pop(key)
        else:
            other, where = chance.choice(spots)
            if where in other if isinstance(other, dict) else where < len(other):
                holder[key] = copy.deepcopy(other[where])
    return tree


def _spots(tree: Any, depth: int = 0) -> Any:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree[:8]) if isinstance(tree, list) else ()
    for key, value in list(items):
        yield tree, key
        if depth < 8:
            yield from _spots(value, depth + 1)

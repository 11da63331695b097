"""Classes that are hardly any: the folders of a data set that was named a level too high."""

import re
from collections.abc import Sequence

_SPLIT_NAMES = {
    *("train", "training", "val", "valid", "validation", "dev", "test", "testing"),
    *("query", "queries", "gallery", "index", "database", "distractors"),
}


def odd_classes(classes: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return what is odd about the classes, and which they are, where they look like splits or are two at most.

    A class looks like a split where a folder of its name, or the last word of one (bounding_box_train), is the name of
    one; that is no chance where classes do so in two ways.
    """
    folders = {name: re.split(r"[/\\]", name.lower()) for name in classes}
    words = {
        name: _SPLIT_NAMES & {*parts, *(re.split(r"[ _-]", part)[-1] for part in parts)}
        for name, parts in folders.items()
    }
    alike = [name for name in classes if words[name]]
    if len(set().union(*words.values())) < 2 and len(classes) > 2:
        return None
    if alike:
        return "classes that look like splits", alike
    return ("two classes" if len(classes) == 2 else "one class"), list(classes)

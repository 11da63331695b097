"""Images that a data set lists more than once: each is then a perfect match of itself."""

import os
import posixpath
from collections.abc import Sequence
from pathlib import Path

from aurank.data.manifest import Manifest
from aurank.data.sources import FolderSource, ImageSource


def repeated_image(manifest: Manifest) -> str | None:
    """Return words on the first image that is listed twice, by one path or by links to one file; None if none is.

    Where images have texts, one may stand in several rows by one path.
    """
    paths = manifest.paths if manifest.texts is None else tuple(dict.fromkeys(manifest.paths))
    first: dict[str, str] = {}
    repeats = []
    for path, image in zip(paths, identities(manifest.source, paths), strict=True):
        if image in first:
            repeats.append((first[image], path))
        first.setdefault(image, path)
    if not repeats:
        return None
    before, path = repeats[0]
    again = "twice" if path == before else f"again as {path!r}"
    more = f", and {len(repeats) - 1:,} more rows repeat an image" if len(repeats) > 1 else ""
    return f"{manifest.name} lists image {before!r} {again}{more}"


def identities(source: ImageSource, paths: Sequence[str]) -> list[str]:
    """Return what tells images apart: the file that a path leads to, or the member of an archive."""
    if not isinstance(source, FolderSource):
        return [posixpath.normpath(path) for path in paths]
    folders: dict[str, tuple[str, dict[str, str]]] = {}
    found = []
    for path in paths:
        parent, name = posixpath.split(path)
        if parent not in folders:
            folders[parent] = _resolved(source.root / parent)
        folder, links = folders[parent]
        found.append(links.get(name) or f"{folder}/{name}")
    return found


def _resolved(folder: Path) -> tuple[str, dict[str, str]]:
    """Return where a folder really is, and of the links in it where they lead: one look for all of its images."""
    try:
        with os.scandir(folder) as entries:
            links = {entry.name: os.path.realpath(entry.path) for entry in entries if entry.is_symlink()}
        return os.path.realpath(folder), links
    except (OSError, ValueError):  # it is missing, or can be no folder: so are its images, told when they are read
        return str(folder), {}

"""What the doctor says of prepared images: whether they fit their originals, and are what was written."""

import numpy as np

from aurank.data.checks.findings import Advice, Finding, finding_of
from aurank.data.manifest import Manifest
from aurank.data.prepared import PreparedImages, remedy_for


def check_prepared(prepared: PreparedImages, manifest: Manifest) -> list[Finding]:
    """Return what does not fit; every prepared image is read, and every original with another time.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from aurank.data import READERS
        >>> from aurank.data.prepared import Preparation, prepare_images
        >>> digits = READERS["digits"](None)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     prepare_images(digits.select([0, 1]), Path(folder), Preparation(8, 1)).written
        ...     print(check_prepared(PreparedImages(Path(folder)), digits.select([0, 1, 2]))[0])
        2
        images that are not prepared: 1 (digit-0002)
    """
    places = prepared.places(manifest)
    missing, changed = prepared.unfit(manifest, places, at_most=None)
    held = np.flatnonzero(places >= 0)
    advice = Advice("Training and measuring refuse to begin.", f"{remedy_for(prepared.folder).capitalize()}.")
    found = {
        "images that are not prepared": missing,
        "images that changed after they were prepared": changed,
        "prepared images that are damaged": held[prepared.damaged(places[held])],
    }
    return [
        finding_of(
            check,
            [manifest.regions[row] for row in rows.tolist()],
            advice,
            is_error=True,
            rows=[[row] for row in rows.tolist()],
        )
        for check, rows in found.items()
    ]

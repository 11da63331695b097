"""Images whose folders name splits and classes, or nothing does; Omniglot; and digits that need no file."""

import mimetypes
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from aurank.data.decode import IMAGE_SUFFIXES
from aurank.data.manifest import SPLITS, Label, Manifest, build_manifest, by_ending, first_seen
from aurank.data.readers.listing import read_text
from aurank.data.sources import ArraySource, ImageSource, open_source
from aurank.errors import UserError, refuse_first

_OMNIGLOT_SPLITS = {"images_background": "train", "images_evaluation": "test"}
_TYPES = mimetypes.MimeTypes()  # of Python alone, whatever lists the system has; text and films make no class
_OMNIGLOT_FOLDERS = ("omniglot", "omniglot-py", ".")  # as unpacked, as torchvision keeps it, right here


def read_folder(
    root: Path, *, path: str = ".", subset: str | None = None, test_fraction: int | float = 1.0, seed: int = 0
) -> Manifest:
    """Return the images of a folder, or zip, whose own folders name the splits and classes.

    Two layouts are read: `{train,val,test}/CLASS/IMAGE`, when train or test is there and nothing beside these three,
    and `CLASS/IMAGE`. A class is the folder that holds the images, by its path, so folders may be nested. Other files
    are in `unread`; a folder of nothing but pictures that are not read is refused, as its class would be lost.

    Args:
        subset: a list in `root` of the classes (as ImageNet-100 has them) or of the images (ImageNet-LT) that are read:
            each line begins with the name of one. A split of which it names nothing is read whole.
        test_fraction: for the second layout: the fraction of the classes, drawn at random, that is "test"; the others
            are "train". 1 makes everything test, to evaluate a model on one's own images.
        seed: of that draw.
    """
    source, names, unread = list_images(root / path)
    has_splits = holds_splits(names, source.where)
    labels = ["/".join(name.split("/")[has_splits:-1]) for name in names]
    read = {name.rpartition("/")[0] for name in names}
    lost: dict[str, list[str]] = {}  # by folder, of which no file is read
    for name in unread:
        folder, (top, *_) = name.rpartition("/")[0], name.split("/")
        is_class = folder not in ("", *read) and (not has_splits or (top in SPLITS and folder != top))
        if is_class and (_TYPES.guess_type(name)[0] or "image/").startswith("image/"):
            lost.setdefault(folder, []).append(name)
    problems = [
        f"no file of the folder {folder!r} in {source.where} is read ({by_ending(files)}), so its class would be lost; "
        "convert its pictures, such as to PNG, or move it away"
        for folder, files in lost.items()
    ]
    if "" in labels:
        image = names[labels.index("")]
        expected = f"expected CLASS/{image.split('/')[-1]}, or without classes the reader unlabelled"
        problems.append(f"image {image!r} in {source.where} is in no class folder; {expected}")
    tops = [name.split("/")[0] if has_splits else "" for name in names]
    if subset is not None:
        listable = {*names, *labels}
        lines = [line.strip() for line in read_text(open_source(root), subset).splitlines() if line.strip()]
        listed = {line if line in listable else line.split()[0] for line in lines}
        unknown = sorted(listed - listable) if lines else ["an empty list"]
        problems += [f"{subset}: {name!r} is no class folder and no image of {source.where}" for name in unknown[:1]]
        is_listed = [not listed.isdisjoint(each) for each in zip(names, labels, strict=True)]
        limited = {top for top, chosen in zip(tops, is_listed, strict=True) if chosen}
        rows = [row for row, top in enumerate(tops) if is_listed[row] or top not in limited]
        names, labels, tops = ([column[row] for row in rows] for column in (names, labels, tops))
    refuse_first(problems)
    splits = tops if has_splits else draw_splits(labels, test_fraction, seed)
    name = Path(source.where).resolve().stem
    return build_manifest(name, source, paths=names, labels=labels, splits=splits, unread=unread)


def holds_splits(names: Sequence[str], where: str) -> bool:
    """Return whether the folders at the top are the splits; UserError where they may be splits or classes."""
    tops = {name.split("/")[0] for name in names if "/" in name}
    splits, beside = tops & {"train", "test"}, sorted(tops - set(SPLITS))
    nested = [name for name in names if name.split("/")[0] in splits and name.count("/") > 1]
    if splits and beside and nested:
        top = nested[0].split("/")[0]
        raise UserError(
            f"{where} holds {beside[0]!r} beside {top!r}, which holds folders itself ({nested[0]}): if {top!r} is a "
            f"split, move {beside[0]!r} away; if it is a class, put its images right into it, or rename it"
        )
    return bool(splits) and not beside


def draw_splits(labels: Sequence[Label], test_fraction: int | float, seed: int) -> list[str]:
    classes = sorted(set(labels), key=str)
    drawn = np.random.default_rng(seed).permutation(len(classes))[: round(test_fraction * len(classes))]
    test = {classes[index] for index in drawn.tolist()}
    return ["test" if label in test else "train" for label in labels]


def read_unlabelled(root: Path, *, path: str = ".") -> Manifest:
    """Return the images of a folder, or zip, at any depth, all "train", each with a label of its own: its path.

    For training with data.train_labels=image, by the views of each image alone. Other files are in `unread`.
    """
    source, names, unread = list_images(root / path)
    name = Path(source.where).resolve().stem
    return build_manifest(name, source, paths=names, labels=names, splits=["train"] * len(names), unread=unread)


def list_images(path: Path) -> tuple[ImageSource, list[str], list[str]]:
    """Return a folder or archive with the paths of its images, at least one, and of its other files."""
    source, images, unread = open_source(path), list[str](), list[str]()
    for name in source.names():
        (images if PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES else unread).append(name)
    if not images:
        holds = f" ({by_ending(unread)} are not read)" if unread else ""
        layouts = "train/CLASS/IMAGE and test/CLASS/IMAGE, or CLASS/IMAGE, or, without classes, images at any depth"
        raise UserError(f"no images in {source.where}{holds}; expected {layouts}")
    return source, images, unread


def read_omniglot(root: Path, *, path: str = "omniglot_full.zip") -> Manifest:
    """Return Omniglot: background alphabets as "train", evaluation alphabets as "test"; class "Alphabet/characterNN".

    `super_labels` number the alphabets. Paths start at `images_background`, so zip and folder have the same sha256.

    Args:
        path: of a folder or zip that holds `images_background/ALPHABET/characterNN/*.png` and `images_evaluation/…`, in
            a zip at any depth. Without it, `omniglot`, `omniglot-py` (torchvision's) and `root` itself are tried.

    Source: Lake, Salakhutdinov and Tenenbaum, Human-level concept learning, Science 350 (2015),
        https://doi.org/10.1126/science.aab3050.
    """
    paths = [root / path, *(root / folder for folder in _OMNIGLOT_FOLDERS)]
    sources = (_omniglot_source(path) for path in paths if path.exists())
    source = next((source for source in sources if source is not None), None)
    if source is None:
        tried = ", ".join(dict.fromkeys(map(str, paths)))
        raise UserError(
            f"Omniglot is not there: none of {tried} holds images_background and images_evaluation; fetch it by "
            "`aurank data get omniglot`, or set data.root (or AURANK_DATA) to the folder that holds it"
        )
    parts = [name.split("/") for name in source.names() if name.endswith(".png")]
    rows = [row for row in parts if len(row) == 4 and row[0] in _OMNIGLOT_SPLITS]
    alphabets = first_seen(row[1] for row in rows)
    return build_manifest(
        "omniglot",
        source,
        paths=["/".join(row) for row in rows],
        labels=[f"{row[1]}/{row[2]}" for row in rows],
        splits=[_OMNIGLOT_SPLITS[row[0]] for row in rows],
        super_labels=[alphabets[row[1]] for row in rows],
    )


def _omniglot_source(path: Path) -> ImageSource | None:
    if path.is_dir():
        # Looked for by name: listing everything below a data folder could take minutes.
        for folder in (path, *sorted(below for below in path.iterdir() if below.is_dir())):
            if all((folder / split).is_dir() for split in _OMNIGLOT_SPLITS):
                return open_source(folder)
        return None
    names = open_source(path).names()
    prefixes = [{name.partition(split)[0] for name in names if f"{split}/" in name} for split in _OMNIGLOT_SPLITS]
    complete = sorted(set.intersection(*prefixes))
    return open_source(path, prefix=complete[0]) if complete else None


def read_digits(root: Path | None = None) -> Manifest:
    """Return scikit-learn's 1,797 handwritten digits, 8 × 8 grey; nothing is fetched and `root` is not read.

    The first half (898 images) is "train", the second "test", with the same ten classes: this set does not measure
    transfer to new classes.
    """
    from sklearn.datasets import load_digits  # half a second that no other reader needs

    data = load_digits()
    images = np.rint(data.images * (255 / 16)).astype(np.uint8)
    paths = [f"{row:04d}" for row in range(len(images))]
    half = len(images) // 2
    return build_manifest(
        "digits",
        ArraySource(dict(zip(paths, images, strict=True)), where="scikit-learn's digits"),
        paths=paths,
        labels=[str(label) for label in data.target.tolist()],
        splits=["train"] * half + ["test"] * (len(images) - half),
    )
